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
/// Of a word the low bits: pages from the region's start; above them the region's number.
const PAGES: u32 = 16;

/// The table. Zeros: nothing is known.
pub struct Known([AtomicUsize; REGIONS]);

impl Known {
    /// Nothing.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Known {
        Known([const { AtomicUsize::new(0) }; REGIONS])
    }

    fn word(&self, region: usize) -> &AtomicUsize {
        &self.0[region % REGIONS]
    }

    /// Whether a block of `bytes`, at least one, that begins at `start` is known.
    #[inline]
    pub fn has(&self, start: usize, bytes: usize) -> bool {
        let last = start.wrapping_add(bytes - 1);
        let (region, page) = (last / REGION, last % REGION / PAGE);
        let word = self.word(region).load(Relaxed);
        word >> PAGES == region && page < word & ((1 << PAGES) - 1) && bytes < REGION
    }

    /// What lies below `end`, which is not 0, in the region of the byte before that is known.
    pub fn note(&self, end: usize) {
        let last = end - 1;
        let (region, page) = (last / REGION, last % REGION / PAGE);
        self.word(region)
            .store(region << PAGES | (page + 1), Relaxed);
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
    use super::{Known, REGION};

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
    fn what_is_larger_than_a_region_is_never_known() {
        let known = Known::new();
        known.note(3 * REGION);
        assert!(!known.has(2 * REGION, REGION) && known.has(2 * REGION, REGION - 1));
    }
}
