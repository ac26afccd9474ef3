//! The program's arena: the one address range that the program's managed mappings lie in.
//!
//! Reserved once without access and registered once for missing and write-protect faults, so
//! that the number of kernel mappings stays small (P18); rights come later by `mprotect`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use deckle_uffd::{Errno, RegisterMode, Uffd};

use super::kernel::{self, Advice, Reservation};

/// The reserved range.
#[derive(Debug)]
pub struct Arena {
    range: Reservation,
    huge_advice: bool,
    dont_fork: bool,
    /// Ranges that are the kernel's alone, start to end: not registered.
    foreign: Mutex<BTreeMap<usize, usize>>,
}

impl Arena {
    /// Reserves `want` bytes, or what fits (at least 64 MiB), and registers them.
    ///
    /// `huge_advice`: the start-up test showed that page tables left by faults cannot be
    /// cleared away here, so the range is advised huge for the kernel to leave none.
    /// `dont_fork`: not inherited by forked children.
    ///
    /// # Errors
    /// No room, or the registration was refused.
    pub fn new(
        want: usize,
        huge_advice: bool,
        dont_fork: bool,
        uffd: &Uffd,
    ) -> Result<Arena, Errno> {
        let range = Reservation::largest(want, 64 << 20, libc::PROT_NONE)?;
        let arena = Arena {
            range,
            huge_advice,
            dont_fork,
            foreign: Mutex::default(),
        };
        arena.prepare(arena.base(), arena.len(), uffd)?;
        Ok(arena)
    }

    fn prepare(&self, start: usize, len: usize, uffd: &Uffd) -> Result<(), Errno> {
        let advice = match self.huge_advice {
            true => Advice::Huge,
            false => Advice::NoHuge,
        };
        // A kernel without huge pages refuses the advice, and needs none.
        // SAFETY: this advice drops no bytes.
        let _ = unsafe { kernel::madvise(start, len, advice) };
        if self.dont_fork {
            // SAFETY: this advice drops no bytes.
            unsafe { kernel::madvise(start, len, Advice::DontFork)? };
        }
        uffd.register(start, len, RegisterMode::MISSING | RegisterMode::WP)?;
        Ok(())
    }

    /// Lets forked children inherit the range, or not. What is foreign they inherit anyway.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn inherit(&self, on: bool) -> Result<(), Errno> {
        let advice = match on {
            true => Advice::DoFork,
            false => Advice::DontFork,
        };
        for (start, len, foreign) in self.parts(self.base(), self.len()) {
            if !foreign && self.dont_fork {
                // SAFETY: this advice drops no bytes.
                unsafe { kernel::madvise(start, len, advice)? };
            }
        }
        Ok(())
    }

    /// Registers the copy of the range in a child of fork.
    ///
    /// # Errors
    /// The registration was refused.
    pub fn after_fork(&self, uffd: &Uffd) -> Result<(), Errno> {
        for (start, len, foreign) in self.parts(self.base(), self.len()) {
            if !foreign {
                self.prepare(start, len, uffd)?;
            }
        }
        Ok(())
    }

    fn foreign(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // A map of numbers is whole at any time.
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range in parts: start, bytes, and whether the part is the kernel's alone.
    pub fn parts(&self, start: usize, len: usize) -> Vec<(usize, usize, bool)> {
        let end = start + len;
        let (mut at, mut parts) = (start, Vec::new());
        for (from, to) in self.foreign().range(..end) {
            let (from, to) = ((*from).max(at), (*to).min(end));
            if to <= from {
                continue;
            }
            if from > at {
                parts.push((at, from - at, false));
            }
            parts.push((from, to - from, true));
            at = to;
        }
        if at < end {
            parts.push((at, end - at, false));
        }
        parts
    }

    /// Ends the registration of a range that becomes the kernel's alone, whatever is mapped
    /// there. Who waits for a fault in it tries again.
    ///
    /// # Safety
    /// All bytes of the program in the range are present.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside; the kernel's refusal.
    pub unsafe fn leave(&self, start: usize, len: usize, uffd: &Uffd) -> Result<(), Errno> {
        if !self.contains(start, len) {
            return Err(Errno(libc::EINVAL));
        }
        for (from, bytes, foreign) in self.parts(start, len) {
            if !foreign {
                // SAFETY: the caller's promise: a hole is a zero in truth. The advice drops no
                // bytes.
                unsafe {
                    uffd.unregister(from, bytes)?;
                    if self.dont_fork {
                        kernel::madvise(from, bytes, Advice::DoFork)?;
                    }
                }
            }
        }
        self.forget(start, len);
        self.foreign().insert(start, start + len);
        Ok(())
    }

    /// Takes a range out of the list of foreign ones.
    fn forget(&self, start: usize, len: usize) {
        let end = start + len;
        let mut foreign = self.foreign();
        while let Some((from, to)) = foreign
            .range(..end)
            .next_back()
            .map(|(from, to)| (*from, *to))
            .filter(|(_, to)| *to > start)
        {
            foreign.remove(&from);
            if from < start {
                foreign.insert(from, start);
            }
            if to > end {
                foreign.insert(end, to);
            }
        }
    }

    /// Address of the first byte, aligned to a block.
    pub fn base(&self) -> usize {
        self.range.base()
    }

    /// Length in bytes, a multiple of a block.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the range lies inside.
    pub fn contains(&self, start: usize, len: usize) -> bool {
        self.range.contains(start, len)
    }

    /// Takes a range back after something else was mapped over it by force, which has ended
    /// its registration (P19): an empty range without access, registered again.
    ///
    /// # Safety
    /// Nobody counts on what is mapped there.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside; the kernel's refusal to map or register. After an
    /// error the range has no access, so that no byte can be read that is not there.
    pub unsafe fn adopt(&self, start: usize, len: usize, uffd: &Uffd) -> Result<(), Errno> {
        if !self.contains(start, len) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: inside our reservation; the content is not needed.
        unsafe { kernel::reserve_at(start, len)? };
        self.prepare(start, len, uffd)?;
        self.forget(start, len);
        Ok(())
    }
}
