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

use crate::engine::space::Space;
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::Block;
use crate::table::walk::{Last, Walk, decide, walk};
use crate::units::{BLOCK_PAGES, BlockNr, Vpn};

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
        let (order, jumps) = decide(seen, space.jumps.order(), t.page_cluster);
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
        block.window.set(Last { order, first, end });
        space.jumps.set(plan.jumps);
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
