//! Files, where the standard library has no call of the kind.

use crate::{Errno, Fd};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

fn stat(call: impl FnOnce(*mut libc::stat) -> i32) -> Result<libc::stat, Errno> {
    let mut st = MaybeUninit::zeroed();
    Errno::check(call(st.as_mut_ptr()))?;
    // SAFETY: the call has written it; and it is plain data, of which zeros are a value, too.
    Ok(unsafe { st.assume_init() })
}

/// What the system knows of the file at `path`.
pub fn stat_at(path: &CStr) -> Result<libc::stat, Errno> {
    // SAFETY: a path that ends in NUL, and room for the answer.
    stat(|st| unsafe { libc::stat(path.as_ptr(), st) })
}

/// What the system knows of an open file.
pub fn stat_of(file: &Fd) -> Result<libc::stat, Errno> {
    // SAFETY: room for the answer.
    stat(|st| unsafe { libc::fstat(file.raw(), st) })
}

/// Whether the caller's effective user may execute what is at `path`.
/// Errors: EACCES, or why that cannot be told.
pub fn may_execute(path: &CStr) -> Result<(), Errno> {
    let (at, how) = (path.as_ptr(), libc::AT_EACCESS);
    // SAFETY: a path that ends in NUL.
    Errno::check(unsafe { libc::faccessat(libc::AT_FDCWD, at, libc::X_OK, how) })
}

/// Whether an open file has an extended attribute of this name, and something in it.
pub fn has_attribute(file: &Fd, name: &CStr) -> bool {
    let nowhere = core::ptr::null_mut();
    // SAFETY: a name that ends in NUL; without room for the value only its length is told.
    (unsafe { libc::fgetxattr(file.raw(), name.as_ptr(), nowhere, 0) }) > 0
}

/// Makes a pipe with a name.
pub fn make_fifo(path: &CStr, mode: u32) -> Result<(), Errno> {
    // SAFETY: a path that ends in NUL.
    Errno::check(unsafe { libc::mkfifo(path.as_ptr(), mode) })
}

/// Makes a file in memory, without a name, close-on-exec. `name` is for who looks at /proc.
pub fn in_memory(name: &CStr) -> Result<Fd, Errno> {
    // SAFETY: a name that ends in NUL.
    match unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) } {
        raw if raw < 0 => Err(Errno::last()),
        // SAFETY: a new descriptor.
        raw => Ok(unsafe { Fd::own(raw) }),
    }
}

/// Sets those flags of an open file that can be changed (`O_NONBLOCK`, `O_DIRECT`), and clears the
/// others of them.
/// Errors: EINVAL: the file's system has no such mode.
pub fn set_flags(file: &impl AsFd, flags: i32) -> Result<(), Errno> {
    // SAFETY: a call on numbers, by a descriptor that is open.
    Errno::check(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETFL, flags) })
}

/// Swaps to the device at `path` from now on.
/// Errors: EPERM: that needs root. EINVAL: there is no swap space on it.
pub fn swap_on(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a path that ends in NUL.
    Errno::check(unsafe { libc::swapon(path.as_ptr(), 0) })
}

/// Swaps to it no more, and takes back what is there.
/// Errors: EPERM: that needs root. ENOMEM: there is no room for what is there.
pub fn swap_off(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a path that ends in NUL.
    Errno::check(unsafe { libc::swapoff(path.as_ptr()) })
}

/// Takes the exclusive lock of an open file, which goes with the last descriptor of it.
/// Errors: EAGAIN: another has it.
pub fn try_lock(file: &Fd) -> Result<(), Errno> {
    // SAFETY: a call on numbers.
    Errno::check(unsafe { libc::flock(file.raw(), libc::LOCK_EX | libc::LOCK_NB) })
}
