//! What can go wrong in an experiment.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An experiment that could not be run, or whose run cannot be trusted.
#[derive(Debug)]
pub enum LabError {
    /// An option makes no sense; says which and why.
    Option(String),
    /// This side needs something the host does not give; says what, and how to get it.
    Host {
        /// What is missing.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// A system file or call failed.
    Io {
        /// What was being done, with the file, if one was involved.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A workload ended otherwise than it should.
    Child {
        /// Which run.
        what: String,
        /// How it ended, with the end of its stderr.
        how: String,
    },
    /// The statistics that `deckle run --stats` wrote lack something.
    Stats(String),
    /// No run was warm: the first huge page faults took longer than allowed in every attempt.
    Cold {
        /// Attempts made.
        attempts: usize,
        /// Average of the first faults in the best of them, in microseconds.
        best_us: f64,
    },
    /// Somebody else changed a setting in the middle of a run.
    Disturbed {
        /// The setting.
        path: PathBuf,
        /// What the run had set.
        want: String,
        /// What was found.
        found: String,
    },
    /// Settings could not be given back; says which and how to do it by hand.
    NotRestored(String),
    /// The model refused or failed.
    Model(String),
}

impl LabError {
    /// An [`LabError::Io`] without a file.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    /// An [`LabError::Io`] about a file.
    pub fn file(what: impl fmt::Display, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::io(format!("{what} {}", path.as_ref().display()), source)
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(why) => write!(f, "{why}"),
            Self::Host { what, remedy } => write!(f, "{what}; {remedy}"),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Child { what, how } => write!(f, "{what}: {how}"),
            Self::Stats(why) => write!(f, "statistics of deckle run: {why}"),
            Self::Cold { attempts, best_us } => write!(
                f,
                "{attempts} runs discarded: the first huge page faults took {best_us:.0} us or \
                 more on average, the machine does not keep memory warm"
            ),
            Self::Disturbed { path, want, found } => write!(
                f,
                "{} was set to {want} for the run and is now {found}: something else changes it",
                path.display()
            ),
            Self::NotRestored(why) => write!(f, "settings not restored: {why}"),
            Self::Model(why) => write!(f, "model: {why}"),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
