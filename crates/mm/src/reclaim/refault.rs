//! How much of what reclaim evicts comes back: the sign that it takes what is in use.
//!
//! Linux measures a refault by its distance on the list (workingset). Between managers of one
//! group there is no common list, so here it is a share: pages read back from the store for
//! each hundred written to it, over the last few hundred pages either way.

use crate::charge::Charge;
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::{Item, Stats};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages in and out that make up one look: large enough that a batch of swap-ins is not one.
const WINDOW: u64 = 512;
/// Per cent that have to come back before others are asked to give instead.
const NOTABLE: u32 = 10;

/// The share that came back, and where its last look ended.
#[derive(Debug)]
pub(crate) struct Refault {
    out: AtomicU64,
    back: AtomicU64,
    percent: AtomicU64,
}

impl Refault {
    pub const fn new() -> Refault {
        Refault {
            out: AtomicU64::new(0),
            back: AtomicU64::new(0),
            percent: AtomicU64::new(0),
        }
    }
    /// Per cent, averaged with the look before. Two callers at once may take the same look
    /// twice, which makes it weigh more and not wrong.
    fn percent(&self, stats: &Stats) -> u32 {
        let (out, back) = (evicted(stats), stats.get(Item::Pswpin));
        let gone = out.saturating_sub(self.out.load(Relaxed));
        let came = back.saturating_sub(self.back.load(Relaxed));
        let mut percent = self.percent.load(Relaxed);
        if gone + came >= WINDOW {
            self.out.store(out, Relaxed);
            self.back.store(back, Relaxed);
            let now = (came * 100 / gone.max(1)).min(100);
            percent = (percent + now).div_ceil(2);
            self.percent.store(percent, Relaxed);
        }
        percent.min(100) as u32
    }
}

/// Pages evicted since the start, stored anew or not.
fn evicted(stats: &Stats) -> u64 {
    stats.get(Item::Pswpout) + stats.get(Item::SwpoutUnchanged)
}

impl<E: Env> Mm<E> {
    /// Pages that came back for each hundred that were evicted lately, at most 100.
    pub fn refault_percent(&self) -> u32 {
        self.reclaim.refault.percent(self.stats())
    }

    /// Begins anew at nothing that comes back: for who sees that nobody has faulted for long.
    /// Whether that changes what [`refault_percent`](Mm::refault_percent) says.
    pub fn forget_refaults(&self) -> bool {
        let was = self.refault_percent();
        self.reclaim.refault.percent.store(0, Relaxed);
        was > 0
    }

    /// Whether another manager of the group has given `pages` because its memory is less in
    /// use than this one's. No lock is held.
    pub(crate) fn others_gave(&self, pages: u64) -> bool {
        let percent = self.refault_percent();
        percent >= NOTABLE && self.charge().reclaim_colder(pages, percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_counts_and_is_forgotten_when_it_stays_away() {
        let (stats, refault) = (Stats::new(), Refault::new());
        stats.add(Item::Pswpout, WINDOW - 1);
        assert_eq!(refault.percent(&stats), 0);
        stats.add(Item::Pswpin, WINDOW - 1);
        let busy = refault.percent(&stats);
        assert!(busy >= 50, "{busy}");
        for _ in 0..8 {
            stats.add(Item::Pswpout, WINDOW);
            assert!(refault.percent(&stats) <= busy);
        }
        assert!(refault.percent(&stats) < NOTABLE);
        // Nothing evicted at all, and much comes back: it wakes up.
        stats.add(Item::Pswpin, 10 * WINDOW);
        assert!(refault.percent(&stats) >= 50);
    }
}
