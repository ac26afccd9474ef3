//! Errors: the bare number, and the outcome of an operation over a range.

use core::fmt;

pub use deckle_sys::Errno;

/// The whole range was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Length of the range in bytes. With [`MoveMode::ALLOW_SRC_HOLES`](crate::MoveMode) holes
    /// are counted too.
    pub bytes: usize,
}

/// An operation stopped before the end of its range.
///
/// `done` bytes at the start of the range are finished and (unless told otherwise) their waiters
/// woken. If `done` is not zero the kernel does not tell what stopped it: `why` is then
/// `Again { changing: false }`, and the call for the rest gives the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partial {
    /// Bytes finished, from the start of the range; less than its length. At least so many: some
    /// kernels forget a part (see [`Uffd::move_pages`](crate::Uffd::move_pages)).
    pub done: usize,
    /// What stopped it.
    pub why: Why,
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped after {} bytes: {}", self.done, self.why)
    }
}

impl core::error::Error for Partial {}

/// Why an operation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Why {
    /// `EBUSY`. The page at the head of the rest is pinned, merged by KSM or shared since a
    /// fork. If shared, `MADV_POPULATE_WRITE` gives it back; a pin only its holder ends.
    Busy,
    /// `EEXIST`. The destination is occupied, possibly by no more than a write-protect marker.
    Exists,
    /// `ENOENT`. The source has a hole, or there is no suitable registered mapping.
    NoEntry,
    /// `EAGAIN`. Try the rest again.
    Again {
        /// True: nothing was done because the address space is changing. An event (fork, remap,
        /// remove, unmap) is queued and unread, and until somebody reads it this will repeat for
        /// *any* range: drain the descriptor before trying again. False: a part was done.
        changing: bool,
    },
    /// `EINVAL`. Unaligned, unregistered, protection or kind of the two ranges differ, read-only,
    /// locked, beyond a mapping, or not known to this kernel.
    Invalid,
    /// `ENOSPC`. No room to back the page (or, up to Linux 4.13, the process has exited).
    NoSpace,
    /// `ESRCH`. The process that the memory belonged to has exited.
    Gone,
    /// `ENOMEM`. No memory for page or page table, or charging it failed.
    NoMemory,
    /// `EFAULT`. The bytes to copy from cannot be read.
    Fault,
    /// `EBADF` or `ENOTTY`. The descriptor is closed or no longer a userfaultfd. If memory is
    /// evicted this is the last warning before it reads as zeros.
    BadFd,
    /// Any other error number (`EINTR`: a fatal signal is pending).
    Other(i32),
}

impl Why {
    /// The meaning of an error number that an operation failed with, nothing being done.
    pub const fn from_errno(errno: Errno) -> Self {
        match errno.0 {
            libc::EBUSY => Self::Busy,
            libc::EEXIST => Self::Exists,
            libc::ENOENT => Self::NoEntry,
            libc::EAGAIN => Self::Again { changing: true },
            libc::EINVAL => Self::Invalid,
            libc::ENOSPC => Self::NoSpace,
            libc::ESRCH => Self::Gone,
            libc::ENOMEM => Self::NoMemory,
            libc::EFAULT => Self::Fault,
            libc::EBADF | libc::ENOTTY => Self::BadFd,
            other => Self::Other(other),
        }
    }
}

impl From<Errno> for Why {
    fn from(e: Errno) -> Self {
        Self::from_errno(e)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "page is pinned or shared (EBUSY)",
            Self::Exists => "destination is occupied (EEXIST)",
            Self::NoEntry => "source hole or no registered mapping (ENOENT)",
            Self::Again { changing: true } => "address space is changing (EAGAIN)",
            Self::Again { changing: false } => "stopped half-way (EAGAIN)",
            Self::Invalid => "range not acceptable (EINVAL)",
            Self::NoSpace => "no space to back the page (ENOSPC)",
            Self::Gone => "the process has exited (ESRCH)",
            Self::NoMemory => "out of memory (ENOMEM)",
            Self::Fault => "source bytes unreadable (EFAULT)",
            Self::BadFd => "not an open userfaultfd (EBADF)",
            Self::Other(e) => return write!(f, "{}", Errno(*e)),
        })
    }
}

impl core::error::Error for Why {}

/// Judges the pair that the kernel leaves behind: the ioctl's error (if any) and the progress
/// field, which was zero before the call.
///
/// The field is progress only if positive. It may hold `-EAGAIN` (or any other negative error)
/// instead; and it stays zero if the arguments were refused before any work.
pub(crate) const fn outcome(
    ioctl: Result<(), Errno>,
    progress: i64,
    len: usize,
) -> Result<Done, Partial> {
    match ioctl {
        Ok(()) => Ok(Done { bytes: len }),
        Err(Errno(libc::EAGAIN)) if progress > 0 => {
            // The kernel never reports more than it was asked for; should it, redoing the last
            // page is harmless (EEXIST), skipping one is not.
            let done = if progress as u64 >= len as u64 {
                0
            } else {
                progress as usize
            };
            Err(Partial {
                done,
                why: Why::Again { changing: false },
            })
        }
        Err(errno) => Err(Partial {
            done: 0,
            why: Why::from_errno(errno),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Result<(), Errno> = Err(Errno(libc::EAGAIN));

    #[test]
    fn p9_negative_progress_is_never_progress() {
        let changing = Partial {
            done: 0,
            why: Why::Again { changing: true },
        };
        assert_eq!(
            outcome(AGAIN, -i64::from(libc::EAGAIN), 8192),
            Err(changing)
        );
        assert_eq!(outcome(AGAIN, 0, 8192), Err(changing));
        assert_eq!(outcome(AGAIN, i64::MIN, 8192), Err(changing));
        assert_eq!(
            outcome(Err(Errno(libc::EEXIST)), -i64::from(libc::EEXIST), 8192),
            Err(Partial {
                done: 0,
                why: Why::Exists
            })
        );
    }

    #[test]
    fn p9_partial_progress_is_kept_apart_from_its_reason() {
        let half = Partial {
            done: 4096,
            why: Why::Again { changing: false },
        };
        assert_eq!(outcome(AGAIN, 4096, 8192), Err(half));
        assert_eq!(outcome(Ok(()), 8192, 8192), Ok(Done { bytes: 8192 }));
    }

    #[test]
    fn p8_each_error_has_its_own_meaning() {
        let of = |e| outcome(Err(Errno(e)), -i64::from(e), 4096).map_err(|p| p.why);
        assert_eq!(of(libc::EBUSY), Err(Why::Busy));
        assert_eq!(of(libc::EEXIST), Err(Why::Exists));
        assert_eq!(of(libc::ENOENT), Err(Why::NoEntry));
        assert_eq!(of(libc::EINVAL), Err(Why::Invalid));
        assert_eq!(of(libc::ESRCH), Err(Why::Gone));
        assert_eq!(of(libc::ENOSPC), Err(Why::NoSpace));
        assert_eq!(of(libc::ENOMEM), Err(Why::NoMemory));
        assert_eq!(of(libc::EFAULT), Err(Why::Fault));
        assert_eq!(of(libc::EBADF), Err(Why::BadFd));
        assert_eq!(of(libc::EINTR), Err(Why::Other(libc::EINTR)));
    }
}
