//! What a program may ask of a range for itself: to be told of missing pages (userfaultfd), and
//! to never see the shared zero page.
//!
//! Where it is told, a hole stays a hole until the program fills it. Only holes are missing: a
//! page that was dropped because it held zeros is a zero entry, and reads as zeros without a
//! word, or who has sent it already would be asked again and wait for ever (R125).

use crate::env::Env;
use crate::mm::Mm;
use crate::space::{MapError, Space};
use crate::units::{SpaceId, Vpn};
use core::sync::atomic::Ordering;

impl Space {
    /// Whether the shared zero page must not be mapped here.
    pub(crate) fn forbids_zero(&self) -> bool {
        self.zero_forbidden.load(Ordering::Acquire)
    }
}

impl<E: Env> Mm<E> {
    /// From now on a fault on a hole of the range maps nothing and ends with
    /// [`FaultError::ToProgram`](crate::FaultError), also one that is being served now. What is
    /// mapped, inactive, stored or zero stays the manager's.
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped.
    pub fn uffd_register(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.arm(id, start, pages, true)
    }

    /// Ends what [`Mm::uffd_register`] began.
    pub fn uffd_unregister(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        self.arm(id, start, pages, false)
    }

    fn arm(&self, id: SpaceId, start: Vpn, pages: u64, on: bool) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        space
            .edit_vmas(self, |tree| {
                tree.update(start, pages, |v| v.uffd_missing = on)
            })
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
        space.zero_forbidden.store(true, Ordering::Release);
        Ok(())
    }
}
