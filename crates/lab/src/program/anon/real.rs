//! Real memory, and what the system counts about it.

use std::path::Path;
use std::ptr;

use super::Accesses;
use crate::LabError;
use crate::host;
use crate::region::last_error;
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
    type Error = LabError;

    fn map(&mut self, bytes: usize, malloc: bool) -> Result<Map, LabError> {
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
            return Err(last_error("mapping memory"));
        }
        let at = std::hint::black_box(at.cast());
        Ok(Map { at, bytes, malloc })
    }

    fn unmap(&mut self, map: Map) -> Result<(), LabError> {
        if map.malloc {
            // SAFETY: from malloc above, used by nobody any more.
            unsafe { libc::free(map.at.cast()) };
            return Ok(());
        }
        // SAFETY: mapped above, used by nobody any more.
        match unsafe { libc::munmap(map.at.cast(), map.bytes) } {
            0 => Ok(()),
            _ => Err(last_error("giving memory back")),
        }
    }

    fn write(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        // SAFETY: a byte of the mapping, which nothing else points to.
        unsafe { map.page(page).write_volatile(1) };
        Ok(())
    }

    fn fill(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        // SAFETY: a page of the mapping, which nothing else points to.
        unsafe { ptr::write_bytes(std::hint::black_box(map.page(page)), 0x5a, PAGE) };
        Ok(())
    }

    fn read(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        // SAFETY: a byte of the mapping.
        unsafe { map.page(page).read_volatile() };
        Ok(())
    }

    fn clear(&mut self, map: &mut Map) -> Result<(), LabError> {
        // SAFETY: the mapping's bytes are not needed any more.
        match unsafe { libc::madvise(map.at.cast(), map.bytes, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(last_error("giving memory back")),
        }
    }
}

/// Anonymous memory of this process in bytes: with whatever manages it, since that shares the
/// address space.
pub fn anonymous() -> Result<u64, LabError> {
    Ok(host::field(Path::new("/proc/self/smaps_rollup"), "Anonymous")? << 10)
}
