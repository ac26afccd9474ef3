//! Processes by descriptors, which never come to mean another one.

use crate::call::call;
use crate::poll::is_ready;
use crate::{Errno, Fd};
use core::time::Duration;

/// Opens one of the process `pid`, close-on-exec.
/// Errors: ESRCH when there is no such process.
pub fn open(pid: u32) -> Result<Fd, Errno> {
    // SAFETY: a system call on numbers.
    let made = unsafe { call(libc::SYS_pidfd_open, [pid as usize, 0]) };
    // SAFETY: a new descriptor.
    made.map(|raw| unsafe { Fd::own(raw as i32) })
        .map_err(Errno)
}

/// Sends `signal` to the process behind `pidfd`.
/// Errors: ESRCH when it is gone.
pub fn kill(pidfd: &Fd, signal: i32) -> Result<(), Errno> {
    let args = [pidfd.raw() as usize, signal as usize, 0, 0];
    // SAFETY: a system call on numbers; the siginfo pointer may be null.
    let sent = unsafe { call(libc::SYS_pidfd_send_signal, args) };
    sent.map(drop).map_err(Errno)
}

/// Whether the process behind `pidfd` has ended (a zombie has).
pub fn has_ended(pidfd: &Fd) -> bool {
    is_ready(pidfd.raw(), Duration::ZERO)
}
