//! Managed mappings: made by the kernel where the program wants them, and taken back.

use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use deckle_uffd::Errno;

use super::LivePlatform;
use super::kernel::{self, PAGE};

/// Where a new mapping goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At the hint if that is free, else where the kernel likes, `offset` bytes behind a multiple
    /// of `align` (a power of two, at least a page) if there is such a place.
    Near {
        /// Address, 0 for none.
        hint: usize,
        /// Bytes.
        align: usize,
        /// Bytes, less than `align`.
        offset: usize,
    },
    /// Exactly there, whatever is there.
    At(usize),
    /// Exactly there, if nothing is there.
    Free(usize),
}

impl Place {
    /// Anywhere, at a multiple of `align`.
    pub fn aligned(align: usize) -> Place {
        Place::Near {
            hint: 0,
            align,
            offset: 0,
        }
    }
}

impl LivePlatform {
    /// Makes a managed mapping, empty and without access; says where. All of it is
    /// [open](deckle_mm::Platform::open) if that is said.
    ///
    /// # Safety
    /// For [`Place::At`]: nobody counts on what is there, and the manager has nothing there.
    ///
    /// # Errors
    /// The kernel's refusal to map or register. After a failure at a fixed place the range may
    /// be empty.
    pub unsafe fn map_new(&self, place: Place, len: usize, open: bool) -> Result<usize, Errno> {
        let start = match place {
            Place::Near {
                hint,
                align,
                offset,
            } => near(hint, len, align, offset)?,
            Place::Free(at) => {
                // SAFETY: fails rather than replaces.
                let got = unsafe { kernel::map_none(at, len, libc::MAP_FIXED_NOREPLACE)? };
                if got != at {
                    // A kernel that takes it for a hint.
                    kernel::unmap_own(got, len);
                    return Err(Errno(libc::EEXIST));
                }
                at
            }
            Place::At(at) => {
                // The new mapping is not registered: out of the set first.
                self.managed.remove(at, len);
                // SAFETY: the caller's promise.
                unsafe { kernel::map_none(at, len, libc::MAP_FIXED)? }
            }
        };
        // Nobody can have touched it: it gives no access, and its address is known to nobody or
        // to who waits for it.
        if let Err(errno) = self.managed.add(start, len, &self.program, open) {
            kernel::unmap_own(start, len);
            return Err(errno);
        }
        Ok(start)
    }

    /// Says that a range is about to be unmapped, of no bytes: none. What a block of it leaves
    /// behind need not be cleared away then. Of several the last that was said.
    pub(crate) fn going(&self, start: usize, len: usize) {
        *self.going.lock().unwrap_or_else(PoisonError::into_inner) = start..start + len;
    }

    /// Whether all of a range is about to be unmapped.
    pub(super) fn is_going(&self, start: usize, len: usize) -> bool {
        let going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        going.start <= start && start + len <= going.end
    }

    /// Unmaps a managed range.
    ///
    /// # Safety
    /// The manager has nothing there any more.
    ///
    /// # Errors
    /// The kernel's refusal: no room for one mapping more. The range is managed still, empty and
    /// without access.
    pub unsafe fn unmap_old(&self, start: usize, len: usize) -> Result<(), Errno> {
        // Out of the set before the addresses can be somebody else's.
        self.managed.remove(start, len);
        // SAFETY: the caller's promise.
        match unsafe { kernel::munmap(start, len) } {
            Err(errno) => {
                // What was open had pages that nobody has dropped one by one.
                // SAFETY: the caller's promise.
                let _ = unsafe { kernel::drop_pages(start, len) };
                self.managed.add(start, len, &self.program, false)?;
                Err(errno)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Gives a managed range to the kernel, whatever is mapped there.
    ///
    /// # Safety
    /// All bytes of the program in the range are present.
    ///
    /// # Errors
    /// `EINVAL` if not all of the range is managed; the kernel's refusal.
    pub unsafe fn leave(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.managed.leave(start, len, &self.program) }
    }

    /// Ranges of this library that must not be locked in memory (start, bytes): what is managed,
    /// which the manager locks by itself, and where pages rest.
    pub fn never_locked(&self) -> Vec<(usize, usize)> {
        let mut all = self.managed.ranges();
        all.extend([self.parking.range(), self.nursery.range()]);
        all
    }
}

/// A new mapping without access, at a place as [`Place::Near`] says.
fn near(hint: usize, len: usize, align: usize, offset: usize) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice changes no other.
    let map = |hint, len| unsafe { kernel::map_none(hint, len, 0) };
    let fits = |at: usize| align <= PAGE || at % align == offset;
    // What is made of whole huge pages the kernel puts on them by itself.
    if hint != 0 || align <= kernel::BLOCK {
        let at = map(hint, len)?;
        if at == hint || fits(at) {
            return Ok(at);
        }
        kernel::unmap_own(at, len);
    }
    // Where the last one was, or below it: one call instead of three.
    let last = (LAST.0.load(Relaxed), LAST.1.load(Relaxed));
    for end in [last.1, last.0] {
        let at = end.saturating_sub(len + offset) / align * align + offset;
        let how = libc::MAP_FIXED_NOREPLACE;
        // SAFETY: fails rather than replaces.
        if end > 0 && at > BOTTOM && unsafe { kernel::map_none(at, len, how) } == Ok(at) {
            return Ok(noted(at, len));
        }
    }
    let padded = len.checked_add(align - PAGE).ok_or(Errno(libc::ENOMEM))?;
    let Ok(low) = map(0, padded) else {
        // Not enough room for a good place.
        return map(0, len);
    };
    let (high, last) = (low + padded, low + padded - len);
    // The highest that fits, where the kernel would have put it.
    let at = last - (last - offset) % align;
    for (from, to) in [(low, at), (at + len, high)] {
        if to > from {
            kernel::unmap_own(from, to - from);
        }
    }
    Ok(noted(at, len))
}

/// Start and end of the last mapping at a place of its own; zeros: there is none.
static LAST: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// The kernel chooses addresses above it, unless there are no others.
const BOTTOM: usize = 64 << 40;

fn noted(at: usize, len: usize) -> usize {
    LAST.0.store(at, Relaxed);
    LAST.1.store(at + len, Relaxed);
    at
}
