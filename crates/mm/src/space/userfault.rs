//! What a program may ask of a range for itself: to be told of missing pages and of writes
//! (userfaultfd), and to never see the shared zero page.
//!
//! Where it is told, a hole stays a hole until the program fills it. Only holes are missing: a
//! page that was dropped because it held zeros is a zero entry, and reads as zeros without a
//! word, or who has sent it already would be asked again and wait for ever (R125).

use crate::engine::space::{MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{PlatformError, Stop};
use crate::table::marks::Marks;
use crate::table::vma::Vma;
use crate::units::{SpaceId, Vpn};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// From now on a fault on a hole of the range maps nothing and ends with
    /// [`FaultError::ToProgram`](crate::FaultError), also one that is being served now. What is
    /// mapped, inactive, stored or zero stays the manager's.
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped.
    pub fn uffd_register(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.arm(id, start, pages, |v| v.uffd_missing = true)
    }

    /// Ends what [`Mm::uffd_register`] began.
    pub fn uffd_unregister(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.arm(id, start, pages, |v| v.uffd_missing = false)
    }

    /// From now on pages of the range may be protected by [`Mm::uffd_write_protect`].
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped.
    pub fn uffd_wp_register(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.arm(id, start, pages, |v| v.uffd_wp = true)
    }

    /// Ends what [`Mm::uffd_wp_register`] began; no page of the range stays protected.
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped.
    pub fn uffd_wp_unregister(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        let space = self.space(id)?;
        self.covered(id, start, pages)?;
        let _mmap = space.mmap_lock.lock(self.machine());
        self.protect_pages(&space, start, pages, false)?;
        self.edit_range(&space, start, pages, |v| v.uffd_wp = false)
    }

    /// Protects the pages of a range that are there, wherever their bytes are, or ends that: a
    /// write to a protected page ends with [`FaultError::WriteProtected`](crate::FaultError), and
    /// the page is as it was. What is a hole when this is called is not protected, as with the
    /// kernel's `UFFDIO_WRITEPROTECT` without `UFFD_FEATURE_WP_UNPOPULATED`.
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not registered for it, [`MapError::Platform`] if the
    /// platform cannot protect a page; a part of the range may be protected then.
    pub fn uffd_write_protect(
        &self,
        id: SpaceId,
        start: Vpn,
        pages: u64,
        on: bool,
    ) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        let parts = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        let mut at = start;
        for v in &parts {
            if v.start != at || !v.uffd_wp {
                return Err(MapError::Hole(at));
            }
            at = v.end();
        }
        if at != start.add(pages) {
            return Err(MapError::Hole(at));
        }
        self.protect_pages(&space, start, pages, on)
    }

    /// Sets or clears the protection; mmap lock held.
    fn protect_pages(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
        on: bool,
    ) -> Result<(), MapError> {
        let change = |old: Marks| Marks { uffd_wp: on, ..old };
        for (block, first, n) in space.parts(self, start, pages) {
            if !self.mark_part(space, &block, first, n, change) {
                let (at, why) = (0, Stop::NoMemory);
                return Err(MapError::Platform(PlatformError { at, why }));
            }
        }
        Ok(())
    }

    fn arm(
        &self,
        id: SpaceId,
        start: Vpn,
        pages: u64,
        change: impl Fn(&mut Vma),
    ) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        self.edit_range(&space, start, pages, change)
    }

    fn edit_range(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
        change: impl Fn(&mut Vma),
    ) -> Result<(), MapError> {
        space
            .edit_vmas(self, |tree| tree.update(start, pages, change))
            .map_err(|hole| MapError::Hole(hole.0))
    }

    /// Says that the shared zero page must not be mapped in a space (as guests with storage keys
    /// demand of their host): read faults then take a page, and subpages of zeros are kept.
    ///
    /// # Errors
    /// [`MapError::BadRange`] if something is mapped already: it may be a zero page.
    pub fn forbid_zero_page(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        let _mmap = space.mmap_lock.lock(self.machine());
        if let Some(v) = space.read_vmas(self, |t| t.iter().next().copied()) {
            return Err(MapError::BadRange(v.start, v.pages));
        }
        space.forbid_zero(true);
        Ok(())
    }
}
