//! mprotect, and attributes of mapped ranges.
//!
//! Rights are in three places: in the VMA tree, in the entries, and with the platform, which
//! may refuse half-way (the kernel allows a process so many mappings and no more). While a
//! change is on its way, and if it cannot be undone also after it, tree and entries never
//! promise *less* than the platform allows: a page that can be written must not be copied as
//! one that cannot, and a fault must not be taken for one without a mapping. What they promise
//! too much the platform answers with a signal, before anybody here hears of it.

use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::platform::Prot;
use crate::table::block::BlockState;
use crate::table::vma::Vma;
use crate::units::{BLOCK_PAGES, PageMask, SpaceId, Vpn};
use alloc::vec::Vec;

/// Who is told of new rights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    /// Tree and entries only.
    Core,
    /// The platform too, for pages whose entries change.
    Platform,
}

impl<E: Env> Mm<E> {
    /// Changes the rights of a range, all of which must be mapped.
    ///
    /// # Errors
    /// [`MapError::Hole`]; [`MapError::Platform`] if the platform refused, and the rights are
    /// what they were.
    pub fn mprotect(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<(), MapError> {
        let space = self.space(space)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        let before = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        let both = |v: &mut Vma| v.prot = v.prot.or(prot);
        if let Some(hole) = space.read_vmas(self, |t| t.first_hole(start, pages)) {
            return Err(MapError::Hole(hole));
        }
        if before.iter().all(|v| v.prot == prot) {
            return Ok(());
        }
        if before.iter().any(|v| v.prot.or(prot) != v.prot) {
            self.set_attrs(&space, start, pages, both, Tell::Core)?;
        }
        let done = self.narrow(&space, start, pages, prot);
        if done.is_err() {
            self.set_attrs(&space, start, pages, both, Tell::Core)?;
            if self.rights_back(&space, &before).is_ok() {
                for vma in &before {
                    let old = |v: &mut Vma| v.prot = vma.prot;
                    self.set_attrs(&space, vma.start, vma.pages, old, Tell::Core)?;
                }
            }
        } else if before.iter().any(|v| !v.prot.write) {
            self.open_writable(&space, start, pages);
        }
        done
    }

    /// Gives a range its rights, none of which is new for tree and entries.
    fn narrow(&self, space: &Space, start: Vpn, pages: u64, prot: Prot) -> Result<(), MapError> {
        self.break_edges(space, start, pages);
        self.protect_range(space, start, pages, prot)?;
        match space.read_vmas(self, |t| t.range(start, pages).all(|v| v.prot == prot)) {
            true => Ok(()),
            false => self.set_attrs(space, start, pages, |v| v.prot = prot, Tell::Platform),
        }
    }

    /// Gives ranges the rights with the platform that their VMAs had, after a refusal. That
    /// takes no more mappings than there were before.
    pub(crate) fn rights_back(&self, space: &Space, before: &[Vma]) -> Result<(), MapError> {
        let back = |v: &Vma| self.protect_range(space, v.start, v.pages, v.prot);
        before.iter().map(back).fold(Ok(()), Result::and)
    }

    /// Number of VMAs; 0 if there is no such space.
    pub fn mappings(&self, space: SpaceId) -> usize {
        match self.space(space) {
            Ok(space) => space.read_vmas(self, |t| t.len()),
            Err(_) => 0,
        }
    }

    /// Locks the pages of a range in memory as they come, or no longer.
    pub(crate) fn set_locked(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        locked: bool,
    ) -> Result<(), MapError> {
        let space = self.space(space)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        self.set_attrs(&space, start, pages, |v| v.locked = locked, Tell::Core)
    }

    /// Changes attributes of the VMAs of a range, and of the pages in it.
    fn set_attrs(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
        edit: impl Fn(&mut Vma),
        tell: Tell,
    ) -> Result<(), MapError> {
        space
            .edit_vmas(self, |tree| tree.update(start, pages, &edit))
            .map_err(|hole| MapError::Hole(hole.0))?;
        let after = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        for vma in &after {
            for (block, first, n) in space.parts(self, vma.start, vma.pages) {
                self.set_part(space, &block, first, n, vma, tell)?;
            }
        }
        Ok(())
    }

    /// One block's part of a change, under its lock. A page that came while the change was on
    /// its way may be mapped with more rights than it is to have: the platform is told again.
    fn set_part(
        &self,
        space: &Space,
        block: &BlockRef,
        first: Vpn,
        n: u32,
        vma: &Vma,
        tell: Tell,
    ) -> Result<(), MapError> {
        let (mut state, i) = loop {
            let state = self.lock_settled(block, first.index(), n);
            if matches!(&*state, BlockState::Huge(_)) && n < BLOCK_PAGES {
                drop(state);
                self.break_huge(space, block, first.block(), PageMask::EMPTY);
                continue;
            }
            break (state, first.index());
        };
        let stale = (i..i + n).any(|k| {
            let e = state.entry(k);
            !e.is_none() && e.prot() != vma.prot
        });
        if stale && tell == Tell::Platform {
            self.protect_range(space, first, u64::from(n), vma.prot)?;
        }
        match &mut *state {
            BlockState::Huge(h) => {
                // Locked it was not looked at.
                if h.locked && !vma.locked {
                    self.queue_new(h.pfn);
                }
                (h.prot, h.locked) = (vma.prot, vma.locked);
            }
            BlockState::HugeSwapped(s) if n == BLOCK_PAGES => s.prot = vma.prot,
            BlockState::HugeSwapped(_) | BlockState::Table(_) => {
                if let Some(table) = state.table() {
                    if vma.locked {
                        // What is locked is known page by page.
                        self.close_entries(space, first.block().start(), table, i, n)
                            .map_err(MapError::Platform)?;
                    }
                    for k in i..i + n {
                        table.set(k, table.get(k).with_attrs(vma.prot, vma.locked));
                    }
                }
            }
            BlockState::Empty | BlockState::Busy => {}
        }
        Ok(())
    }
}
