//! Ranges of the arena that come from the kernel and go to it.

use super::LivePlatform;

impl LivePlatform {
    /// Takes a range of the arena back after a foreign mapping; see
    /// [`Arena::adopt`](super::Arena::adopt).
    ///
    /// # Safety
    /// Nobody counts on what is mapped there.
    ///
    /// # Errors
    /// As [`Arena::adopt`](super::Arena::adopt).
    pub unsafe fn adopt(&self, start: usize, len: usize) -> Result<(), deckle_uffd::Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.arena.adopt(start, len, &self.program) }
    }

    /// Gives a range of the arena to the kernel; see [`Arena::leave`](super::Arena::leave).
    ///
    /// # Safety
    /// As [`Arena::leave`](super::Arena::leave).
    ///
    /// # Errors
    /// As [`Arena::leave`](super::Arena::leave).
    pub unsafe fn leave(&self, start: usize, len: usize) -> Result<(), deckle_uffd::Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.arena.leave(start, len, &self.program) }
    }

    /// Ranges of this library that must not be locked in memory (start, bytes): the arena, which
    /// the manager locks by itself, and where pages rest.
    pub fn never_locked(&self) -> [(usize, usize); 3] {
        let arena = (self.arena.base(), self.arena.len());
        [arena, self.parking.range(), self.nursery.range()]
    }
}
