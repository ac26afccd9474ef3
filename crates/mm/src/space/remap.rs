//! mremap: a mapping shrinks, grows in place, or moves with its pages.
//!
//! A move unmaps what is resident (the bytes rest in their frames), hands the entries over to
//! the new block, and lets faults take them back there. New places are chosen with the old
//! one's offset in its block, so that huge pages stay whole; a fixed destination may force
//! them apart.

use crate::engine::folio::order_of;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::platform::{PlatformError, Prot, Stop};
use crate::sync::Guard;
use crate::table::block::{BlockState, Table};
use crate::table::entry::{Entry, Kind};
use crate::table::vma::Vma;
use crate::units::{BLOCK_PAGES, BlockNr, PageMask, PageRun, Pfn, SpaceId, Vpn, order_pages};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

/// Where the mapping may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// Only where it is.
    InPlace,
    /// Elsewhere if it must (MREMAP_MAYMOVE).
    MayMove,
    /// Exactly there, replacing what is there (MREMAP_FIXED).
    Fixed(Vpn),
    /// The pages move, there or anywhere; the old range stays mapped, with holes
    /// (MREMAP_DONTUNMAP). The length does not change.
    Leave(Option<Vpn>),
}

impl<E: Env> Mm<E> {
    /// Resizes or moves `old_pages` at `old`, which lie in one VMA, to `new_pages`. Returns
    /// where the mapping begins now. New pages are holes.
    pub fn mremap(
        &self,
        id: SpaceId,
        old: Vpn,
        old_pages: u64,
        new_pages: u64,
        how: Remap,
    ) -> Result<Vpn, MapError> {
        let space = self.space(id)?;
        if !space.contains(old, old_pages) || new_pages == 0 {
            return Err(MapError::BadRange(old, old_pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        let vma = space
            .vma(self, old)
            .0
            .filter(|v| old.0 + old_pages <= v.start.0 + v.pages)
            .ok_or(MapError::Hole(old))?;
        let keep = old_pages.min(new_pages);
        let leave = matches!(how, Remap::Leave(_));
        if leave && old_pages != new_pages {
            return Err(MapError::BadRange(old, new_pages));
        }
        if let Remap::Fixed(to) | Remap::Leave(Some(to)) = how {
            let apart = to.0 + new_pages <= old.0 || old.0 + old_pages <= to.0;
            if !space.contains(to, new_pages) || !apart {
                return Err(MapError::BadRange(to, new_pages));
            }
            self.unmap_range(&space, to, new_pages)?;
            return self.move_mapping(&space, &vma, old, old_pages, to, new_pages, leave);
        }
        if new_pages < old_pages {
            self.unmap_range(&space, old.add(keep), old_pages - keep)?;
        }
        if new_pages <= old_pages && !leave {
            return Ok(old);
        }
        let (grown, more) = (old.add(old_pages), new_pages - old_pages);
        let room = !leave
            && space.contains(grown, more)
            && space.read_vmas(self, |t| t.range(grown, more).next().is_none());
        if room {
            self.grow(&space, &vma, grown, more)?;
            return Ok(old);
        }
        if how == Remap::InPlace {
            return Err(MapError::NoRoom(new_pages));
        }
        let color = old.index() as u64;
        let area = self.find_area(&space, new_pages + color, BLOCK_PAGES as u64)?;
        self.move_mapping(
            &space,
            &vma,
            old,
            old_pages,
            area.add(color),
            new_pages,
            leave,
        )
    }

    /// Maps pages behind a VMA with its attributes.
    fn grow(&self, space: &Space, vma: &Vma, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.protect_new(space, start, pages, vma.prot)?;
        let grown = Vma {
            start,
            pages,
            soft_dirty: true,
            ..*vma
        };
        self.insert(space, grown)
    }

    pub(super) fn insert(&self, space: &Space, vma: Vma) -> Result<(), MapError> {
        space
            .edit_vmas(self, |tree| tree.insert(vma))
            .map_err(|_| MapError::BadRange(vma.start, vma.pages))
    }

    #[allow(clippy::too_many_arguments)]
    fn move_mapping(
        &self,
        space: &Space,
        vma: &Vma,
        old: Vpn,
        old_pages: u64,
        to: Vpn,
        new_pages: u64,
        leave: bool,
    ) -> Result<Vpn, MapError> {
        let keep = old_pages.min(new_pages);
        let parts: Vec<_> = space.parts(self, old, keep).collect();
        // A page that somebody holds cannot move: find out before anything has changed.
        for (block, first, n) in &parts {
            let mut state = self.lock_settled(block, first.index(), *n);
            self.unmap_run(space, &mut state, *first, *n)
                .map_err(MapError::Platform)?;
        }
        // Then what the platform may refuse.
        self.protect_new(space, to, new_pages, vma.prot)?;
        if !leave && let Err(error) = self.protect_range(space, old, old_pages, Prot::NONE) {
            let _ = self.protect_range(space, old, old_pages, vma.prot);
            let _ = self.protect_range(space, to, new_pages, Prot::NONE);
            return Err(error);
        }
        // While pages move neither range is in the tree: a fault finds no mapping, and cannot
        // put a page where one has just been taken away or is about to come.
        space.edit_vmas(self, |tree| tree.remove(old, old_pages));
        for (block, first, n) in parts {
            let mut at = 0;
            while at < n {
                let from = first.add(at as u64);
                let dest = Vpn(to.0 + (from.0 - old.0));
                let len = (n - at).min(BLOCK_PAGES - dest.index());
                self.move_run(space, &block, from, dest, len)
                    .map_err(MapError::Platform)?;
                at += len;
            }
        }
        if old_pages > keep {
            self.zap_range(space, old.add(keep), old_pages - keep);
        }
        if leave {
            let left = Vma {
                start: old,
                pages: old_pages,
                // Locked or not goes with the pages.
                locked: false,
                ..*vma
            };
            self.insert(space, left)?;
        }
        let from = Vma { start: old, ..*vma };
        let moved = Vma {
            soft_dirty: true,
            ..from.moved(to, new_pages)
        };
        self.insert(space, moved)?;
        if vma.locked {
            // Of a huge page that was taken apart there is a part at the old place, too.
            self.show_locked(space, old, keep);
            self.show_locked(space, to, keep);
        }
        Ok(to)
    }

    /// Unmaps the pages of a block's part, all or an error. Block locked.
    fn unmap_run(
        &self,
        space: &Space,
        state: &mut BlockState,
        first: Vpn,
        n: u32,
    ) -> Result<(), PlatformError> {
        match state {
            BlockState::Huge(h) => {
                if E::Sharing::is_carried_huge(self, space, first.block(), h) {
                    return Ok(());
                }
                self.forsake_huge(h);
                self.unmap_huge(space, first.block(), h)
            }
            BlockState::Table(table) => {
                self.close_entries(space, first.block().start(), table, first.index(), n)?;
                self.forsake(table, first.index(), n);
                self.unmap_moving(space, first, table, n);
                let stays = |e: Entry| {
                    matches!(e.kind(), Kind::Mapped(_)) && !E::Sharing::is_carried(self, e)
                };
                match (first.index()..first.index() + n).find(|&k| stays(table.get(k))) {
                    Some(k) => Err(PlatformError {
                        at: k - first.index(),
                        why: Stop::Busy,
                    }),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Unmaps what is mapped of a part, on its way to another place: locked pages too, which
    /// are carried where the core copies on write. Block locked.
    fn unmap_moving(&self, space: &Space, first: Vpn, table: &mut Table, n: u32) {
        let mut locked = PageMask::EMPTY;
        for k in first.index()..first.index() + n {
            let e = table.get(k);
            if e.locked() && !E::Sharing::is_carried(self, e) {
                locked.set(k);
                table.set(k, e.with_attrs(e.prot(), false));
            }
        }
        self.unmap_entries(space, first.block(), table, first.index(), n);
        for k in locked.pages() {
            let e = table.get(k);
            table.set(k, e.with_attrs(e.prot(), true));
        }
    }

    /// Maps what rests of locked pages in the blocks of a range.
    fn show_locked(&self, space: &Space, start: Vpn, pages: u64) {
        let first = start.block().start();
        let end = (start.0 + pages).next_multiple_of(u64::from(BLOCK_PAGES));
        for (block, first, n) in space.parts(self, first, end - first.0) {
            let mut state = self.lock_settled(&block, first.index(), n);
            let is_locked = |k: &u32| state.entry(*k).locked();
            let locked = (0..BLOCK_PAGES).filter(is_locked).collect();
            self.map_again(space, first.block(), &mut state, 0, &locked);
        }
    }

    /// Moves the pages of a run, which lies in one block on both sides.
    fn move_run(
        &self,
        space: &Space,
        source: &BlockRef,
        from: Vpn,
        to: Vpn,
        n: u32,
    ) -> Result<(), PlatformError> {
        let mut whole = n == BLOCK_PAGES && to.index() == 0;
        loop {
            if self.carry_held(space, source, from, to, n)? {
                // The destination has pages already.
                whole = false;
            }
            let mut state = self.lock_settled(source, from.index(), n);
            if matches!(&*state, BlockState::Huge(_)) && !whole {
                drop(state);
                self.break_huge(space, source, from.block(), PageMask::EMPTY);
                continue;
            }
            self.unmap_run(space, &mut state, from, n)?;
            if is_mapped(&state, from.index(), n) {
                // Somebody has pinned a page since.
                continue;
            }
            if let BlockState::Table(table) = &mut *state {
                self.hide_zeros(space.id, table, from, n);
            }
            if !matches!(&*state, BlockState::Empty) {
                self.carry_memory(PageRun::new(space.id, from, n), to);
            }
            if self.hand_over(space, source, state, (from, to, n), whole) {
                return Ok(());
            }
        }
    }

    /// Moves the entries of a run, which lies in one block on both sides, from a locked block to
    /// their new one, of which nothing is locked; as one if that is said, where they are the whole
    /// block. No part of a huge page. False: somebody holds a folio that has to part.
    pub(super) fn hand_over(
        &self,
        space: &Space,
        source: &BlockRef,
        mut state: Guard<'_, BlockState, E::M>,
        (from, to, n): (Vpn, Vpn, u32),
        whole: bool,
    ) -> bool {
        if whole {
            let moved = core::mem::take(&mut *state);
            match &moved {
                BlockState::Table(table) => self.rehome(space, table.entries(), to),
                BlockState::Huge(h) => self.meta(h.pfn).set_owner(space.id, to),
                _ => {}
            }
            drop(state);
            let dest = space.block(self, to.block());
            let mut there = self.lock_settled(&dest, 0, BLOCK_PAGES);
            (dest.huge_zero).store(source.huge_zero.load(Relaxed), Relaxed);
            *there = dirtied(moved);
            return true;
        }
        if matches!(&*state, BlockState::Empty) {
            return true;
        }
        let Some(table) = state.table() else {
            return false;
        };
        // An entry at its new place is dirty.
        let old = from.index()..from.index() + n;
        let moved: Vec<Entry> = old.clone().map(|k| table.get(k).dirtied()).collect();
        if !self.part_folios(from.block(), table, &moved) {
            drop(state);
            self.machine().preempt(Site::Relock);
            return false;
        }
        old.for_each(|k| table.set(k, Entry::NONE));
        state.tidy();
        drop(state);
        self.rehome(space, moved.iter().copied(), to);
        self.arrive(space, to, moved);
        true
    }

    /// Puts entries that have moved into their block.
    fn arrive(&self, space: &Space, to: Vpn, moved: Vec<Entry>) {
        let dest = space.block(self, to.block());
        let mut state = self.lock_settled(&dest, to.index(), moved.len() as u32);
        dest.huge_zero.store(false, Relaxed);
        if let Some(table) = state.table() {
            for (k, e) in moved.into_iter().enumerate().filter(|m| !m.1.is_none()) {
                table.set(to.index() + k as u32, e);
            }
        }
        state.tidy();
    }

    /// Tells the folios of entries where they live now. A folio of several pages moves as a
    /// whole here: its head's place says where it begins.
    fn rehome(&self, space: &Space, entries: impl Iterator<Item = Entry>, to: Vpn) {
        for (k, e) in entries.enumerate() {
            if let Some(p) = e.frame() {
                let head = self.head_of(p);
                let first = (to.0 + k as u64).wrapping_sub((p.0 - head.0) as u64);
                self.meta(head).set_owner(space.id, Vpn(first));
            }
        }
    }

    /// Splits the large folios of some entries of a block's table, so that these can go; false if
    /// somebody holds one. Block locked.
    fn part_folios(&self, nr: BlockNr, table: &Table, entries: &[Entry]) -> bool {
        let (mut last, mut parted) = (None, true);
        for p in entries.iter().filter_map(|e| e.frame()) {
            let head = self.head_of(p);
            if last != Some(head) && order_of(self.meta(head)) > 0 {
                parted &= self.split_small(head, nr, table);
            }
            last = Some(head);
        }
        parted
    }

    /// Splits a small folio where it is, so that its pages can part. Block locked; false if
    /// somebody holds it.
    fn split_small(&self, head: Pfn, nr: BlockNr, table: &Table) -> bool {
        let meta = self.meta(head);
        let Some((_, page)) = meta.owner() else {
            return false;
        };
        let mut keep = PageMask::EMPTY;
        let pages = order_pages(order_of(meta));
        for k in 0..pages {
            let at = Vpn(page.0 + k as u64);
            if at.block() == nr && table.get(at.index()).frame() == Some(head.add(k)) {
                keep.set(k);
            }
        }
        let Some(folio) = self.freeze_folio(head, keep.count()) else {
            return false;
        };
        self.split_frozen(folio, &keep, 0, None);
        let pages = pages.min(BLOCK_PAGES - page.index());
        self.sort_lists(table, page.index(), pages);
        true
    }
}

/// Whether a page of a part is mapped.
fn is_mapped(state: &BlockState, first: u32, n: u32) -> bool {
    (first..first + n).any(|k| matches!(state.entry(k).kind(), Kind::Mapped(_)))
}

/// A block as it is at its new place, where all of it is dirty.
fn dirtied(mut state: BlockState) -> BlockState {
    match &mut state {
        BlockState::Table(table) => table.present_mut().for_each(|e| *e = e.dirtied()),
        BlockState::Huge(h) => h.marks = h.marks.dirtied(),
        BlockState::HugeSwapped(s) => s.marks = s.marks.dirtied(),
        BlockState::Empty | BlockState::Busy => {}
    }
    state
}
