//! Walks of swap faults: what the faults of a block brought back last, and what that says about
//! how much the next one should.

use crate::units::order_pages;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Order of the first window of a walk that nothing is known of: 64 KiB.
const START: u8 = 4;

/// The last window that a fault of a block brought back; packed in a word: bit 31 set, order
/// that was wanted, first page, one past the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Last {
    pub order: u8,
    pub first: u32,
    pub end: u32,
}

impl Last {
    fn unpack(word: u32) -> Option<Last> {
        (word >> 31 == 1).then_some(Last {
            order: (word >> 24 & 15) as u8,
            first: word >> 12 & 1023,
            end: word & 1023,
        })
    }

    pub fn pack(self) -> u32 {
        1 << 31 | u32::from(self.order) << 24 | self.first << 12 | self.end
    }

    pub fn pages(self) -> u32 {
        self.end - self.first
    }
}

/// What faults of a block brought back last.
#[derive(Debug, Default)]
pub(crate) struct Window(AtomicU32);

impl Window {
    pub const fn new() -> Window {
        Window(AtomicU32::new(0))
    }

    pub fn last(&self) -> Option<Last> {
        Last::unpack(self.0.load(Relaxed))
    }

    pub fn set(&self, last: Last) {
        self.0.store(last.pack(), Relaxed);
    }
}

/// The order above; there are no folios of two pages.
pub(crate) const fn more(order: u8) -> u8 {
    if order == 0 { 2 } else { order + 1 }
}

/// The order below.
pub(crate) const fn less(order: u8) -> u8 {
    if order <= 2 { 0 } else { order - 1 }
}

/// What a fault says about the windows before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Walk {
    /// It goes on where that window ended: all of it was wanted.
    On(Last),
    /// It is close by.
    Near(Last),
    /// It comes from elsewhere.
    Jump,
}

/// The window of a block as a fault on its page `i` sees it.
pub(crate) fn walk(last: Option<Last>, i: u32) -> Walk {
    let Some(last) = last else { return Walk::Jump };
    let n = last.pages();
    if i == last.end || i + 1 == last.first {
        Walk::On(last)
    } else if i < last.end + n && i + n >= last.first {
        Walk::Near(last)
    } else {
        Walk::Jump
    }
}

/// The order of a window, and what faults from elsewhere get from now on; `jumps` is that now.
pub(crate) fn decide(walk: Walk, jumps: u8, cluster: u8) -> (u8, u8) {
    let (order, jumps) = match walk {
        Walk::On(last) => (more(last.order), more(jumps).min(START)),
        Walk::Near(last) => (last.order, jumps),
        Walk::Jump => (less(jumps), less(jumps)),
    };
    (order.min(cluster), jumps)
}

/// The order that faults from elsewhere get, for a space.
#[derive(Debug)]
pub(crate) struct Jumps(AtomicU32);

impl Jumps {
    pub const fn new() -> Jumps {
        Jumps(AtomicU32::new(more(START) as u32))
    }

    pub fn order(&self) -> u8 {
        self.0.load(Relaxed) as u8
    }

    pub fn set(&self, order: u8) {
        self.0.store(u32::from(order), Relaxed);
    }
}

/// The largest window of `order` or less around page `i` of which all pages are `there`.
pub(crate) fn fitting(i: u32, order: u8, there: impl Fn(u32) -> bool) -> (u32, u8) {
    let mut order = order;
    while order >= 2 {
        let n = order_pages(order);
        let first = i & !(n - 1);
        if (first..first + n).all(&there) {
            return (first, order);
        }
        order = less(order);
    }
    (i, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_survives_its_word() {
        let last = Last {
            order: 6,
            first: 448,
            end: 512,
        };
        assert_eq!(Last::unpack(last.pack()), Some(last));
        assert_eq!(Last::unpack(0), None);
    }

    #[test]
    fn windows_double_on_a_walk_and_halve_on_jumps() {
        let at = |order, first, end| Some(Last { order, first, end });
        let (mut order, mut jumps) = decide(walk(None, 0), more(START), 6);
        assert_eq!((order, jumps), (START, START));
        for want in [5, 6, 6] {
            (order, jumps) = decide(walk(at(order, 0, 16), 16), jumps, 6);
            assert_eq!((order, jumps), (want, START));
        }
        // Down, and near.
        assert_eq!(decide(walk(at(3, 64, 72), 63), 0, 6), (4, 2));
        assert_eq!(decide(walk(at(3, 64, 72), 75), 2, 6), (3, 2));
        for want in [3, 2, 0, 0] {
            (order, jumps) = decide(walk(at(3, 64, 72), 300), jumps, 6);
            assert_eq!((order, jumps), (want, want));
        }
        // One that is followed up raises it.
        (order, jumps) = decide(walk(at(0, 300, 301), 301), jumps, 6);
        assert_eq!((order, jumps), (2, 2));
        assert_eq!(decide(walk(None, 9), jumps, 6), (0, 0));
    }

    #[test]
    fn the_window_is_what_is_there() {
        assert_eq!(fitting(21, 6, |k| (16..100).contains(&k)), (16, 4));
        assert_eq!(fitting(64, 6, |k| k >= 16), (64, 6));
        assert_eq!(fitting(5, 3, |k| k == 5), (5, 0));
    }
}
