//! Private anonymous memory, mapped the way an ordinary program does it.

use deckle_sys::mapping::Advice;
use deckle_sys::{Errno, Memory};

use crate::LabError;
use crate::size::BLOCK;

/// Maps `len` bytes (not zero), readable and writable, untouched, from a 2 MiB boundary on.
///
/// # Errors
/// What `mmap` says.
pub fn map(len: usize) -> Result<Memory, LabError> {
    Memory::map_aligned(len, BLOCK).map_err(failed("mapping memory"))
}

/// Gives advice about all of it.
///
/// # Errors
/// What `madvise` says.
pub fn advise(memory: &mut Memory, advice: Advice) -> Result<(), LabError> {
    let all = 0..memory.len();
    memory.advise(all, advice).map_err(failed("madvise"))
}

/// The error of a call, about `what`.
pub(crate) fn failed(what: &str) -> impl Fn(Errno) -> LabError {
    move |errno| LabError::io(what, errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r115_regions_are_block_aligned_and_whole() {
        for len in [4096, BLOCK + 4096, 5 * BLOCK] {
            let mut region = map(len).unwrap();
            assert_eq!(region.as_ptr().addr() % BLOCK, 0);
            region.touch(len - 1, 9);
            assert_eq!(region.len(), len);
            assert_eq!(region[len - 1], 9);
            assert!(region[..len - 1].iter().all(|b| *b == 0));
        }
    }
}
