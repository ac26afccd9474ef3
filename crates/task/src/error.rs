//! Why a service task could not be made.

use core::fmt;

/// Why an [`Area`](crate::Area) or a task could not be made. The caller can fall back to threads
/// on [`SpawnError::Unsupported`]; the other cases are a lack of something, or a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnError {
    /// This processor, libc or loader is not one that the crate knows; the text says what is
    /// missing.
    Unsupported(&'static str),
    /// The system refused a call with this errno.
    Refused {
        /// The call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// A task still runs in the area.
    Busy {
        /// Its thread id.
        tid: i32,
    },
    /// More descriptors to keep than the limit, or a negative one.
    Keep {
        /// How many may be kept.
        limit: usize,
    },
    /// The task was killed before it was ready.
    Died,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::Unsupported(what) => {
                write!(f, "service tasks are not possible here: {what}")
            }
            SpawnError::Refused { call, errno } => {
                write!(
                    f,
                    "cannot make a service task: {call} failed with errno {errno}"
                )
            }
            SpawnError::Busy { tid } => {
                write!(
                    f,
                    "cannot make a service task: task {tid} still runs in its memory"
                )
            }
            SpawnError::Keep { limit } => {
                write!(f, "a service task keeps at most {limit} valid descriptors")
            }
            SpawnError::Died => write!(f, "the service task was killed before it was ready"),
        }
    }
}

impl core::error::Error for SpawnError {}
