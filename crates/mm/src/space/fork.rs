//! fork where the core copies on write: the child gets the parent's mappings, and shares its
//! pages until somebody writes.
//!
//! Block by block, each marked busy meanwhile: what is inactive is mapped back, mapped runs are
//! write-protected once and mapped into the child, entries become shared on both sides. What
//! needs no page is duplicated: zero entries, and stored pages, whose slots have one user more.
//! Nothing is charged: a folio's one charge stays until its last reference goes.
//!
//! A pinned page is copied for the child at once and stays the parent's own (R79). If there is
//! no memory for that, or the platform refuses, the fork fails as a whole: the child is ended,
//! and the parent's pages are exclusive again as far as that is proven.

use crate::engine::busy::Busy;
use crate::engine::folio::{first_page, order_of};
use crate::engine::lru::Which;
use crate::engine::rmap::Place;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{Content, PlatformError, Prot, Stop};
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap, HugeSwap, Presence, Table};
use crate::table::entry::{Entry, Kind};
use crate::table::marks::Marks;
use crate::table::vma::{OnFork, Vma};
use crate::units::{BLOCK_PAGES, BlockNr, FrameRun, PageRun, Pfn, SpaceId, Vpn, order_pages};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// One block on its way into the child.
struct Fork<'a> {
    parent: &'a Space,
    child: &'a Space,
    nr: BlockNr,
    /// What the VMAs say of each page; a page of none is left out.
    vmas: &'a [Vma],
}

impl Fork<'_> {
    fn page(&self, k: u32) -> Vpn {
        self.nr.start().add(u64::from(k))
    }

    fn copies(&self, k: u32) -> bool {
        let page = self.page(k);
        let near = self.vmas.partition_point(|v| v.start <= page);
        near.checked_sub(1)
            .map(|n| &self.vmas[n])
            .is_some_and(|v| v.contains(page) && v.on_fork == OnFork::Copy)
    }
}

