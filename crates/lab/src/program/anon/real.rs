//! Real memory, and what the system counts about it.

use std::io;
use std::path::Path;
use std::ptr;

use super::{Accesses, last_error};
use crate::LabError;
use crate::host;
use crate::size::PAGE;

/// The memory of this process.
pub struct Real;

/// A mapping of it.
pub struct Map {
    at: *mut u8,
    bytes: usize,
    malloc: bool,
}

impl Map {
    fn page(&self, page: usize) -> *mut u8 {
        assert!(page < self.bytes / PAGE);
        // SAFETY: within the mapping (just asserted).
        unsafe { self.at.add(page * PAGE) }
    }
}

impl Accesses for Real {
    type Map = Map;
    type Error = io::Error;

    fn map(&mut self, bytes: usize, malloc: bool) -> io::Result<Map> {
        let at = if malloc {
            // SAFETY: a new allocation, owned by the result.
            unsafe { libc::malloc(bytes) }
        } else {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the system's choice.
            match unsafe { libc::mmap(ptr::null_mut(), bytes, prot, flags, -1, 0) } {
                libc::MAP_FAILED => ptr::null_mut(),
                at => at,
            }
        };
        if at.is_null() {
            return Err(io::Error::last_os_error());
        }
        let at = std::hint::black_box(at.cast());
        Ok(Map { at, bytes, malloc })
    }

    fn unmap(&mut self, map: Map) -> io::Result<()> {
        if map.malloc {
            // SAFETY: from malloc above, used by nobody any more.
            unsafe { libc::free(map.at.cast()) };
            return Ok(());
        }
        // SAFETY: mapped above, used by nobody any more.
        match unsafe { libc::munmap(map.at.cast(), map.bytes) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn write(&mut self, map: &mut Map, page: usize) -> io::Result<()> {
        // SAFETY: a byte of the mapping, which nothing else points to.
        unsafe { map.page(page).write_volatile(1) };
        Ok(())
    }

    fn fill(&mut self, map: &mut Map, page: usize) -> io::Result<()> {
        // SAFETY: a page of the mapping, which nothing else points to.
        unsafe { ptr::write_bytes(std::hint::black_box(map.page(page)), 0x5a, PAGE) };
        Ok(())
    }

    fn read(&mut self, map: &mut Map, page: usize) -> io::Result<()> {
        // SAFETY: a byte of the mapping.
        unsafe { map.page(page).read_volatile() };
        Ok(())
    }

    fn clear(&mut self, map: &mut Map) -> io::Result<()> {
        // SAFETY: the mapping's bytes are not needed any more.
        match unsafe { libc::madvise(map.at.cast(), map.bytes, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Page faults of this process and of the children it has waited for.
pub fn faults() -> Result<u64, LabError> {
    let of = |who| {
        // SAFETY: an all-zero rusage is a valid one.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills one rusage, which `usage` is.
        match unsafe { libc::getrusage(who, &mut usage) } {
            0 => Ok(usage.ru_minflt as u64 + usage.ru_majflt as u64),
            _ => Err(last_error("counting page faults")),
        }
    };
    Ok(of(libc::RUSAGE_SELF)? + of(libc::RUSAGE_CHILDREN)?)
}

/// Anonymous memory of this process in bytes: with whatever manages it, since that shares the
/// address space.
pub fn anonymous() -> Result<u64, LabError> {
    let path = Path::new("/proc/self/smaps_rollup");
    let text = host::read(path)?;
    let kib = text.lines().find_map(|line| {
        let value = line.strip_prefix("Anonymous:")?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    kib.map(|kib| kib << 10).ok_or_else(|| {
        let e = io::Error::new(io::ErrorKind::InvalidData, "no line Anonymous");
        LabError::file("reading", path, e)
    })
}
