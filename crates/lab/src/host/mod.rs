//! The host kernel's side: settings, swap on zram, memory cgroups, and giving it all back.

pub mod cgroup;
mod guard;
pub mod journal;
pub mod keeper;
pub mod pss;
pub mod thp;
pub mod zram;

pub use guard::{Guard, JOURNAL};

use std::fs;
use std::path::Path;

use crate::LabError;

/// Reads a system file as text.
///
/// # Errors
/// [`LabError::Io`] with the path.
pub fn read(path: &Path) -> Result<String, LabError> {
    fs::read_to_string(path).map_err(|e| LabError::file("reading", path, e))
}

/// True if this process is root, which every change of the host needs.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A counter of /proc/vmstat; 0 if this kernel does not have it.
///
/// # Errors
/// If the file cannot be read.
pub fn vmstat(name: &str) -> Result<u64, LabError> {
    let text = read(Path::new("/proc/vmstat"))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0))
}
