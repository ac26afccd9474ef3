//! Reclaim of a range on request (MADV_PAGEOUT), by the same path as any other.

use crate::engine::leaving::Leaving;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::table::block::BlockState;
use crate::table::entry::Kind;
use crate::units::{BLOCK_PAGES, PageMask, Pfn, SpaceId, Vpn};

impl<E: Env> Mm<E> {
    /// Reclaims the pages of a range; returns how many were freed. Several CPUs may do parts
    /// of a range at the same time.
    pub fn page_out(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<u64, MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        self.close_range(&space, start, pages)?;
        let mut freed = 0;
        for (block, first, n) in space.parts(self, start, pages) {
            freed += self.page_out_part(&space, &block, first, n);
            self.settle_store();
        }
        self.reclaim_round_done();
        Ok(freed)
    }

    pub(crate) fn page_out_part(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) -> u64 {
        let huge = match &*self.lock_settled(block, first.index(), n) {
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
            let kind = block.lock(self).entry(i).kind();
            let (Kind::Mapped(p) | Kind::Inactive(p)) = kind else {
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
