//! Watermarks: how many pages must stay free, and whether that is so.
//!
//! The test here is pure: it reads counters and takes no lock, so it may be asked under any
//! lock. What reclaims when it fails is another function in another place (`zonelist.rs`),
//! because under the zone's lock that must not happen (C18, R7).

use crate::atomic::AtomicU64;
use crate::frame::Zone;
use crate::units::{MAX_ORDER, order_pages};
use core::sync::atomic::Ordering::Relaxed;

/// The three marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Only who reclaims goes below the others, down to this one.
    Min,
    /// Below it background reclaim is woken.
    Low,
    /// Background reclaim ends.
    High,
}

/// Pages that must stay free; `min <= low <= high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// For [`Mark::Min`].
    pub min: u64,
    /// For [`Mark::Low`].
    pub low: u64,
    /// For [`Mark::High`].
    pub high: u64,
}

impl Watermarks {
    /// Marks for a zone of `pages`, by the kernel's rule: min is 4 * sqrt(KiB), as KiB; low
    /// and high are a quarter and a half of min above it.
    pub fn of_pages(pages: u64) -> Watermarks {
        let kib = pages.saturating_mul(4);
        let min = kib.saturating_mul(16).isqrt().min(pages) / 4;
        Watermarks {
            min,
            low: min + min / 4,
            high: min + min / 2,
        }
    }
}

/// The marks of one zone, which may change at any time.
pub(in crate::frame) struct Marks([AtomicU64; 3]);

impl Marks {
    pub(in crate::frame) const fn new() -> Marks {
        Marks([const { AtomicU64::new(0) }; 3])
    }
    fn get(&self, mark: Mark) -> u64 {
        self.0[mark as usize].load(Relaxed)
    }
}

impl Zone {
    /// Sets the marks; where they are out of order, the lower one counts for the higher too.
    pub fn set_watermarks(&self, marks: Watermarks) {
        let low = marks.low.max(marks.min);
        let high = marks.high.max(low);
        for (word, pages) in self.marks.0.iter().zip([marks.min, low, high]) {
            word.store(pages, Relaxed);
        }
    }

    /// The marks now.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks {
            min: self.marks.get(Mark::Min),
            low: self.marks.get(Mark::Low),
            high: self.marks.get(Mark::High),
        }
    }

    /// Whether a block of `order` could be taken and more than `mark` pages would stay free,
    /// by the counters alone: pages on per-CPU and capture lists do not count as free. A mark
    /// of 0 is none: whatever there is may be taken.
    pub fn watermark_ok(&self, order: u8, mark: Mark) -> bool {
        if order > MAX_ORDER {
            return false;
        }
        let mark = self.marks.get(mark);
        let enough = mark == 0 || {
            let rest = order_pages(order) as u64 - 1;
            self.free_pages().saturating_sub(rest) > mark
        };
        enough && (order == 0 || self.has_block(order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_follow_the_kernels_rule() {
        // 1 GiB: sqrt(16 * 1048576) = 4096 KiB.
        let marks = Watermarks::of_pages(1 << 18);
        assert_eq!((marks.min, marks.low, marks.high), (1024, 1280, 1536));
        let none = Watermarks::of_pages(0);
        assert_eq!(none, Watermarks::default());
        Watermarks::of_pages(u64::MAX);
    }
}
