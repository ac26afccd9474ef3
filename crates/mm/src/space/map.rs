//! mmap, munmap, mlock.

use crate::charge::Charge;
use crate::engine::space::{MapError, Space};
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::fault::FaultError;
use crate::mm::Mm;
use crate::platform::Prot;
use crate::table::vma::{Search, Vma};
use crate::units::{SpaceId, Vpn};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Maps `pages` pages of private anonymous memory. `at`: exactly there, replacing what is
    /// there (MAP_FIXED); `None`: in a free area, aligned to `align` pages.
    pub fn mmap(
        &self,
        space: SpaceId,
        at: Option<Vpn>,
        pages: u64,
        align: u64,
        prot: Prot,
    ) -> Result<Vpn, MapError> {
        let space = self.space(space)?;
        let _mmap = space.mmap_lock.lock(self.machine());
        let start = match at {
            Some(start) if !space.contains(start, pages) => {
                return Err(MapError::BadRange(start, pages));
            }
            Some(start) => {
                // What cannot be closed would be the system's in the new mapping still.
                self.close_range(&space, start, pages)?;
                self.unmap_range(&space, start, pages)?;
                start
            }
            None => self.find_area(&space, pages, align)?,
        };
        self.insert_new(&space, start, pages, prot)?;
        if at.is_some() {
            self.open_writable(&space, start, pages);
        }
        Ok(start)
    }

    /// Rights and a VMA for a range that was not mapped.
    pub(crate) fn insert_new(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<(), MapError> {
        self.protect_new(space, start, pages, prot)?;
        let vma = Vma::new(start, pages, prot);
        space
            .edit_vmas(self, |tree| tree.insert(vma))
            .map_err(|_| MapError::BadRange(start, pages))
    }

    /// A free area of the space's window.
    pub(crate) fn find_area(&self, space: &Space, pages: u64, align: u64) -> Result<Vpn, MapError> {
        if pages == 0 {
            return Err(MapError::BadRange(space.base, 0));
        }
        space
            .read_vmas(self, |t| {
                t.find_free(space.base, space.pages, pages, align.max(1), Search::Bottom)
            })
            .ok_or(MapError::NoRoom(pages))
    }

    /// Unmaps a range; holes in it are no error.
    pub fn munmap(&self, space: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        let space = self.space(space)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        self.unmap_range(&space, start, pages)
    }

    /// Unmaps; mmap lock held.
    pub(crate) fn unmap_range(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
    ) -> Result<(), MapError> {
        let parts = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        self.break_edges(space, start, pages);
        // First what can be refused (a part of a mapping is one mapping more for the platform).
        for vma in &parts {
            if let Err(error) = self.protect_range(space, vma.start, vma.pages, Prot::NONE) {
                let _ = self.rights_back(space, &parts);
                return Err(error);
            }
        }
        space.edit_vmas(self, |tree| tree.remove(start, pages));
        for vma in &parts {
            self.zap_range(space, vma.start, vma.pages);
        }
        Ok(())
    }

    /// Keeps a range resident: brings every page in and exempts it from reclaim. Fails with
    /// [`MapError::Limit`] when it does not fit; what was brought in stays, unlocked.
    pub fn mlock(&self, space: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        if pages > self.charge().max() {
            return Err(MapError::Limit);
        }
        self.set_locked(space, start, pages, true)?;
        let populated = self.populate(space, start, pages, true);
        if populated.is_err() {
            self.munlock(space, start, pages)?;
        }
        populated
    }

    /// Keeps what is resident of a range, and what becomes so (mlock2 with MLOCK_ONFAULT).
    pub fn lock_present(&self, space: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.set_locked(space, start, pages, true)
    }

    /// Ends what [`Mm::mlock`] began.
    pub fn munlock(&self, space: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.set_locked(space, start, pages, false)
    }

    /// Faults every page of a range in.
    pub(crate) fn populate(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        write: bool,
    ) -> Result<(), MapError> {
        self.close_range(&*self.space(space)?, start, pages)?;
        for n in 0..pages {
            let page = start.add(n);
            let write = write && {
                let space = self.space(space)?;
                space.vma(self, page).0.is_some_and(|v| v.prot.write)
            };
            match self.fault(space, page, write, FaultMode::MayWait) {
                Ok(_) | Err(FaultError::Access) => {}
                // It is there to be read, at least.
                Err(FaultError::WriteProtected) => self.populate(space, page, 1, false)?,
                Err(FaultError::Oom(_)) => return Err(MapError::Limit),
                Err(FaultError::NoMapping) => return Err(MapError::Hole(page)),
                Err(_) => return Err(MapError::Fault(page)),
            }
        }
        Ok(())
    }

    /// Unmaps everything and ends the space. No other call on the space may be under way.
    pub fn destroy_space(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        self.munmap(id, space.base, space.pages)?;
        self.end_space(id);
        Ok(())
    }
}
