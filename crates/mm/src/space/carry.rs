//! mremap of pages that are not unmapped on the way: others map them too, or they are pinned, or
//! locked in memory.
//!
//! Such a page is mapped at its new place first, protected, and taken from the old one then, so
//! that it has a translation all the time, and its folio is neither unmapped nor split. The
//! folio has two places from then on, or its pages are scattered over several; it stays in the
//! reverse map.

use crate::engine::busy::Busy;
use crate::engine::folio::{first_page, order_of};
use crate::engine::rmap::Place;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{PlatformError, Stop};
use crate::table::block::{BlockState, Table};
use crate::table::entry::{Entry, Kind};
use crate::units::{BLOCK_PAGES, PageRun, Pfn, SpaceId, Vpn, order_pages};
use alloc::vec;
use alloc::vec::Vec;

/// Pages in a row that move together.
struct Load {
    /// Index in the source block.
    k: u32,
    pages: u32,
    pfn: Pfn,
    /// The first entry.
    e: Entry,
}

impl<E: Env> Mm<E> {
    /// Moves what is held of a run, which lies in one block on both sides, and neither of which
    /// is in the tree now. A huge page becomes a table first. Returns whether anything moved.
    pub(crate) fn carry_held(
        &self,
        space: &Space,
        source: &BlockRef,
        from: Vpn,
        to: Vpn,
        n: u32,
    ) -> Result<bool, PlatformError> {
        let i = from.index();
        let mut state = self.lock_settled(source, i, n);
        if let BlockState::Huge(h) = &mut *state
            && E::Sharing::is_carried_huge(self, space, from.block(), h)
        {
            self.split_table(space, from.block(), &mut state);
        }
        let rests = |state: &BlockState, k| {
            let kind = state.entry(k).kind();
            matches!(kind, Kind::Inactive(p) if self.is_frame_held(p))
        };
        if (i..i + n).any(|k| rests(&state, k)) {
            // What has several places is mapped at all of them.
            self.activate_block(space, from.block().start(), &mut state)?;
        }
        let BlockState::Table(table) = &mut *state else {
            return Ok(false);
        };
        let loads = self.held_runs(table, i, n);
        if loads.is_empty() {
            return Ok(false);
        }
        for load in &loads {
            self.list_place(space.id, from.block().start(), table, load);
        }
        let pages = loads.iter().flat_map(|l| l.k..l.k + l.pages);
        let busy = Busy::entries(source, table, pages.collect());
        drop(state);
        let (mut moved, mut done) = (0, Ok(()));
        while moved < loads.len() && done.is_ok() {
            done = self.carry(space, &busy, from, to, &loads[moved]);
            moved += usize::from(done.is_ok());
        }
        busy.end_by(self, |state| {
            if let Some(table) = state.table() {
                loads[moved..].iter().for_each(|l| put_back(table, l));
            }
            state.tidy();
        });
        done.map(|()| true)
    }

    /// Held pages among `i..i + n`, in runs of one folio with equal marks.
    fn held_runs(&self, table: &Table, i: u32, n: u32) -> Vec<Load> {
        let mut loads: Vec<Load> = Vec::new();
        for k in i..i + n {
            let e = table.get(k);
            let Kind::Mapped(pfn) = e.kind() else {
                continue;
            };
            if !E::Sharing::is_carried(self, e) {
                continue;
            }
            let head = self.head_of(pfn);
            match loads.last_mut() {
                Some(l)
                    if l.k + l.pages == k
                        && l.e.with_frame(pfn) == e
                        && l.pfn.add(l.pages) == pfn
                        && self.head_of(l.pfn) == head =>
                {
                    l.pages += 1;
                }
                _ => loads.push(Load {
                    k,
                    pages: 1,
                    pfn,
                    e,
                }),
            }
        }
        loads
    }

    /// Puts a folio that is pinned, but was never forked, into the reverse map with the place
    /// that it has. Block locked.
    fn list_place(&self, space: SpaceId, block: Vpn, table: &Table, load: &Load) {
        let head = self.head_of(load.pfn);
        if self.is_forked(head) {
            return;
        }
        let first = first_page(block.add(u64::from(load.k)), load.pfn, head);
        let start = load.k.wrapping_sub(load.pfn.0 - head.0);
        let refs = (0..order_pages(order_of(self.meta(head))))
            .filter(|&j| table.get(start.wrapping_add(j)).frame() == Some(head.add(j)))
            .count() as u32;
        let huge = false;
        let place = Place {
            space,
            first,
            refs,
            huge,
        };
        self.meta(head).clear_owner();
        self.rmap_set(head, vec![place]);
    }

    /// Moves one run, whose entries are busy.
    fn carry(
        &self,
        space: &Space,
        source: &Busy,
        from: Vpn,
        to: Vpn,
        load: &Load,
    ) -> Result<(), PlatformError> {
        let (pfn, n) = (load.pfn, load.pages);
        let head = self.head_of(pfn);
        let old = PageRun::new(space.id, from.block().start().add(u64::from(load.k)), n);
        let new = PageRun::new(space.id, Vpn(to.0 + (old.start.0 - from.0)), n);
        if !load.e.guarded() && !self.guard(old) {
            let why = Stop::NoMemory;
            return Err(PlatformError { at: 0, why });
        }
        let dest = space.block(self, new.start.block());
        let mut state = self.lock_settled(&dest, new.start.index(), n);
        if let Err(e) = self.map_shared_all(new, pfn, load.e.prot()) {
            state.tidy();
            return Err(e);
        }
        self.meta(head).add_refs(n);
        self.rmap_add(
            head,
            Place {
                space: space.id,
                first: first_page(new.start, pfn, head),
                refs: n,
                huge: false,
            },
        );
        if let Some(table) = state.table() {
            for j in 0..n {
                let e = load.e.with_frame(pfn.add(j)).dirtied();
                table.set(new.start.index() + j, e.guard(e.shared()));
            }
        }
        drop(state);
        self.discard_run(old);
        source.note(self, |state| {
            if let Some(table) = state.table() {
                (load.k..load.k + n).for_each(|k| table.set(k, Entry::NONE));
            }
        });
        E::Sharing::leave(self, head, space.id, first_page(old.start, pfn, head), n);
        self.put_folio(head, n);
        Ok(())
    }
}

fn put_back(table: &mut Table, load: &Load) {
    for j in 0..load.pages.min(BLOCK_PAGES - load.k) {
        let e = load.e.with_frame(load.pfn.add(j));
        table.set(load.k + j, e.guard(e.shared()));
    }
}
