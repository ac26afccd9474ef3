//! The kernel's flags of the page behind an address (root only).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::mem::PAGE;

const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;

fn word(path: &str, index: u64) -> u64 {
    let mut bytes = [0; 8];
    let file = File::open(path).expect(path);
    file.read_exact_at(&mut bytes, index * 8).expect(path);
    u64::from_ne_bytes(bytes)
}

/// Pages of the range that belong to a large folio.
pub fn compound_pages(addr: usize, len: usize) -> usize {
    (addr..addr + len)
        .step_by(PAGE)
        .filter(|at| {
            let entry = word("/proc/self/pagemap", (at / PAGE) as u64);
            assert!(entry >> 63 == 1, "page is not present");
            let flags = word("/proc/kpageflags", entry & ((1 << 55) - 1));
            flags & (COMPOUND_HEAD | COMPOUND_TAIL) != 0
        })
        .count()
}

/// A setting in /sys that is put back on drop. Meanwhile the file is locked, so that runs side by
/// side do not put back each other's value.
pub struct Setting {
    path: &'static str,
    _lock: File,
    before: String,
}

impl Setting {
    /// Writes `value`; the error if that is not allowed here.
    pub fn set(path: &'static str, value: &str) -> std::io::Result<Self> {
        let lock = File::open(path)?;
        // SAFETY: an open descriptor; the lock goes with it.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let text = std::fs::read_to_string(path)?;
        // "always inherit madvise [never]": the bracketed word is in force.
        let before = match text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
        {
            Some((word, _)) => word.to_owned(),
            None => text.trim().to_owned(),
        };
        std::fs::write(path, value)?;
        Ok(Self {
            path,
            _lock: lock,
            before,
        })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(e) = std::fs::write(self.path, &self.before) {
            eprintln!("could not put {} back into {}: {e}", self.before, self.path);
        }
    }
}
