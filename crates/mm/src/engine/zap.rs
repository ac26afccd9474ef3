//! Zap: a range becomes holes (munmap, MADV_DONTNEED, exit). Batched: one discard for a
//! block's part, one put for each folio.

use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine::folio::first_page;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::platform::Platform;
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap, Table};
use crate::table::entry::{Entry, Kind};
use crate::units::{BLOCK_PAGES, FrameRun, PageMask, PageRun, Pfn, SpaceId, Vpn};
use core::ops::Range;

/// References to drop, folio by folio, and what goes with them.
#[derive(Default)]
struct Batch {
    /// The folio, and where its first page would lie.
    at: Option<(Range<Pfn>, Vpn)>,
    refs: u32,
    /// Pages of folios that are gone, whose charge is still to be returned.
    charged: u64,
}

impl<E: Env> Engine<E> {
    /// Makes holes of a range. May wait for busy pages; no lock but the mmap lock is held.
    pub(crate) fn zap_range(&self, space: &Space, start: Vpn, pages: u64) {
        for (block, first, n) in space.parts(self, start, pages) {
            self.zap_part(space, &block, first, n);
            // It goes, whatever the system thinks of it.
            let mut state = block.lock(self);
            if let BlockState::Table(table) = &mut *state {
                self.forget_open(table, first.index(), n);
                state.tidy();
            }
        }
        space.free_leaves(self, start, pages);
        self.settle_store();
    }

    /// The same for a range that stays mapped: what is open of a part of a block stays so.
    pub(crate) fn zap_mapped(&self, space: &Space, start: Vpn, pages: u64) {
        for (block, first, n) in space.parts(self, start, pages) {
            if n == BLOCK_PAGES || !self.zap_open(space, &block, first, n) {
                self.zap_part(space, &block, first, n);
            }
        }
        self.settle_store();
    }

    fn zap_part(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) {
        let i = first.index();
        loop {
            let mut state = self.lock_settled(block, i, n);
            let whole = n == BLOCK_PAGES;
            match &mut *state {
                BlockState::Empty | BlockState::Busy => {}
                BlockState::Huge(h) if whole => {
                    let h = *h;
                    *state = BlockState::Empty;
                    self.zap_huge(PageRun::new(space.id, first, n), h);
                }
                BlockState::Huge(_) => {
                    drop(state);
                    let doomed = PageMask::run(i, n);
                    self.break_huge(space, block, first.block(), doomed);
                    continue;
                }
                BlockState::HugeSwapped(s) if whole => {
                    let stored = BLOCK_PAGES - s.zero.count();
                    self.stats().sub(Item::NrSwapped, stored as u64);
                    self.stats().sub(Item::NrZero, s.zero.count() as u64);
                    self.drop_swapped(s.first, stored);
                    *state = BlockState::Empty;
                }
                BlockState::HugeSwapped(_) | BlockState::Table(_) => {
                    if let Some(table) = state.table() {
                        self.zap_entries(PageRun::new(space.id, first, n), table);
                    }
                    state.tidy();
                }
            }
            if whole {
                self.memory().release_block(space.id, first.block());
            }
            return;
        }
    }

    fn zap_huge(&self, run: PageRun, mut h: HugeMap) {
        self.forsake_huge(&mut h);
        if h.mapped() {
            self.discard_run(run);
            self.stats().sub(Item::NrAnon, BLOCK_PAGES as u64);
        } else {
            self.release(FrameRun::new(h.pfn, BLOCK_PAGES));
            self.stats().sub(Item::NrInactive, BLOCK_PAGES as u64);
        }
        E::Sharing::leave(self, h.pfn, run.space, run.start, 1);
        self.put_folio(h.pfn, 1);
    }

    /// Makes holes of the entries of a run, none of which is busy, but of what cannot be closed.
    /// Block locked.
    pub(crate) fn zap_entries(&self, run: PageRun, table: &mut Table) {
        self.drop_open(run, table);
        let first = run.start.index();
        let visible = (first..first + run.pages).any(|k| {
            matches!(
                table.get(k).kind(),
                Kind::Mapped(_) | Kind::Zero { mapped: true, .. }
            )
        });
        if visible {
            self.discard_run(run);
        }
        self.drop_entries(run, table);
    }

    /// Forgets the entries of a run, none of which is busy, but those that are open, and frees
    /// their frames; what the program sees is the caller's. Block locked.
    pub(crate) fn drop_entries(&self, run: PageRun, table: &mut Table) {
        let first = run.start.index();
        self.forsake(table, first, run.pages);
        self.zap_at_rest(table, first, first + run.pages);
        let mut batch = Batch::default();
        for k in first..first + run.pages {
            match table.get(k).kind() {
                // What could not be closed stays open.
                Kind::Open => continue,
                Kind::None | Kind::Busy => {}
                Kind::Mapped(p) => {
                    self.stats().sub(Item::NrAnon, 1);
                    self.zap_frame(&mut batch, run, k, p);
                }
                Kind::Inactive(p) => {
                    self.stats().sub(Item::NrInactive, 1);
                    self.zap_frame(&mut batch, run, k, p);
                }
                Kind::Zero { dropped, .. } => {
                    if dropped {
                        self.stats().sub(Item::NrZero, 1);
                    }
                }
                Kind::Swapped(_) => self.stats().sub(Item::NrSwapped, 1),
            }
            table.set(k, Entry::NONE);
        }
        self.zap_end(run.space, &mut batch);
        if batch.charged > 0 {
            self.charge().uncharge(batch.charged);
        }
    }

    /// Gives back what the inactive and swapped entries of `from..to` hold, run by run: each
    /// call on the system costs more than the pages it is for.
    fn zap_at_rest(&self, table: &Table, from: u32, to: u32) {
        let mut k = from;
        while k < to {
            let kind = table.get(k).kind();
            let follows = |n: u32| match kind {
                Kind::Inactive(p) => table.get(k + n).kind() == Kind::Inactive(p.add(n)),
                Kind::Swapped(s) => table.get(k + n).kind() == Kind::Swapped(s.add(n)),
                _ => false,
            };
            let len = (1..to - k).find(|&n| !follows(n)).unwrap_or(to - k);
            match kind {
                Kind::Inactive(p) => self.release(FrameRun::new(p, len)),
                Kind::Swapped(s) => self.drop_swapped(s, len),
                _ => {}
            }
            k += len;
        }
    }

    fn zap_frame(&self, batch: &mut Batch, run: PageRun, k: u32, pfn: Pfn) {
        let page = run.start.block().start().add(u64::from(k));
        let same = |(folio, first): &(Range<Pfn>, Vpn)| {
            folio.contains(&pfn) && *first == first_page(page, pfn, folio.start)
        };
        if !batch.at.as_ref().is_some_and(same) {
            self.zap_end(run.space, batch);
            let folio = self.folio_of(pfn);
            let first = first_page(page, pfn, folio.start);
            batch.at = Some((folio, first));
        }
        batch.refs += 1;
    }

    fn zap_end(&self, space: SpaceId, batch: &mut Batch) {
        let Some((Range { start: head, .. }, first)) = batch.at.take() else {
            return;
        };
        let refs = core::mem::take(&mut batch.refs);
        batch.charged += self.put_mapped(space, first, head, refs);
    }
}
