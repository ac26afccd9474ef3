//! A child of fork: the same addresses, with ranges and descriptors of its own.

use deckle_uffd::Errno;

use super::{LiveError, LivePlatform, Opened, kernel};

/// How often what a fork inherits is told again, where holes come and go.
const HOLES: u32 = 1000;

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

    /// Lets children that are forked from now on inherit a managed range. For the time of one
    /// fork, after which the child [takes it over](Self::after_fork).
    ///
    /// # Errors
    /// The kernel's refusal; perhaps only a part has changed.
    pub fn inherit(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.inherit_there(start, len, true)
    }

    /// The same or its end, of what is there: what the program has unmapped unseen is inherited by
    /// nobody either way.
    fn inherit_there(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        // A hole may be mapped again between the call and the look: then the call is made again.
        let attempt = || match self.managed.inherit(start, len, on) {
            Err(Errno(libc::ENOMEM)) if self.adopts() => {
                kernel::has_hole(start, len).then_some(Ok(()))
            }
            done => Some(done),
        };
        let done = (0..HOLES).find_map(|_| attempt());
        done.unwrap_or(Err(Errno(libc::ENOMEM)))
    }

    /// Has the kernel take the huge page apart that goes over an edge of what children inherit.
    /// Once its first page is shared with a child, no other of its pages can be taken out by a
    /// move, also those that are this process's alone: the kernel asks the first one. `at`: where
    /// the edge is. Before [`inherit`](Self::inherit), while nothing of the page is shared.
    pub fn part_at(&self, at: usize) {
        let _ = kernel::part(at);
    }

    /// Ends that.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn inherit_no_more(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.inherit_there(start, len, false)
    }

    /// Lets children inherit a mapping that is the kernel's alone.
    pub fn let_inherit(&self, start: usize, len: usize) {
        let _ = self.managed.inherit(start, len, true);
    }

    /// In a child of fork: an empty mapping without access in the place of a managed range that
    /// it has not inherited. Before [`after_fork`](Self::after_fork), which registers it.
    ///
    /// # Errors
    /// Something else is there.
    pub fn fill_after_fork(&self, start: usize, len: usize) -> Result<(), LiveError> {
        // SAFETY: fails rather than replaces.
        let made = unsafe { kernel::map_none(start, len, libc::MAP_FIXED_NOREPLACE) };
        made.map(drop).map_err(LiveError::Managed)
    }

    /// Gives the copy of a platform in a child of fork its own descriptors, parking range and
    /// registration; `opened` as in [`LiveConfig`](super::LiveConfig). What was parked at the fork
    /// is not there any more, and nothing is write-protected.
    ///
    /// # Safety
    /// As [`Pager::after_fork`](crate::Pager::after_fork); after
    /// [`reserve_after_fork`](Self::reserve_after_fork).
    ///
    /// # Errors
    /// See [`LiveError`].
    pub unsafe fn after_fork(&mut self, mut opened: Opened) -> Result<(), LiveError> {
        use std::mem::{forget, replace};
        // The old numbers mean nothing in the new descriptor table: not closed.
        forget(replace(&mut self.program, opened.uffd(self.caps)?));
        forget(replace(&mut self.pagemap, opened.pagemap()?));
        forget(replace(&mut self.memory, opened.memory()));
        let (_, len) = self.parking.range();
        self.parking
            .after_fork(&self.program)
            .map_err(|e| LiveError::Parking(len, e))?;
        self.managed
            .after_fork(&self.program)
            .map_err(LiveError::Managed)
    }
}
