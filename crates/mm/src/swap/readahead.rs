//! How much a fault on a swapped page brings back: readahead by the faults of a VMA, as Linux's
//! `swap_vma_readahead`, with folios for windows.
//!
//! Linux counts which of the pages that were read ahead are touched. Here they are mapped at
//! once, which saves their faults, so a touch of them is not seen; but the next fault tells: one
//! right behind a window (or before it, for who walks down) can only come from who has walked
//! through it, and one elsewhere says that the window was more than was wanted.
//!
//! - Right behind the last window of its block: the next window is twice as large, up to
//!   `page_cluster`. A walk that enters the next block goes on there.
//! - Near the last window (within its length): as large as the last one.
//! - Anywhere else: half of what the last such fault got, in the whole space. Faults that are
//!   followed up by their neighbours raise it again. So random faults soon read one page each,
//!   and each of several walks keeps its window in its own block.

use crate::env::Env;
use crate::mm::Mm;
use crate::space::Space;
use crate::space::block::Block;
use crate::stat::Item;
use crate::units::{BLOCK_PAGES, BlockNr, Vpn, order_pages};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Order of the first window of a walk that nothing is known of: 64 KiB.
const START: u8 = 4;

/// The last window that a fault of a block brought back; packed in a word: bit 31 set, order
/// that was wanted, first page, one past the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Last {
    order: u8,
    first: u32,
    end: u32,
}

impl Last {
    fn unpack(word: u32) -> Option<Last> {
        (word >> 31 == 1).then_some(Last {
            order: (word >> 24 & 15) as u8,
            first: word >> 12 & 1023,
            end: word & 1023,
        })
    }

    fn pack(self) -> u32 {
        1 << 31 | u32::from(self.order) << 24 | self.first << 12 | self.end
    }

    fn pages(self) -> u32 {
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

    fn last(&self) -> Option<Last> {
        Last::unpack(self.0.load(Relaxed))
    }
}

/// The order above; there are no folios of two pages.
const fn more(order: u8) -> u8 {
    if order == 0 { 2 } else { order + 1 }
}

/// The order below.
pub(crate) const fn less(order: u8) -> u8 {
    if order <= 2 { 0 } else { order - 1 }
}

/// What a fault says about the windows before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Walk {
    /// It goes on where that window ended: all of it was wanted.
    On(Last),
    /// It is close by.
    Near(Last),
    /// It comes from elsewhere.
    Jump,
}

/// The window of a block as a fault on its page `i` sees it.
fn walk(last: Option<Last>, i: u32) -> Walk {
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
fn decide(walk: Walk, jumps: u8, cluster: u8) -> (u8, u8) {
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
}

/// What a fault should bring back, and what is to be remembered when it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub order: u8,
    walk: Walk,
    jumps: u8,
}

impl<E: Env> Mm<E> {
    /// The order of the folio that a fault on `page` should bring back.
    pub(crate) fn plan_readahead(&self, space: &Space, block: &Block, page: Vpn) -> Plan {
        let t = self.tunables();
        let mut seen = walk(block.window.last(), page.index());
        if seen == Walk::Jump {
            seen = self.beyond_the_block(space, page);
        }
        let (order, jumps) = decide(seen, space.jumps.0.load(Relaxed) as u8, t.page_cluster);
        Plan {
            order: if t.vma_ra_enabled {
                order
            } else {
                t.page_cluster
            },
            walk: seen,
            jumps,
        }
    }

    /// The fault has brought the pages `first..first + pages` of a block back.
    pub(crate) fn note_readahead(
        &self,
        space: &Space,
        block: &Block,
        plan: Plan,
        (first, pages): (u32, u32),
    ) {
        if let Walk::On(last) = plan.walk {
            let hits = u64::from(last.pages() - 1);
            self.stats().add(Item::SwapRaHit, hits);
        }
        self.stats().add(Item::SwapRa, u64::from(pages - 1));
        let (order, end) = (plan.order, first + pages);
        block
            .window
            .0
            .store(Last { order, first, end }.pack(), Relaxed);
        space.jumps.0.store(u32::from(plan.jumps), Relaxed);
    }

    /// A walk from the end of the block before, or from the start of the one behind.
    fn beyond_the_block(&self, space: &Space, page: Vpn) -> Walk {
        let (i, nr) = (page.index(), page.block());
        let other = match i {
            0 => nr.0.checked_sub(1),
            _ if i + 1 == BLOCK_PAGES => Some(nr.0 + 1),
            _ => None,
        };
        let beside = other
            .filter(|&o| space.contains(BlockNr(o).start(), 1))
            .and_then(|o| space.block_if_any(self, BlockNr(o)));
        match beside.and_then(|b| b.window.last()) {
            Some(last) if i == 0 && last.end == BLOCK_PAGES => Walk::On(last),
            Some(last) if i > 0 && last.first == 0 => Walk::On(last),
            _ => Walk::Jump,
        }
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
