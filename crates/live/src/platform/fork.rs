//! A child of fork: the same addresses, with ranges and descriptors of its own.

use std::fs::File;
use std::os::fd::OwnedFd;

use deckle_uffd::{Errno, Pagemap};

use super::{LiveError, LivePlatform, open};

impl LivePlatform {
    /// Takes the address ranges back that a child of fork has not inherited: the first thing
    /// there, before the kernel gives them to somebody else's mapping.
    ///
    /// # Errors
    /// Something else is there.
    pub fn reserve_after_fork(&self) -> Result<(), LiveError> {
        let (_, len) = self.parking.range();
        self.parking
            .reserve_after_fork()
            .map_err(|e| LiveError::Parking(len, e))?;
        self.nursery.reserve_after_fork().map_err(LiveError::Own)
    }

    /// Whether children that are forked from now on inherit managed memory. For the time of one
    /// fork, after which the child [takes it over](Self::after_fork).
    ///
    /// # Errors
    /// The kernel's refusal; perhaps only a part has changed.
    pub fn inherit(&self, on: bool) -> Result<(), Errno> {
        self.arena.inherit(on)
    }

    /// Gives the copy of a platform in a child of fork its own descriptors, parking range and
    /// registration; `device` as in [`LiveConfig`](super::LiveConfig). What was parked at the fork
    /// is not there any more, and nothing is write-protected.
    ///
    /// # Safety
    /// As [`Pager::after_fork`](crate::Pager::after_fork); after
    /// [`reserve_after_fork`](Self::reserve_after_fork).
    ///
    /// # Errors
    /// See [`LiveError`].
    pub unsafe fn after_fork(&mut self, device: Option<&OwnedFd>) -> Result<(), LiveError> {
        use std::mem::{forget, replace};
        // The old numbers mean nothing in the new descriptor table: not closed.
        forget(replace(&mut self.program, open(self.caps, device)?));
        forget(replace(&mut self.park, open(self.caps, device)?));
        let pagemap = Pagemap::open_self().map_err(LiveError::Pagemap)?;
        forget(replace(&mut self.pagemap, pagemap));
        forget(replace(&mut self.memory, File::open("/proc/self/mem").ok()));
        let (_, len) = self.parking.range();
        self.parking
            .after_fork(&self.park)
            .map_err(|e| LiveError::Parking(len, e))?;
        let len = self.arena.len();
        self.arena
            .after_fork(&self.program)
            .map_err(|e| LiveError::Arena(len, e))
    }
}
