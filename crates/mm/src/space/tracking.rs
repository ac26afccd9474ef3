//! What is tracked of each page: whether it was written since its program last asked
//! (soft-dirty), and whether the program wants to be told of the next write (the write-protect
//! mode of userfaultfd).
//!
//! Both belong to the address, not to the frame: they stay when the page is split off, unmapped,
//! stored, read back, dropped because it holds zeros, or moved by mremap (R68, R127). They go
//! with the page itself: a hole has none. A page with one of them is guarded as long as it is
//! mapped, so that the write is a fault:
//!
//! | mark | set by | a write | a fork's child |
//! |---|---|---|---|
//! | clean (not soft-dirty) | [`Mm::clear_soft_dirty`] | ends it | inherits it |
//! | write-protected | [`Mm::uffd_write_protect`] | is refused, the program told | is without |
//!
//! *Clean* and not *dirty* is what is written down, so that whoever forgets it says too much and
//! never too little. A huge page has one of each for all its pages, as the kernel's has; when it
//! is taken apart each page gets them. mremap makes what it moves dirty, also holes: other bytes
//! are at that address now. A new mapping is dirty as a whole until it is cleared.

use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::table::block::{BlockState, Presence, Table};
use crate::table::entry::Kind;
use crate::table::marks::Marks;
use crate::units::{BLOCK_PAGES, PageMask, PageRun, SpaceId, Vpn};

/// What a program may read of a page (`/proc/pid/pagemap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageInfo {
    /// Resident, mapped or at rest; the zero page is not.
    pub present: bool,
    /// In the store.
    pub swapped: bool,
    /// Written since the last [`Mm::clear_soft_dirty`], or its mapping is newer.
    pub soft_dirty: bool,
    /// Protected by [`Mm::uffd_write_protect`].
    pub uffd_wp: bool,
}

impl<E: Env> Mm<E> {
    /// From now on no page of the space is soft-dirty until it is written (4 written to
    /// `/proc/pid/clear_refs`). A page that the platform cannot protect stays soft-dirty.
    ///
    /// # Errors
    /// [`MapError::NoSpace`].
    pub fn clear_soft_dirty(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        let _mmap = space.mmap_lock.lock(self.machine());
        space.edit_vmas(self, |tree| tree.clear_soft_dirty());
        for (block, first, n) in space.parts(self, space.base, space.pages) {
            let clean = |old: Marks| Marks { clean: true, ..old };
            self.mark_part(&space, &block, first, n, clean);
        }
        Ok(())
    }

    /// Changes the marks of the pages of a block's part, all that are no holes. A huge page of
    /// which a part would differ is made a table first, and what is open is closed. What cannot
    /// be protected stays as it is; false if there was any.
    pub(crate) fn mark_part(
        &self,
        space: &Space,
        block: &BlockRef,
        first: Vpn,
        n: u32,
        change: impl Fn(Marks) -> Marks,
    ) -> bool {
        let i = first.index();
        let mut state = loop {
            let state = self.lock_settled(block, i, n);
            match &*state {
                BlockState::Huge(h) if n < BLOCK_PAGES && change(h.marks) != h.marks => {}
                _ => break state,
            }
            drop(state);
            self.break_huge(space, block, first.block(), PageMask::EMPTY);
        };
        match &mut *state {
            BlockState::Empty | BlockState::Busy => true,
            BlockState::Huge(h) => {
                let marks = change(h.marks);
                if h.has == Presence::Mapped && marks.any() {
                    let run = PageRun::new(space.id, first.block().start(), BLOCK_PAGES);
                    if !self.guard(run) {
                        return false;
                    }
                    h.has = Presence::Guarded;
                }
                h.marks = marks;
                true
            }
            BlockState::HugeSwapped(s) if n == BLOCK_PAGES => {
                s.marks = change(s.marks);
                true
            }
            BlockState::HugeSwapped(_) | BlockState::Table(_) => {
                let Some(table) = state.table() else {
                    return true;
                };
                // Of what is open no write is heard. What the system refuses to close stays so.
                let _ = self.close_entries(space, first.block().start(), table, i, n);
                let adds = |k: u32, table: &Table| {
                    let e = table.get(k);
                    matches!(e.kind(), Kind::Mapped(_)) && change(e.marks()).any()
                };
                self.guard_table(space.id, first.block(), table, |k, table| {
                    (i..i + n).contains(&k) && adds(k, table)
                });
                let mut all = true;
                for k in i..i + n {
                    let e = table.get(k);
                    let marked = e.marked(change(e.marks()));
                    match e.is_open() || adds(k, table) && !e.guarded() {
                        true => all = false,
                        false => table.set(k, marked),
                    }
                }
                state.tidy();
                all
            }
        }
    }

    /// What a program may know of one of its pages. `None`: nothing is mapped there.
    pub fn page_info(&self, id: SpaceId, page: Vpn) -> Option<PageInfo> {
        let space = self.space(id).ok()?;
        let vma = space.contains(page, 1).then(|| space.vma(self, page).0)??;
        let mut info = PageInfo {
            soft_dirty: vma.soft_dirty,
            ..PageInfo::default()
        };
        let Some(block) = space.block_if_any(self, page.block()) else {
            return Some(info);
        };
        let e = self
            .lock_settled(&block, page.index(), 1)
            .entry(page.index());
        info.present = e.frame().is_some();
        info.swapped = matches!(e.kind(), Kind::Swapped(_));
        info.soft_dirty |= !e.is_none() && !e.marks().clean;
        info.uffd_wp = e.marks().uffd_wp;
        Some(info)
    }
}
