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

/// Whether the caller's effective user may make files in the directory at `path`.
/// Errors: EACCES; EROFS: it cannot be written by anybody; or why that cannot be told.
pub fn may_create_in(path: &CStr) -> Result<(), Errno> {
    let (at, what) = (path.as_ptr(), libc::W_OK | libc::X_OK);
    // SAFETY: a path that ends in NUL.
    Errno::check(unsafe { libc::faccessat(libc::AT_FDCWD, at, what, libc::AT_EACCESS) })
}

/// What a file system has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes for a user without privilege; `u64::MAX`: there is no limit.
    pub bytes: u64,
    /// Files; `u64::MAX`: there is no limit.
    pub files: u64,
}

/// What the file system at `path` has left.
pub fn room_at(path: &CStr) -> Result<Room, Errno> {
    let mut told = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a path that ends in NUL, and room for the answer.
    Errno::check(unsafe { libc::statvfs(path.as_ptr(), told.as_mut_ptr()) })?;
    // SAFETY: the call has written it; and it is plain data, of which zeros are a value, too.
    let told = unsafe { told.assume_init() };
    // A tmpfs without a limit says that it has none of them at all.
    let left = |all: u64, left: u64| if all == 0 { u64::MAX } else { left };
    Ok(Room {
        bytes: left(told.f_blocks, told.f_bavail.saturating_mul(told.f_frsize)),
        files: left(told.f_files, told.f_favail),
    })
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

/// Makes the file `size` bytes long, with room for its first `bytes` bytes: a task that maps these
/// does not get SIGBUS where the file system is full later. Of the limits on the size of files only
/// the hard one holds.
/// Errors: ENOSPC: there is no room. EFBIG: that limit.
pub fn allocate(file: &Fd, bytes: u64, size: u64) -> Result<(), Errno> {
    let limits = |new: Option<&libc::rlimit>| {
        let mut old = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: reads a live structure, or none, and writes another.
        let done = unsafe { libc::prlimit(0, libc::RLIMIT_FSIZE, new, &mut old) };
        Errno::check(done).map(|()| old)
    };
    let before = limits(None)?;
    let lifted = libc::rlimit {
        rlim_cur: before.rlim_max,
        ..before
    };
    limits(Some(&lifted))?;
    let done = loop {
        // SAFETY: a call on numbers.
        match unsafe { libc::posix_fallocate(file.raw(), 0, bytes as i64) } {
            0 => break file.set_len(size.max(bytes)),
            libc::EINTR => {}
            errno => break Err(Errno(errno)),
        }
    };
    limits(Some(&before))?;
    done
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
