//! Reclaim of a range on request (MADV_PAGEOUT), by the same path as any other.

use crate::beyond::Beyond;
use crate::charge::Charge;
use crate::engine::cut::Cut;
use crate::engine::leaving::Leaving;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::{BlockState, Presence};
use crate::units::{BLOCK_PAGES, PageMask, Pfn, SpaceId, Vpn};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Reclaims the pages of a range; returns how many were freed. Several CPUs may do parts
    /// of a range at the same time.
    pub fn page_out(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<u64, MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        self.close_range(&space, start, pages)?;
        if !self.tunables().beyond(Beyond::KeepAdvised) {
            // Where nothing can be stored, Linux splits all of it, and takes what was given up.
            let cut = if self.can_swap() {
                Cut::Parts
            } else {
                Cut::Whole
            };
            self.split_cut_range(&space, start, pages, cut);
        }
        let mut freed = 0;
        for (block, first, n) in space.parts(self, start, pages) {
            freed += self.page_out_part(&space, &block, first, n);
            self.settle_store();
        }
        self.reclaim_round_done();
        Ok(freed)
    }

    /// Splits large folios of a range, mapping by mapping: none is wholly in one that ends within
    /// it. What a fork shared is the caller's alone now if nobody else has it any more.
    pub(crate) fn split_cut_range(&self, space: &Space, start: Vpn, pages: u64, cut: Cut) {
        if self.stats().get(Item::NrShared) > 0 && self.charge().is_alone() {
            self.unshare_all();
        }
        let vmas = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        for v in vmas {
            for (block, first, n) in space.parts(self, v.start, v.pages) {
                self.split_cut(space, &block, first, n, cut);
            }
        }
    }

    pub(crate) fn page_out_part(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) -> u64 {
        let keeps = self.tunables().beyond(Beyond::KeepAdvised);
        let stuck = !keeps && !self.can_swap();
        let huge = match &*self.lock_settled(block, first.index(), n) {
            BlockState::Huge(h) if stuck && h.has != Presence::Lazy => return 0,
            BlockState::Huge(_) if !keeps && n < BLOCK_PAGES => return 0,
            BlockState::Huge(h) => Some(h.pfn),
            BlockState::Table(_) => None,
            _ => return 0,
        };
        let mut leaving = Leaving::default();
        if let Some(pfn) = huge {
            if n == BLOCK_PAGES {
                let folio = self.isolate(pfn);
                let freed = folio.map_or(0, |f| self.reclaim_folio(f, &mut leaving));
                self.let_go(&mut leaving);
                return freed;
            }
            self.break_huge(space, block, first.block(), PageMask::EMPTY);
        }
        let mut freed = 0;
        let mut last: Option<Pfn> = None;
        for i in first.index()..first.index() + n {
            let e = block.lock(self).entry(i);
            let Some(p) = e.frame().filter(|_| !stuck || e.lazy()) else {
                continue;
            };
            let head = self.head_of(p);
            if last != Some(head)
                && let Some(folio) = self.isolate(head)
            {
                freed += self.reclaim_folio(folio, &mut leaving);
            }
            last = Some(head);
            if leaving.is_due() {
                self.let_go(&mut leaving);
            }
        }
        self.let_go(&mut leaving);
        freed
    }
}
