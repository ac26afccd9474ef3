//! Private anonymous memory, mapped the way an ordinary program does it.

use std::io;
use std::ptr;

use crate::LabError;
use crate::size::BLOCK;

/// A private anonymous mapping whose start is 2 MiB-aligned.
pub struct Region {
    map: *mut u8,
    map_len: usize,
    base: *mut u8,
    len: usize,
}

impl Region {
    /// Maps `len` bytes (not zero), readable and writable, untouched.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn new(len: usize) -> Result<Self, LabError> {
        let (mut map, mut map_len) = (map(len)?, len);
        if map.addr() % BLOCK != 0 {
            // SAFETY: the range was just mapped here and nothing points into it.
            unsafe { libc::munmap(map.cast(), len) };
            map_len += BLOCK;
            map = self::map(map_len)?;
        }
        let skip = map.addr().next_multiple_of(BLOCK) - map.addr();
        // SAFETY: skip < BLOCK, and where it is not 0 the mapping is BLOCK longer than len.
        let base = unsafe { map.add(skip) };
        Ok(Self {
            map,
            map_len,
            base,
            len,
        })
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: base..base+len lies in a mapping owned by self; anonymous memory is always
        // initialised, and writers need &mut self.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// The memory, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in bytes(), and &mut self makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// Writes one byte so that the store really happens here, where a caller wants to time it.
    ///
    /// # Panics
    /// If `at` is outside.
    pub fn touch(&mut self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: at is inside the mapping (asserted), which is writable and owned by self.
        unsafe { self.base.add(at).write_volatile(byte) }
    }

    /// `madvise` over the whole region.
    ///
    /// # Errors
    /// What the call says.
    pub fn advise(&mut self, advice: libc::c_int) -> Result<(), LabError> {
        // SAFETY: the range is a mapping owned by self. The callers' advice (HUGEPAGE, PAGEOUT)
        // keeps the contents.
        match unsafe { libc::madvise(self.base.cast(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(last_error("madvise")),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by self and no borrow outlives it.
        unsafe { libc::munmap(self.map.cast(), self.map_len) };
    }
}

/// The last error of the system, about `what`.
pub(crate) fn last_error(what: &str) -> LabError {
    LabError::io(what, io::Error::last_os_error())
}

fn map(len: usize) -> Result<*mut u8, LabError> {
    // SAFETY: a new mapping at an address the kernel chooses touches no existing memory.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        Err(last_error("mapping memory"))
    } else {
        Ok(at.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r115_regions_are_block_aligned_and_whole() {
        for len in [4096, BLOCK + 4096, 5 * BLOCK] {
            let mut region = Region::new(len).unwrap();
            assert_eq!(region.base.addr() % BLOCK, 0);
            region.touch(len - 1, 9);
            assert_eq!(region.bytes().len(), len);
            assert_eq!(region.bytes()[len - 1], 9);
            assert!(region.bytes()[..len - 1].iter().all(|b| *b == 0));
        }
    }
}
