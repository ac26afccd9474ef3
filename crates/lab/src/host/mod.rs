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
use std::io;
use std::path::Path;

use deckle_sys::process::effective_user;

use crate::LabError;
use crate::experiment::bad;
use crate::size::human;

/// Reads a system file as text.
///
/// # Errors
/// [`LabError::Io`] with the path.
pub fn read(path: &Path) -> Result<String, LabError> {
    fs::read_to_string(path).map_err(|e| LabError::file("reading", path, e))
}

/// Writes a system file.
///
/// # Errors
/// [`LabError::Host`] where the system keeps it from us (as containers do, also from root), else
/// [`LabError::Io`]; both with the path.
pub fn write(path: &Path, value: &str) -> Result<(), LabError> {
    fs::write(path, value).map_err(|e| refused("writing", path, e))
}

/// An error about a change of the host, told apart by whether we may not or it failed.
fn refused(what: &str, path: &Path, e: io::Error) -> LabError {
    match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => LabError::Host {
            what: format!("{what} {} is not allowed here ({e})", path.display()),
            remedy: "run as root outside of a container, or leave the kernel side out with --on"
                .into(),
        },
        _ => LabError::file(what, path, e),
    }
}

/// This host lacks something that the kernel's rows need.
fn lacks<T>(what: impl Into<String>, remedy: &str) -> Result<T, LabError> {
    Err(LabError::Host {
        what: what.into(),
        remedy: format!("{remedy}, or leave the kernel side out with --on"),
    })
}

/// True if this process is root, which every change of the host needs.
pub fn is_root() -> bool {
    effective_user() == 0
}

/// Memory of the host that programs can still get, in bytes.
///
/// # Errors
/// If /proc/meminfo cannot be read or does not say.
pub fn mem_available() -> Result<u64, LabError> {
    Ok(field(Path::new("/proc/meminfo"), "MemAvailable")? << 10)
}

/// Refuses a mapping of `size` bytes for which the host does not have `need` bytes.
pub(crate) fn fits(size: u64, need: u64) -> Result<(), LabError> {
    let have = mem_available()?;
    if need <= have {
        return Ok(());
    }
    let (size, have) = (human(size), human(have));
    bad(format!(
        "--size: {size} do not fit into memory, of which {have} can be had: give a smaller size"
    ))
}

/// A number in a system file, on the line or after the word that `name` is; none: all there is.
pub(crate) fn field(path: &Path, name: &str) -> Result<u64, LabError> {
    let text = read(path)?;
    let mut lines = text.lines().filter_map(|line| line.split_once([' ', ':']));
    let value = match name {
        "" => Some(text.as_str()),
        _ => lines.find(|(key, _)| *key == name).map(|(_, value)| value),
    };
    let number = value.and_then(|value| value.trim().trim_end_matches(" kB").parse().ok());
    number.ok_or_else(|| unexpected(path))
}

/// A system file does not hold what was expected.
fn unexpected(path: &Path) -> LabError {
    let e = io::Error::new(io::ErrorKind::InvalidData, "unexpected content");
    LabError::file("reading", path, e)
}

/// A counter of /proc/vmstat; 0 if this kernel does not have it.
///
/// # Errors
/// If the file cannot be read.
pub fn vmstat(name: &str) -> Result<u64, LabError> {
    match field(Path::new("/proc/vmstat"), name) {
        Err(LabError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => Ok(0),
        other => other,
    }
}
