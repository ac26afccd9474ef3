//! Reclaim of what a fork has shared, by who pays for none of it.

use crate::engine::lru::Which;
use crate::engine::space::BlockRef;
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::BlockState;
use crate::units::BLOCK_PAGES;

/// Pages that [`Mm::reclaim_shared`] takes over at once, before it reclaims them.
const PORTION: u32 = 64;

impl<E: Env> Mm<E> {
    /// Whether more is shared, so that reclaim passes it by, than there is to reclaim.
    pub fn is_crowded(&self) -> bool {
        let own = self.lru_pages(Which::Active) + self.lru_pages(Which::Inactive);
        self.stats().get(Item::NrShared) > own
    }

    /// Takes about `pages` shared pages over, charging them, and reclaims them at once: what a
    /// manager can do that pays for none of them and finds nothing else. Returns how many are
    /// shared no more, whether or not they could be reclaimed.
    pub fn reclaim_shared(&self, pages: u64) -> u64 {
        let mut done = 0;
        for space in self.all_spaces() {
            for (block, first, _) in space.parts(self, space.base, space.pages) {
                let mut at = 0;
                while done < pages && self.stats().get(Item::NrShared) > 0 {
                    let Some((from, n, taken)) = self.take_portion(&block, at) else {
                        break;
                    };
                    let from_page = first.block().start().add(u64::from(from));
                    self.page_out_part(&space, &block, from_page, n);
                    self.settle_store();
                    done += u64::from(taken);
                    at = from + n;
                }
            }
        }
        self.reclaim_round_done();
        done
    }

    /// The next shared pages of a block from `at` on: first, how many pages, how many shared.
    fn take_portion(&self, block: &BlockRef, at: u32) -> Option<(u32, u32, u32)> {
        let mut state = self.lock_settled(block, 0, 0);
        match &mut *state {
            BlockState::Huge(h) if h.shared() => {
                self.forsake_huge(h);
                Some((0, BLOCK_PAGES, BLOCK_PAGES))
            }
            BlockState::Table(table) => {
                let from = (at..BLOCK_PAGES).find(|&k| table.get(k).shared())?;
                let n = PORTION.min(BLOCK_PAGES - from);
                Some((from, n, self.forsake(table, from, n)))
            }
            _ => None,
        }
    }
}
