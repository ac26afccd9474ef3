//! Storing pages before a fork shares them.
//!
//! Where memory is short a page that is shared would be stored by each process that has it. One
//! that is in the store before the fork is there once for all: who has not written it drops its
//! mapping and has it in that slot ([`Mm::reclaim_shared`]).

use crate::charge::Charge;
use crate::engine::space::{MapError, Space};
use crate::env::Env;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::scratch::PORTION;
use crate::stat::Item;
use crate::table::block::BlockState;
use crate::table::entry::Kind;
use crate::units::{BLOCK_PAGES, PAGE_SIZE, PageRun, Pfn, SpaceId};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Stores a copy of each page that the fork which is about to be made will share, as far as
    /// copies may be kept, and the store takes them; the pages stay where they are. After
    /// [`share_all`](crate::engine::Engine::share_all), under which none of them can be written,
    /// and before the store is lent. The caller keeps faults, reclaim and mapping calls away.
    ///
    /// # Errors
    /// [`MapError::NoSpace`].
    pub fn store_ahead(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !self.can_swap() {
            return Ok(());
        }
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let frames = self.shared_frames(&block.lock(self));
            let mut at = 0;
            while let Some((k, pfns)) = next_run(&frames, at) {
                at = k + pfns.len() as u32;
                self.settle_store();
                let most = self.charge().max().saturating_sub(u64::from(PORTION));
                let is_full = self.charge().usage() > most;
                if is_full || !self.has_room_for_copies(pfns.len() as u64) {
                    return Ok(());
                }
                let run = PageRun::new(id, first.block().start().add(u64::from(k)), at - k);
                self.store_run_ahead(&space, run, &pfns);
            }
        }
        self.settle_store();
        Ok(())
    }

    /// What was kept of pages that have been written since the last fork is stale. Before they
    /// are marked as shared anew; otherwise as [`store_ahead`](Self::store_ahead).
    ///
    /// # Errors
    /// [`MapError::NoSpace`].
    pub fn forget_written(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        for (block, ..) in space.parts(self, space.base, space.pages) {
            if self.stats().get(Item::NrSwapcached) == 0 {
                break;
            }
            match &*block.lock(self) {
                BlockState::Huge(h) if !h.guarded() => self.forget_copies(h.pfn, BLOCK_PAGES),
                BlockState::Table(table) => {
                    let written = table.present().filter(|e| !e.guarded());
                    let frames = written.filter_map(|e| e.frame());
                    frames.for_each(|p| self.forget_copies(p, 1));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The frames of a block that are shared and have no copy, by index. Block locked.
    fn shared_frames(&self, state: &BlockState) -> Vec<Option<Pfn>> {
        let wanted = |p: &Pfn| {
            let refused = self.meta(self.head_of(*p)).has(Flags::REJECTED);
            !refused && !self.has_copy(*p)
        };
        let frame = |k| {
            let e = state.entry(k);
            let mapped = matches!(e.kind(), Kind::Mapped(_)) && e.shared();
            e.frame().filter(|_| mapped).filter(wanted)
        };
        match state {
            BlockState::Huge(_) | BlockState::Table(_) => (0..BLOCK_PAGES).map(frame).collect(),
            _ => Vec::new(),
        }
    }

    fn store_run_ahead(&self, space: &Space, run: PageRun, frames: &[Pfn]) {
        let bytes = run.pages as usize * PAGE_SIZE;
        let mut buffer = self.swap.scratch.take(self.machine(), bytes);
        let read = self.read_mapped(run, &mut buffer[..bytes]);
        let mut kinds = alloc::vec![None; run.pages as usize];
        let read = &buffer[..read as usize * PAGE_SIZE];
        let refused = self.store_bytes(!space.forbids_zero(), read, &mut kinds);
        for k in refused.pages() {
            let head = self.head_of(frames[k as usize]);
            self.meta(head).set(Flags::REJECTED);
        }
        self.swap.scratch.give_back(self.machine(), buffer);
        for (pfn, kind) in frames.iter().zip(kinds) {
            if let Some(Kind::Swapped(slot)) = kind {
                self.keep_for_family(*pfn, slot);
            }
        }
    }
}

/// The next frames in a row from an index on, at most a portion of them, and where they begin.
fn next_run(frames: &[Option<Pfn>], at: u32) -> Option<(u32, Vec<Pfn>)> {
    let k = (at as usize..frames.len()).find(|&k| frames[k].is_some())?;
    let run = frames[k..].iter().take(PORTION as usize);
    Some((k as u32, run.map_while(|p| *p).collect()))
}
