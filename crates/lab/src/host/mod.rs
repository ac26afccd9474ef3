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

use crate::LabError;

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

/// True if this process is root, which every change of the host needs.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Memory of the host that programs can still get, in bytes.
///
/// # Errors
/// If /proc/meminfo cannot be read or does not say.
pub fn mem_available() -> Result<u64, LabError> {
    let path = Path::new("/proc/meminfo");
    let kib = read(path)?.lines().find_map(|line| {
        let value = line.strip_prefix("MemAvailable:")?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    kib.map(|kib| kib << 10).ok_or_else(|| {
        let e = io::Error::new(io::ErrorKind::InvalidData, "no MemAvailable");
        LabError::file("reading", path, e)
    })
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
