//! The errors of system calls.

use core::fmt;

/// A system call's error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// That of the calling thread's last failed call by a function of the C library.
    #[cfg(feature = "std")]
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The outcome of a call of the C library that returns 0, or sets `errno`.
    #[cfg(feature = "std")]
    pub fn check(result: i32) -> Result<(), Errno> {
        match result {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            libc::EACCES => "permission denied",
            libc::EPERM => "not permitted",
            libc::ENOENT => "no such file or directory",
            libc::ENOMEM => "out of memory",
            libc::ENOSPC => "no space left",
            libc::EFBIG => "file too large",
            libc::EEXIST => "exists already",
            libc::EMFILE | libc::ENFILE => "too many open files",
            libc::ECONNREFUSED => "connection refused",
            libc::ENOTDIR => "not a directory",
            libc::EISDIR => "is a directory",
            libc::ENOEXEC => "not in a format that can be executed",
            libc::ELOOP => "too many symbolic links",
            libc::ENAMETOOLONG => "name too long",
            libc::ESRCH => "no such process",
            libc::ENOSYS => "not offered by this kernel",
            libc::EROFS => "read-only file system",
            libc::EPIPE => "nobody reads it",
            libc::E2BIG => "too many or too long arguments",
            libc::ETXTBSY => "it is being written to",
            libc::EAGAIN => "too many processes, or out of another resource",
            libc::EIO => "input/output error",
            libc::EADDRINUSE => "in use already",
            n => return write!(f, "error {n}"),
        };
        f.write_str(text)
    }
}

impl core::error::Error for Errno {}

#[cfg(feature = "std")]
impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.0)
    }
}
