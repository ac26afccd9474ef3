//! Errors: why the platform cannot be built, and how the kernel's refusals map to the core's.

use core::fmt;

use deckle_mm::{PlatformError, Stop};
use deckle_uffd::{Errno, OpenError, Partial, Why};

use super::kernel::PAGE;

/// Why there is no live platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveError {
    /// No userfaultfd can be had.
    NoUserfaultfd(OpenError),
    /// The kernel refuses the features the platform cannot do without.
    Handshake(Errno),
    /// The parking range does not fit or cannot be registered; bytes asked for.
    Parking(usize, Errno),
    /// A managed range cannot be registered again.
    Managed(Errno),
    /// No room for the small ranges of the platform's own.
    Own(Errno),
    /// `/proc/self/pagemap` cannot be opened.
    Pagemap(Errno),
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiveError::NoUserfaultfd(e) => e.fmt(f),
            LiveError::Handshake(e) => write!(f, "userfaultfd lacks write-protection: {e}"),
            LiveError::Parking(n, e) => write!(f, "parking range of {n} bytes: {e}"),
            LiveError::Managed(e) => write!(f, "managed memory: {e}"),
            LiveError::Own(e) => write!(f, "memory for the platform itself: {e}"),
            LiveError::Pagemap(e) => write!(f, "/proc/self/pagemap: {e}"),
        }
    }
}

impl std::error::Error for LiveError {}

/// The core's word for a reason of the kernel's.
pub fn stop(why: Why) -> Stop {
    match why {
        Why::Busy => Stop::Busy,
        Why::Exists => Stop::Exists,
        Why::NoEntry | Why::Gone => Stop::Gone,
        Why::Again { .. } => Stop::Retry,
        Why::NoMemory | Why::NoSpace => Stop::NoMemory,
        Why::Invalid => Stop::Refused(libc::EINVAL),
        Why::Fault => Stop::Refused(libc::EFAULT),
        Why::BadFd => Stop::Refused(libc::EBADF),
        Why::Other(errno) => Stop::Refused(errno),
        _ => Stop::Refused(libc::EINVAL),
    }
}

/// A half-done range as a half-done run.
pub fn half_done(partial: Partial) -> PlatformError {
    PlatformError {
        at: (partial.done / PAGE) as u32,
        why: stop(partial.why),
    }
}

/// A memory call that was refused as a whole, `at` pages into the run.
pub fn refused(at: u32, errno: Errno) -> PlatformError {
    let why = match errno.0 {
        libc::ENOMEM => Stop::NoMemory,
        libc::EAGAIN => Stop::Retry,
        other => Stop::Refused(other),
    };
    PlatformError { at, why }
}
