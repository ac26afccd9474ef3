//! Descriptors and the errors of system calls, without a C library.

use crate::sys::call;
use core::ffi::CStr;
use core::fmt;

/// A system call's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// That of the calling thread's last failed call by a function of the C library.
    pub fn last() -> Errno {
        // SAFETY: returns the address of this thread's errno, valid while the thread lives.
        Errno(unsafe { *libc::__errno_location() })
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

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes over `raw`, which must be an open descriptor that nobody else closes.
    pub fn own(raw: i32) -> Fd {
        Fd(raw)
    }

    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Gives the number away; it is no longer closed here.
    pub fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// Opens `path`, close-on-exec.
    pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<Fd, Errno> {
        let (here, flags) = (libc::AT_FDCWD as usize, flags | libc::O_CLOEXEC);
        let args = [here, path.as_ptr() as usize, flags as usize, mode as usize];
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        let opened = unsafe { call(libc::SYS_openat, args) };
        opened.map(|raw| Fd(raw as i32)).map_err(Errno)
    }

    /// Reads up to `buf.len()` bytes at `offset`; short only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let (to, at) = (rest.as_mut_ptr() as usize, offset as usize + done);
            // SAFETY: the pointer and length are those of a live, writable slice.
            match unsafe { call(libc::SYS_pread64, [self.0 as usize, to, rest.len(), at]) } {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(libc::EINTR) => {}
                Err(errno) => return Err(Errno(errno)),
            }
        }
        Ok(done)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used after this.
        let _ = unsafe { call(libc::SYS_close, [self.0 as usize]) };
    }
}