impl<E: Env> Mm<E> {
    /// Says what forks do with a range from now on (`MADV_DONTFORK` and its kin).
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped.
    pub fn advise_fork(
        &self,
        id: SpaceId,
        start: Vpn,
        pages: u64,
        on_fork: OnFork,
    ) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        self.break_edges(&space, start, pages);
        space
            .edit_vmas(self, |tree| {
                tree.update(start, pages, |v| v.on_fork = on_fork)
            })
            .map_err(|hole| MapError::Hole(hole.0))
    }

    /// Makes a child of a space, which shares its pages until one side writes. Locks of memory
    /// are not inherited. Only where copy on write is the core's. No lock may be held; faults
    /// and reclaim may go on.
    ///
    /// # Errors
    /// [`MapError::Limit`] if there is no memory for copies of pinned pages,
    /// [`MapError::Platform`] if the system refuses; nothing has changed then but which pages
    /// are write-protected.
    pub fn fork(&self, id: SpaceId) -> Result<SpaceId, MapError> {
        E::Sharing::may_fork().map_err(MapError::Platform)?;
        let parent = self.space(id)?;
        let child = self.create_space(parent.base, parent.pages)?;
        let child = self.space(child)?;
        let done = {
            let _mmap = parent.mmap_lock.lock(self.machine());
            self.fork_into(&parent, &child)
        };
        if let Err(error) = done {
            self.abandon(&child);
            self.claim_all(&parent);
            return Err(error);
        }
        Ok(child.id)
    }

    /// Ends a child that nobody has seen. Unlike an unmapping this cannot be refused.
    fn abandon(&self, child: &Space) {
        child.edit_vmas(self, |tree| tree.remove(child.base, child.pages));
        self.zap_range(child, child.base, child.pages);
        self.end_space(child.id);
    }

    fn fork_into(&self, parent: &Space, child: &Space) -> Result<(), MapError> {
        let vmas = parent.read_vmas(self, |t| t.iter().copied().collect::<Vec<_>>());
        child.forbid_zero(parent.forbids_zero());
        for vma in vmas.iter().filter(|v| v.on_fork != OnFork::Leave) {
            self.protect_new(child, vma.start, vma.pages, vma.prot)?;
            let new = Vma {
                locked: false,
                uffd_missing: false,
                uffd_wp: false,
                ..*vma
            };
            child
                .edit_vmas(self, |tree| tree.insert(new))
                .map_err(|_| MapError::BadRange(vma.start, vma.pages))?;
        }
        for (block, first, _) in parent.parts(self, parent.base, parent.pages) {
            let nr = first.block();
            let fork = Fork {
                parent,
                child,
                nr,
                vmas: &vmas,
            };
            self.fork_block(&fork, &block)?;
        }
        Ok(())
    }

    fn fork_block(&self, fork: &Fork<'_>, block: &BlockRef) -> Result<(), MapError> {
        let state = self.lock_settled(block, 0, BLOCK_PAGES);
        if matches!(&*state, BlockState::Empty) {
            return Ok(());
        }
        let (busy, mut ours) = Busy::block(block, state);
        let mut theirs = BlockState::Empty;
        let done = self.fork_state(fork, &mut ours, &mut theirs);
        if !matches!(theirs, BlockState::Empty) {
            let child = fork.child.block(self, fork.nr);
            let mut state = child.lock(self);
            *state = theirs;
            state.tidy();
        }
        busy.end(self, ours);
        done
    }

    fn fork_state(
        &self,
        fork: &Fork<'_>,
        ours: &mut BlockState,
        theirs: &mut BlockState,
    ) -> Result<(), MapError> {
        self.activate_block(fork.parent, fork.nr.start(), ours)
            .map_err(MapError::Platform)?;
        let whole = (1..BLOCK_PAGES).all(|k| fork.copies(k) == fork.copies(0));
        match ours {
            // A page of it may be pinned: the others are shared without it.
            BlockState::Huge(h) if !whole || self.is_held(h.pfn) && !h.shared() => {
                self.split_table(fork.parent, fork.nr, ours);
            }
            BlockState::HugeSwapped(_) if !whole => drop(ours.table()),
            _ => {}
        }
        match ours {
            BlockState::Empty | BlockState::Busy => Ok(()),
            BlockState::Huge(_) | BlockState::HugeSwapped(_) if !fork.copies(0) => Ok(()),
            BlockState::Huge(h) => {
                *theirs = BlockState::Huge(self.fork_huge(fork, h)?);
                Ok(())
            }
            BlockState::HugeSwapped(s) => {
                let stored = BLOCK_PAGES - s.zero.count();
                self.share_swapped(s.first, stored, 1);
                self.stats().add(Item::NrSwapped, u64::from(stored));
                self.stats().add(Item::NrZero, u64::from(s.zero.count()));
                let copy = HugeSwap {
                    marks: of_child(s.marks),
                    ..**s
                };
                *theirs = BlockState::HugeSwapped(Box::new(copy));
                Ok(())
            }
            BlockState::Table(table) => {
                let mut new = Table::new();
                let done = self.fork_table(fork, table, &mut new);
                *theirs = BlockState::Table(new);
                done
            }
        }
    }

    fn fork_huge(&self, fork: &Fork<'_>, h: &mut HugeMap) -> Result<HugeMap, MapError> {
        let start = fork.nr.start();
        let run = |space: &Space| PageRun::new(space.id, start, BLOCK_PAGES);
        if !h.guarded() {
            if !self.guard(run(fork.parent)) {
                return Err(NO_MEMORY);
            }
            h.has = Presence::Guarded;
        }
        self.meta(h.pfn).add_refs(1);
        if let Err(e) = self.map_shared_all(run(fork.child), h.pfn, h.prot) {
            self.put_folio(h.pfn, 1);
            return Err(MapError::Platform(e));
        }
        h.has = Presence::Shared;
        let place = |space: &Space| Place {
            space: space.id,
            first: start,
            refs: 1,
            huge: true,
        };
        self.rmap_fork(h.pfn, place(fork.parent), place(fork.child));
        self.stats().add(Item::NrAnon, u64::from(BLOCK_PAGES));
        Ok(HugeMap {
            locked: false,
            marks: of_child(h.marks),
            ..*h
        })
    }

    fn fork_table(
        &self,
        fork: &Fork<'_>,
        table: &mut Table,
        new: &mut Table,
    ) -> Result<(), MapError> {
        let mut k = 0;
        while k < BLOCK_PAGES {
            let e = table.get(k);
            if !fork.copies(k) {
                k += 1;
                continue;
            }
            let mut n = 1;
            match e.kind() {
                Kind::None | Kind::Busy | Kind::Inactive(_) | Kind::Open => {}
                Kind::Zero { dropped, .. } => {
                    self.stats().add(Item::NrZero, u64::from(dropped));
                    let mapped = false;
                    new.set(k, inherited(e, Kind::Zero { mapped, dropped }));
                }
                Kind::Swapped(slot) => {
                    self.share_swapped(slot, 1, 1);
                    self.stats().add(Item::NrSwapped, 1);
                    new.set(k, inherited(e, e.kind()));
                }
                Kind::Mapped(pfn) if !e.shared() && E::Sharing::is_pinned(self, pfn) => {
                    self.copy_pinned(fork, table, new, k, pfn)?;
                }
                Kind::Mapped(pfn) => {
                    n = self.run_of(fork, table, k, pfn);
                    self.fork_run(fork, table, new, (k, n), pfn)?;
                }
            }
            k += n;
        }
        Ok(())
    }

    /// Pages from `k` on that can be shared in one go: of one folio, in a row, none pinned.
    fn run_of(&self, fork: &Fork<'_>, table: &Table, k: u32, pfn: Pfn) -> u32 {
        let head = self.head_of(pfn);
        let end = head.0 + order_pages(order_of(self.meta(head)));
        let joins = |i: u32| {
            let e = table.get(k + i);
            pfn.0 + i < end
                && e.kind() == Kind::Mapped(pfn.add(i))
                && e.prot() == table.get(k).prot()
                && fork.copies(k + i)
                && (e.shared() || !E::Sharing::is_pinned(self, pfn.add(i)))
        };
        let left = BLOCK_PAGES - k;
        (1..left).find(|&i| !joins(i)).unwrap_or(left)
    }

    fn fork_run(
        &self,
        fork: &Fork<'_>,
        table: &mut Table,
        new: &mut Table,
        (k, n): (u32, u32),
        pfn: Pfn,
    ) -> Result<(), MapError> {
        let head = self.head_of(pfn);
        let run = |space: &Space| PageRun::new(space.id, fork.page(k), n);
        if (k..k + n).any(|i| !table.get(i).guarded()) {
            if !self.guard(run(fork.parent)) {
                return Err(NO_MEMORY);
            }
            for i in k..k + n {
                let e = table.get(i);
                table.set(i, e.guard(e.shared()));
            }
        }
        self.meta(head).add_refs(n);
        let prot: Prot = table.get(k).prot();
        if let Err(e) = self.map_shared_all(run(fork.child), pfn, prot) {
            self.put_folio(head, n);
            return Err(MapError::Platform(e));
        }
        let first = first_page(fork.page(k), pfn, head);
        let place = |space: &Space, refs| Place {
            space: space.id,
            first,
            refs,
            huge: false,
        };
        // Of a folio of one place all entries are in this block.
        let start = k.wrapping_sub(pfn.0 - head.0);
        let pages = order_pages(order_of(self.meta(head)));
        let here = (0..pages)
            .filter(|&j| table.get(start.wrapping_add(j)).frame() == Some(head.add(j)))
            .count() as u32;
        self.rmap_fork(head, place(fork.parent, here), place(fork.child, n));
        for i in k..k + n {
            let e = table.get(i).guard(true);
            table.set(i, e);
            new.set(i, inherited(e, e.kind()).guard(true));
        }
        self.stats().add(Item::NrAnon, u64::from(n));
        Ok(())
    }

    /// Copies a pinned page for the child. It is the parent's own still; its next write finds
    /// it protected, and makes it writable again.
    fn copy_pinned(
        &self,
        fork: &Fork<'_>,
        table: &mut Table,
        new: &mut Table,
        k: u32,
        pfn: Pfn,
    ) -> Result<(), MapError> {
        let e = table.get(k);
        let page = fork.page(k);
        if !e.guarded() {
            if !self.guard(PageRun::new(fork.parent.id, page, 1)) {
                return Err(NO_MEMORY);
            }
            table.set(k, e.guard(false));
        }
        let copy = loop {
            match self.alloc_folio(0, 1, (fork.child.id, page)) {
                Ok(copy) => break copy,
                Err(e) => self.make_room(e).map_err(|_| MapError::Limit)?,
            }
        };
        let one = FrameRun::new(copy, 1);
        let run = PageRun::new(fork.child.id, page, 1);
        let done = match self.bad_frame(FrameRun::new(pfn, 1)) {
            Some(_) => Err(MapError::Fault(page)),
            None => self
                .copy_frames(one, pfn)
                .map(|_| ())
                .and_then(|()| self.map_all(run, copy, Content::Parked, e.prot()))
                .map_err(MapError::Platform),
        };
        if done.is_err() {
            self.release(one);
            self.free_unused(copy);
            return done;
        }
        // Mapped as a new page is: dirty.
        new.set(k, inherited(e, Kind::Mapped(copy)).dirtied());
        self.stats().add(Item::NrAnon, 1);
        self.stats().add(Item::Pgcopy, 1);
        self.lru_add(copy, Which::Active);
        Ok(())
    }

    /// Makes exclusive again what is proven to be a space's own.
    fn claim_all(&self, space: &Space) {
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let nr = first.block();
            let mut state = self.lock_settled(&block, 0, BLOCK_PAGES);
            match &mut *state {
                BlockState::Huge(h) => drop(self.claim_huge(space, nr, h, false)),
                BlockState::Table(table) => self.claim_shared(space, nr, table),
                _ => {}
            }
        }
    }
}

const NO_MEMORY: MapError = MapError::Platform(PlatformError {
    at: 0,
    why: Stop::NoMemory,
});

/// The child's entry for a page: the same rights, not locked.
fn inherited(e: Entry, kind: Kind) -> Entry {
    Entry::new(kind, e.prot(), false).marked(of_child(e.marks()))
}

/// A child has no userfaultfd that could be told.
fn of_child(marks: Marks) -> Marks {
    Marks {
        uffd_wp: false,
        ..marks
    }
}
