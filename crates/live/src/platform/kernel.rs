//! The few memory calls of the kernel that are not userfaultfd's, with typed errors.

use deckle_sys::clock::{Clock, nanos};
use deckle_uffd::Errno;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of a page.
pub const PAGE: usize = deckle_mm::PAGE_SIZE;
/// Bytes of a block (2 MiB): what one PMD entry covers.
pub const BLOCK: usize = PAGE * deckle_mm::BLOCK_PAGES as usize;

/// What to tell the kernel about a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Advice {
    /// Give pages and, for whole blocks, page tables back.
    DontNeed = libc::MADV_DONTNEED,
    /// Bytes may go until they are written again (Linux 4.5 on).
    Free = libc::MADV_FREE,
    /// As `DontNeed`, also for locked memory (Linux 5.18 on).
    DontNeedLocked = libc::MADV_DONTNEED_LOCKED,
    /// Not needed soon (Linux 5.4 on).
    Cold = libc::MADV_COLD,
    /// Huge pages on touch.
    Huge = libc::MADV_HUGEPAGE,
    /// Never huge pages on touch, nor by khugepaged.
    NoHuge = libc::MADV_NOHUGEPAGE,
    /// Not inherited by a forked child.
    DontFork = libc::MADV_DONTFORK,
    /// Inherited by a forked child.
    DoFork = libc::MADV_DOFORK,
    /// Zeros in a forked child (Linux 4.14 on).
    WipeOnFork = libc::MADV_WIPEONFORK,
    /// Not part of a core dump.
    DontDump = libc::MADV_DONTDUMP,
    /// Make every page present and writable now, breaking sharing.
    PopulateWrite = libc::MADV_POPULATE_WRITE,
    /// Make the block one huge page now (Linux 6.1 on).
    Collapse = 25,
}

