//! Waiting for a word in shared memory, by raw futex calls.
//!
//! A service and its program have the same memory, so private futexes work between them.

use crate::sys;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Somebody woke the word. The value must be looked at again: wake-ups may be spurious.
    Woken,
    /// The word did not have the expected value.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Whose wake-ups a wait answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Tasks of this memory that call [`wake`].
    Private,
    /// The kernel's own wake-up when a task leaves its memory.
    Shared,
}

/// Waits while `word` has the value `expected`, at most `timeout`. Leaves `errno` alone.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
    wait_in(Scope::Private, word, expected, timeout)
}

/// Wakes up to `count` waiters of `word`; returns how many were woken. Leaves `errno` alone.
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    wake_in(Scope::Private, word, count)
}

/// As [`wake`], for who waits in `scope`.
pub fn wake_in(scope: Scope, word: &AtomicU32, count: u32) -> usize {
    let op = match scope {
        Scope::Private => libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        Scope::Shared => libc::FUTEX_WAKE,
    } as usize;
    let count = count.min(i32::MAX as u32) as usize;
    // SAFETY: a wake reads nothing through the address.
    unsafe { sys::call(libc::SYS_futex, [word.as_ptr() as usize, op, count]) }.unwrap_or(0)
}

/// As [`wait`], for wake-ups of `scope`.
pub fn wait_in(scope: Scope, word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
    let op = match scope {
        Scope::Private => libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        Scope::Shared => libc::FUTEX_WAIT,
    };
    let time = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let time = time
        .as_ref()
        .map_or(0, |t| t as *const libc::timespec as usize);
    // SAFETY: the word is alive for the call; the time is null or a timespec on this stack.
    let done = unsafe {
        sys::call(
            libc::SYS_futex,
            [word.as_ptr() as usize, op as usize, expected as usize, time],
        )
    };
    match done {
        Ok(_) => Wait::Woken,
        Err(libc::ETIMEDOUT) => Wait::TimedOut,
        Err(libc::EINTR) => Wait::Interrupted,
        // EAGAIN; the other errors (a bad address, a bad time) cannot happen with these types,
        // and "look again" is the safe answer to them.
        Err(_) => Wait::Changed,
    }
}
