//! Waiting for a word in shared memory, by raw futex calls, which leave `errno` alone.
//!
//! A service and its program have the same memory, so private futexes work between them.

use crate::call::{call, timespec};
#[cfg(feature = "std")]
use crate::{
    Errno,
    clock::{self, Clock},
};
use core::ffi::c_int;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// Whose wake-ups a wait answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Tasks of this memory that call [`wake`].
    Private,
    /// Other processes that have the word, too, and the kernel's own wake-up when a task leaves
    /// its memory.
    Shared,
}

impl Scope {
    fn op(self, op: c_int) -> usize {
        match self {
            Scope::Private => (op | libc::FUTEX_PRIVATE_FLAG) as usize,
            Scope::Shared => op as usize,
        }
    }
}

/// Waits while `word` has the value `expected`, at most `timeout`; false when the time is over.
/// The value must be looked at again in any case: wake-ups may be spurious.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    wait_in(Scope::Private, word, expected, timeout)
}

/// Wakes up to `count` waiters of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    wake_in(Scope::Private, word, count);
}

/// As [`wake`], for who waits in `scope`.
pub fn wake_in(scope: Scope, word: &AtomicU32, count: u32) {
    let op = scope.op(libc::FUTEX_WAKE);
    let count = count.min(i32::MAX as u32) as usize;
    // SAFETY: a wake reads nothing through the address.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, op, count]) };
}

/// As [`wait`], for wake-ups of `scope`.
pub fn wait_in(scope: Scope, word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(0, |t| &raw const *t as usize);
    let (at, op) = (word.as_ptr() as usize, scope.op(libc::FUTEX_WAIT));
    // SAFETY: the word is alive for the call; the time is null or a timespec on this stack.
    let done = unsafe { call(libc::SYS_futex, [at, op, expected as usize, time]) };
    done != Err(libc::ETIMEDOUT)
}

/// A word, whose wake-ups are waited for, and the value that it has.
pub type Awaited<'a> = (Scope, &'a AtomicU32, u32);

/// Most words that [`wait_any`] takes; it leaves out what is beyond.
#[cfg(feature = "std")]
pub const WORDS: usize = 8;

/// Waits while each of these words has the value beside it, at most `timeout`. As after [`wait`]
/// all are to be looked at again.
///
/// # Errors
/// The system has no such call (Linux 5.16), or a filter refuses it.
#[cfg(feature = "std")]
pub fn wait_any(words: &[Awaited<'_>], timeout: Option<Duration>) -> Result<(), Errno> {
    /// The kernel's `struct futex_waitv`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Waiter {
        value: u64,
        at: u64,
        flags: u32,
        reserved: u32,
    }
    const SIZE_32: u32 = 2;
    let mut waiters = [Waiter {
        value: 0,
        at: 0,
        flags: 0,
        reserved: 0,
    }; WORDS];
    for (waiter, (scope, word, expected)) in waiters.iter_mut().zip(words) {
        waiter.value = u64::from(*expected);
        waiter.at = word.as_ptr() as u64;
        waiter.flags = match scope {
            Scope::Private => SIZE_32 | libc::FUTEX_PRIVATE_FLAG as u32,
            Scope::Shared => SIZE_32,
        };
    }
    // The time of the clock when it is over, not how long.
    let now = || Duration::from_nanos(clock::nanos(Clock::Monotonic));
    let end = timeout.map(|time| timespec(now().saturating_add(time)));
    let end = end.as_ref().map_or(0, |t| &raw const *t as usize);
    let count = words.len().min(WORDS);
    let clock = libc::CLOCK_MONOTONIC as usize;
    let args = [waiters.as_ptr() as usize, count, 0, end, clock];
    // SAFETY: so many waiters on this stack, whose words are alive for the call; the time is null
    // or a timespec on this stack.
    match unsafe { call(libc::SYS_futex_waitv, args) } {
        Ok(_) | Err(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Ok(()),
        Err(errno) => Err(Errno(errno)),
    }
}
