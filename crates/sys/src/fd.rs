//! Descriptors, without a C library.

use crate::{Errno, Page};
use crate::call::call;
use core::ffi::CStr;

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes over `raw`.
    ///
    /// # Safety
    /// It is an open descriptor that nobody else closes, or uses once this is dropped.
    pub unsafe fn own(raw: i32) -> Fd {
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

    /// Gives the file so many bytes.
    pub fn set_len(&self, bytes: u64) -> Result<(), Errno> {
        // SAFETY: a system call on numbers.
        let done = unsafe { call(libc::SYS_ftruncate, [self.0 as usize, bytes as usize]) };
        done.map(drop).map_err(Errno)
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

    /// Reads whole pages at `offset`; how many could be. Of `/proc/PID/mem`: as a debugger would,
    /// so that of a page which is shared since a fork no copy is made, and nobody is waited for who
    /// would have to bring one in.
    pub fn read_pages(&self, to: &mut [Page], offset: u64) -> Result<usize, Errno> {
        // SAFETY: the bytes of that slice, of which any are a value.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to))
        };
        self.read_at(bytes, offset).map(|bytes| bytes / crate::PAGE)
    }
}

#[cfg(feature = "std")]
mod exchange {
    use super::Fd;
    use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

    impl From<OwnedFd> for Fd {
        fn from(other: OwnedFd) -> Fd {
            Fd(other.into_raw_fd())
        }
    }

    impl From<Fd> for OwnedFd {
        fn from(fd: Fd) -> OwnedFd {
            // SAFETY: a descriptor that was ours alone, and is given away here.
            unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
        }
    }

    impl AsFd for Fd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            // SAFETY: it stays open as long as it is borrowed.
            unsafe { BorrowedFd::borrow_raw(self.0) }
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used after this.
        let _ = unsafe { call(libc::SYS_close, [self.0 as usize]) };
    }
}