/// Gives advice on a range; repeated when a signal interrupts it.
///
/// # Safety
/// For `DontNeed` and `DontNeedLocked`: nobody counts on the bytes of the range.
pub unsafe fn madvise(start: usize, len: usize, advice: Advice) -> Result<(), Errno> {
    loop {
        // SAFETY: the kernel checks the range; lost bytes are the caller's promise.
        let result = Errno::check(unsafe { libc::madvise(start as *mut _, len, advice as i32) });
        match result {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

/// Whether a part of a range is not mapped.
pub fn has_hole(start: usize, len: usize) -> bool {
    // SAFETY: changes no byte: anonymous memory has nothing to write back.
    let asked = unsafe { libc::msync(start as *mut _, len, libc::MS_ASYNC) };
    Errno::check(asked) == Err(Errno(libc::ENOMEM))
}

/// Has the kernel take the huge page apart that the page at `addr` is of: to make a part of one
/// cold it has to, and does so with nothing that somebody holds. Whether it has not refused.
pub fn part(addr: usize) -> bool {
    // SAFETY: changes no byte.
    unsafe { madvise(addr, PAGE, Advice::Cold) }.is_ok()
}

/// Gives pages back, locked or not.
///
/// # Safety
/// Nobody counts on the bytes of the range.
pub unsafe fn drop_pages(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { madvise(start, len, Advice::DontNeed) } {
        // SAFETY: the caller's promise.
        Err(Errno(libc::EINVAL)) => unsafe { madvise(start, len, Advice::DontNeedLocked) },
        other => other,
    }
}

/// Whether ranges are not to be given back together: a filter may end who tries.
static APART: AtomicBool = AtomicBool::new(false);

/// From now on `process_madvise` is not called.
pub fn drop_apart() {
    APART.store(true, Relaxed);
}

/// Gives the pages of many ranges back, as [`drop_pages`] does, but with one flush for all (Linux
/// 6.15 on; before that each is given back for itself).
///
/// # Safety
/// Nobody counts on the bytes of the ranges.
pub unsafe fn drop_all(ranges: impl Iterator<Item = (usize, usize)>) -> Result<(), Errno> {
    /// Ranges for one call.
    const PART: usize = 32;
    /// The calling process's own (Linux 6.15 on).
    const PIDFD_SELF: i32 = -10001;
    let mut part = [libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; PART];
    let mut ranges = ranges.peekable();
    while ranges.peek().is_some() {
        let (mut n, mut bytes) = (0, 0);
        for (to, (start, len)) in part.iter_mut().zip(&mut ranges) {
            (to.iov_base, to.iov_len) = (start as *mut _, len);
            (n, bytes) = (n + 1, bytes + len);
        }
        let advice = libc::MADV_DONTNEED;
        let done = match n > 1 && !APART.load(Relaxed) {
            // SAFETY: that many entries are filled; the lost bytes are the caller's promise.
            true => unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    PIDFD_SELF,
                    &raw const part,
                    n,
                    advice,
                    0,
                )
            },
            false => 0,
        };
        if done == bytes as i64 {
            continue;
        }
        if done < 0 && ![Errno(libc::EINTR), Errno(libc::EINVAL)].contains(&Errno::last()) {
            drop_apart();
        }
        // Refused, or stopped at what is locked: to give back twice does no harm.
        for range in &part[..n] {
            // SAFETY: the caller's promise.
            unsafe { drop_pages(range.iov_base as usize, range.iov_len) }?;
        }
    }
    Ok(())
}

/// Sets the rights of a range (`PROT_*`).
///
/// # Safety
/// Whoever uses the range expects these rights.
pub unsafe fn mprotect(start: usize, len: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: the kernel checks the range; the rights are the caller's promise.
    Errno::check(unsafe { libc::mprotect(start as *mut _, len, prot) })
}

/// Maps `len` bytes without access, at `at` as `how` says (0: a hint, `MAP_FIXED`,
/// `MAP_FIXED_NOREPLACE`).
///
/// # Safety
/// With `MAP_FIXED`: the range is the caller's, and nobody counts on what is there.
pub unsafe fn map_none(at: usize, len: usize, how: i32) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how;
    // SAFETY: the caller's promise.
    let got = unsafe { libc::mmap(at as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
    match got {
        libc::MAP_FAILED => Err(Errno::last()),
        got => Ok(got as usize),
    }
}

/// Unmaps a range.
///
/// # Safety
/// Nobody counts on what is there.
pub unsafe fn munmap(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    Errno::check(unsafe { libc::munmap(start as *mut _, len) })
}

/// Unmaps a mapping just made, or an edge of it, which nobody knows of yet.
pub fn unmap_own(start: usize, len: usize) {
    // SAFETY: known to nobody but the caller. A refusal leaves a mapping without use.
    let _ = unsafe { munmap(start, len) };
}

/// Lets another thread run; used between repetitions of a call that found the address space
/// changing.
pub fn yield_now() {
    // SAFETY: no arguments, no memory.
    unsafe { libc::sched_yield() };
}

/// The monotonic clock in nanoseconds.
pub fn monotonic_ns() -> u64 {
    nanos(Clock::Monotonic)
}

/// RAM of the system in bytes.
pub fn ram_bytes() -> u64 {
    // SAFETY: sysconf takes an integer.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).max(16384) * PAGE as u64
}

/// A private anonymous mapping of ours, unmapped when dropped.
#[derive(Debug)]
pub struct Reservation {
    base: usize,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes with rights `prot`, aligned to a block. No memory is used yet.
    ///
    /// # Errors
    /// `ENOMEM`: does not fit in the address space, `RLIMIT_AS` or the overcommit rule.
    pub fn new(len: usize, prot: i32) -> Result<Reservation, Errno> {
        Reservation::near(0, len, prot)
    }

    /// The same, at `hint` if there is room.
    ///
    /// # Errors
    /// As [`new`](Reservation::new).
    pub fn near(hint: usize, len: usize, prot: i32) -> Result<Reservation, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let padded = len + BLOCK;
        // SAFETY: a new mapping at an address of the kernel's choice changes no other.
        let got = unsafe { libc::mmap(hint as *mut _, padded, prot, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = got as usize;
        let base = start.next_multiple_of(BLOCK);
        let end = start + padded;
        for (edge, bytes) in [(start, base - start), (base + len, end - base - len)] {
            if bytes > 0 {
                unmap_own(edge, bytes);
            }
        }
        Ok(Reservation { base, len })
    }

    /// Reserves `want` bytes, or the largest half, quarter, ... down to `least` that fits, at
    /// `hint` if there is room.
    ///
    /// # Errors
    /// The refusal of the last attempt.
    pub fn largest(
        hint: usize,
        want: usize,
        least: usize,
        prot: i32,
    ) -> Result<Reservation, Errno> {
        let mut len = want;
        loop {
            match Reservation::near(hint, len, prot) {
                Ok(r) => return Ok(r),
                Err(e) if len / 2 < least => return Err(e),
                Err(_) => len = (len / 2).next_multiple_of(2 * BLOCK),
            }
        }
    }

    /// Reserves the same range again in a child of fork that has not inherited it.
    ///
    /// # Errors
    /// `EEXIST`: something is there.
    pub fn again(&self, prot: i32) -> Result<(), Errno> {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: fails rather than replaces.
        let got = unsafe { libc::mmap(self.base as *mut _, self.len, prot, flags, -1, 0) };
        match got {
            libc::MAP_FAILED => Err(Errno::last()),
            _ => Ok(()),
        }
    }

    /// Address of the first byte.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: our own mapping; who drops it holds the only handle.
        unsafe { libc::munmap(self.base as *mut _, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every other page of many, of which one is locked, with and without the call for all.
    #[test]
    fn ranges_given_back_together_are_empty_and_nothing_else_is() {
        let len = 200 * PAGE;
        let r = Reservation::new(len, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        let page = |k: usize| (r.base() + k * PAGE) as *mut u8;
        // SAFETY: inside our own mapping.
        let locked = unsafe { libc::mlock(page(100).cast(), PAGE) } == 0;
        assert!(locked, "a page can be locked");
        for apart in [false, true] {
            APART.store(apart, Relaxed);
            // SAFETY: inside our own mapping, which nobody else knows.
            unsafe {
                (0..200).for_each(|k| page(k).write(7));
                let even = (0..200).step_by(2).map(|k| (page(k) as usize, PAGE));
                drop_all(even).unwrap();
                let left = |k: &usize| page(*k).read() == 7;
                assert!((0..200).filter(left).eq((1..200).step_by(2)), "{apart}");
            }
        }
        APART.store(false, Relaxed);
    }
}
