//! Waiting for descriptors.

use crate::Errno;
use crate::call::{call, timespec};
use core::time::Duration;

/// What [`poll`] needs to wait until there is something to read.
pub fn to_read(fd: i32) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until something is there of what is asked for, at most so many milliseconds (negative:
/// without end); how many entries tell of something.
/// Errors: EINTR when a signal has come.
pub fn poll(set: &mut [libc::pollfd], millis: i32) -> Result<usize, Errno> {
    let args = [set.as_mut_ptr() as usize, set.len(), millis as usize];
    // SAFETY: a live array of that length.
    unsafe { call(libc::SYS_poll, args) }.map_err(Errno)
}

/// Waits until there is something to read, or the end, at most so long; false when there is not.
pub fn is_ready(fd: i32, time: Duration) -> bool {
    let (mut slot, mut time) = (to_read(fd), timespec(time));
    let args = [&raw mut slot as usize, 1, &raw mut time as usize];
    // SAFETY: one slot and a time, both on this stack: the kernel writes what is left of it.
    let done = unsafe { call(libc::SYS_ppoll, args) };
    done == Ok(1) && slot.revents & !libc::POLLNVAL != 0
}
