//! A child of fork: the same addresses, with ranges and descriptors of its own.

use std::fs::File;

use deckle_uffd::{Pagemap, Uffd};

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

    /// Gives the copy of a platform in a child of fork its own descriptors, parking range and
    /// registration. What was parked at the fork is not there any more.
    ///
    /// `inherited`: the descriptor that the fork event gave, for which the arena is registered
    /// as the parent's was; without, the arena is registered anew.
    ///
    /// # Safety
    /// As [`Pager::after_fork`](crate::Pager::after_fork); after
    /// [`reserve_after_fork`](Self::reserve_after_fork).
    ///
    /// # Errors
    /// See [`LiveError`].
    pub unsafe fn after_fork(&mut self, inherited: Option<Uffd>) -> Result<(), LiveError> {
        use std::mem::{forget, replace};
        let registered = inherited.is_some();
        let program = match inherited {
            Some(uffd) => uffd,
            None => open(self.caps, false)?,
        };
        // The old numbers mean nothing in the new descriptor table: not closed.
        forget(replace(&mut self.program, program));
        forget(replace(&mut self.park, open(self.caps, false)?));
        let pagemap = Pagemap::open_self().map_err(LiveError::Pagemap)?;
        forget(replace(&mut self.pagemap, pagemap));
        forget(replace(&mut self.memory, File::open("/proc/self/mem").ok()));
        let (_, len) = self.parking.range();
        self.parking
            .after_fork(&self.park)
            .map_err(|e| LiveError::Parking(len, e))?;
        if registered {
            return Ok(());
        }
        let len = self.arena.len();
        self.arena
            .after_fork(&self.program)
            .map_err(|e| LiveError::Arena(len, e))
    }
}
