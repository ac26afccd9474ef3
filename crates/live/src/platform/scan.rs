//! Which pages hold only zeros.
//!
//! The work of the zero scan is reading memory at full speed: 64 bytes at a time where the
//! compiler vectorises, with a test every 256 bytes so that a page with bytes costs almost
//! nothing. Of each page the first word and the last are asked first: many pages that begin with
//! zeros do not end with them, and it costs the others next to nothing. CPUs with AVX2 are
//! found at run time; the baseline is the fallback.

use deckle_mm::{BLOCK_PAGES, PageMask};

use super::kernel::PAGE;
use crate::trace::{Stage, stage};

/// Words between two tests.
const STRIDE: usize = 32;

/// Whether a page is all zeros; `looked` hears of so many words each time some were looked at.
#[inline(always)]
fn is_zero(page: &[u64; PAGE / 8], mut looked: impl FnMut(usize)) -> bool {
    looked(2);
    if page[0] != 0 || page[PAGE / 8 - 1] != 0 {
        return false;
    }
    page.as_chunks::<STRIDE>().0.iter().all(|chunk| {
        looked(STRIDE);
        let mut sum = [0u64; 8];
        for lane in chunk.as_chunks::<8>().0 {
            for (s, w) in sum.iter_mut().zip(lane) {
                *s |= w;
            }
        }
        sum.iter().fold(0, |a, b| a | b) == 0
    })
}

#[inline(always)]
fn scan(pages: &[[u64; PAGE / 8]]) -> PageMask {
    let mut mask = PageMask::EMPTY;
    for (i, page) in pages.iter().take(BLOCK_PAGES as usize).enumerate() {
        if is_zero(page, |_| ()) {
            mask.0[i / 64] |= 1 << (i % 64);
        }
    }
    mask
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn scan_avx2(pages: &[[u64; PAGE / 8]]) -> PageMask {
    scan(pages)
}

/// Bit i is set if page i holds only zeros; pages beyond the first 512 are not looked at.
pub fn zero_pages(pages: &[[u64; PAGE / 8]]) -> PageMask {
    let _traced = stage(Stage::Scan);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature, as just asked.
        return unsafe { scan_avx2(pages) };
    }
    scan(pages)
}

/// The same as [`zero_pages`] on a CPU without vectors of 32 bytes.
pub fn zero_pages_scalar(pages: &[[u64; PAGE / 8]]) -> PageMask {
    scan(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_bit_makes_a_page_nonzero() {
        let mut pages = vec![[0u64; PAGE / 8]; 3];
        assert_eq!(zero_pages(&pages), PageMask::first(3));
        for bit in (0..PAGE * 8).step_by(7) {
            pages[1][bit / 64] = 1 << (bit % 64);
            let mask = zero_pages(&pages);
            assert_eq!(mask, scan(&pages));
            assert!(mask.get(0) && !mask.get(1) && mask.get(2), "bit {bit}");
            pages[1][bit / 64] = 0;
        }
    }

    #[test]
    fn r99_a_scan_ends_within_256_bytes_of_the_first_other_byte() {
        let looked_at = |page: &[u64; PAGE / 8]| {
            let mut words = 0;
            let zero = is_zero(page, |n| words += n);
            (zero, words)
        };
        const WORDS: usize = PAGE / 8;
        let mut page = [0u64; WORDS];
        assert_eq!(looked_at(&page), (true, 2 + WORDS));
        for at in 0..WORDS {
            page[at] = 1 << (at % 64);
            let words = match at {
                0 => 2,
                _ if at == WORDS - 1 => 2,
                // Whole strides, to the end of the one that it is in.
                _ => 2 + (at / STRIDE + 1) * STRIDE,
            };
            assert_eq!(looked_at(&page), (false, words), "word {at}");
            page[at] = 0;
        }
    }

    #[test]
    fn pages_beyond_a_block_are_left_out() {
        let pages = vec![[0u64; PAGE / 8]; 600];
        assert_eq!(zero_pages(&pages), PageMask::FULL);
    }
}
