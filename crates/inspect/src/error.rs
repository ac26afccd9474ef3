//! What can go wrong, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use deckle_sys::Errno;
use deckle_sys::process::effective_user;

/// Why nothing can be told.
#[derive(Debug)]
pub enum InspectError {
    /// There is no such process, or it has ended.
    Gone(u32),
    /// It has no memory, as threads of the kernel, and who has ended but for its status.
    NoMemory(u32),
    /// Its memory is not shown to us.
    Refused {
        /// The process.
        pid: u32,
        /// What the system said.
        why: Errno,
    },
    /// No process has this name.
    NoSuch(String),
    /// This is no cgroup.
    NoCgroup(PathBuf),
    /// A file of the system cannot be read.
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
}

impl InspectError {
    /// What the system said of a file of this process.
    pub fn of(pid: u32, why: Errno) -> InspectError {
        match why.0 {
            libc::ENOENT | libc::ESRCH => InspectError::Gone(pid),
            _ => InspectError::Refused { pid, why },
        }
    }

    /// The same of an error of the standard library.
    pub fn of_io(pid: u32, why: &io::Error) -> InspectError {
        InspectError::of(pid, Errno(why.raw_os_error().unwrap_or(libc::EIO)))
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(pid) => write!(f, "there is no process {pid}, or it has ended"),
            Self::NoMemory(pid) => write!(
                f,
                "process {pid} has no memory: the kernel's own, or it has ended"
            ),
            Self::Refused { pid, why } => {
                let remedy = match effective_user() {
                    0 => "not even root may look into it here: give another, or look from outside",
                    _ => "run as root or as its user, and see kernel.yama.ptrace_scope",
                };
                write!(f, "process {pid}: {why}: {remedy}")
            }
            Self::NoSuch(name) => write!(
                f,
                "no process is called `{name}`: give a PID, the name that `ps -e` shows, or a \
                 cgroup as a path with a slash"
            ),
            Self::NoCgroup(path) => write!(
                f,
                "{} is no cgroup: give a directory below /sys/fs/cgroup that has cgroup.procs",
                path.display()
            ),
            Self::File { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for InspectError {}
