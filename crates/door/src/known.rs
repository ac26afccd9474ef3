//! Up to where blocks of the program's own allocator are known to be managed, or left to the
//! kernel.
//!
//! One word for each 64 MiB of addresses, in a small table: heaps grow upwards. A word that is not
//! there, or another's, costs a question; a wrong one until the mappings are looked at next.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
/// Bytes of addresses that one word tells of.
pub const REGION: usize = 64 << 20;
const REGIONS: usize = 1024;
/// Bytes of a small block and more: of those the GNU C library has mappings by themselves, unless
/// a program sets that otherwise.
pub const SMALL: usize = 128 << 10;

/// The table: of each region the last byte that is known, with all below it; 0: none.
pub struct Known([AtomicUsize; REGIONS]);

impl Known {
    /// Nothing.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Known {
        Known([const { AtomicUsize::new(0) }; REGIONS])
    }

    #[inline]
    fn word(&self, region: usize) -> &AtomicUsize {
        &self.0[region % REGIONS]
    }

    /// Whether a block of `bytes`, at least one, that begins at `start` is known: the first page,
    /// of which no block is, may be said to be.
    #[inline]
    pub fn has(&self, start: usize, bytes: usize) -> bool {
        // Two bytes of one word that are less than a region apart are in the same one.
        let last = start.wrapping_add(bytes - 1);
        let known = self.word(last / REGION).load(Relaxed);
        known.wrapping_sub(last) < REGION && bytes < REGION
    }

    /// The same, in fewer instructions, of a block of less than [`SMALL`] bytes; false, too, near
    /// the end of what is known.
    #[inline]
    pub fn has_small(&self, start: usize) -> bool {
        let known = self.word(start / REGION).load(Relaxed);
        known.wrapping_sub(start).wrapping_sub(SMALL) < REGION - SMALL
    }

    /// What lies below `end`, which is not 0, in the region of the byte before that is known.
    pub fn note(&self, end: usize) {
        let last = (end - 1) | (PAGE - 1);
        self.word(last / REGION).store(last, Relaxed);
    }

    /// Nothing is known any more: something is gone.
    pub fn forget(&self) {
        let known = |word: &&AtomicUsize| word.load(Relaxed) != 0;
        self.0
            .iter()
            .filter(known)
            .for_each(|word| word.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::{Known, REGION, SMALL};

    #[test]
    fn what_lies_below_an_end_is_known_until_it_is_forgotten() {
        let (known, base) = (Known::new(), 7 * REGION);
        assert!(!known.has(base, 1));
        known.note(base + 0x2001);
        assert!(known.has(base, 0x3000) && known.has(base + 0x2fff, 1));
        assert!(!known.has(base, 0x3001) && !known.has(base + 0x3000, 1));
        // One that begins in the region before is told by its end.
        assert!(known.has(base - 16, 0x1000) && !known.has(base - 16, 16));
        // Another region with the same word.
        assert!(!known.has(base + 1024 * REGION, 1));
        known.note(base + REGION);
        assert!(known.has(base + REGION - 1, 1) && !known.has(base + REGION, 1));
        known.forget();
        assert!(!known.has(base, 1));
    }

    #[test]
    fn a_small_block_is_known_by_its_start_alone() {
        let (known, base) = (Known::new(), 7 * REGION);
        let small = |start| known.has_small(start);
        assert!(!small(base) && !small(base - 16) && !small(0));
        known.note(base + SMALL);
        assert!(
            !small(base),
            "its last byte may be the first that is unknown"
        );
        known.note(base + SMALL + 0x1000);
        assert!(small(base) && small(base + 0xfff) && !small(base + 0x1000));
        assert!(!small(base + 1024 * REGION) && !small(base - 16));
        known.note(base + REGION);
        assert!(small(base + REGION - SMALL - 1) && !small(base + REGION - SMALL));
    }

    #[test]
    fn what_is_larger_than_a_region_is_never_known() {
        let known = Known::new();
        known.note(3 * REGION);
        assert!(!known.has(2 * REGION, REGION) && known.has(2 * REGION, REGION - 1));
    }
}
