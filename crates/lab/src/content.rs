//! Page content of a stated lz4 ratio, so that every workload can say, measure and print how
//! compressible its memory is.
//!
//! A page is eight segments, each with some random bytes in front and a filler behind. The filler
//! repeats an 8-byte word without a zero byte that differs from page to page, so no page is
//! same-filled, none is mostly zero, and pages do not repeat. How many random bytes a ratio
//! needs is found by compressing samples, not by formula: a compressor's headers count too.

use crate::LabError;
use crate::size::PAGE;

/// Segments of a page: the random part is spread over it.
const SEGMENTS: usize = 8;
const SEGMENT: usize = PAGE / SEGMENTS;
/// How far around the bisection's result the best number is looked for.
const NEAR: usize = 48;
/// The range of ratios a page can be given: below 1 lz4 only stores, above 40 its headers rule.
const RATIOS: std::ops::RangeInclusive<f64> = 1.0..=40.0;

/// How to make pages of one lz4 ratio.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recipe {
    ratio: f64,
    random: usize,
}

impl Recipe {
    /// Finds the number of random bytes per page whose lz4 ratio is `ratio`.
    ///
    /// # Errors
    /// [`LabError::Option`] if the ratio is not within 1 to 40.
    pub fn new(ratio: f64) -> Result<Self, LabError> {
        if !RATIOS.contains(&ratio) {
            return Err(LabError::Option(format!(
                "lz4 ratio {ratio}: must be from {} to {}",
                RATIOS.start(),
                RATIOS.end()
            )));
        }
        let want = PAGE as f64 / ratio;
        let miss = |random| ((Recipe { ratio, random }).sample_size() - want).abs();
        // The compressed size grows with the random part, but not evenly: a bisection finds the
        // place, and the best of its surroundings is taken.
        let (mut low, mut high) = (SEGMENTS, PAGE);
        while low < high {
            let random = (low + high) / 2;
            if (Recipe { ratio, random }).sample_size() < want {
                low = random + 1;
            } else {
                high = random;
            }
        }
        let around = low.saturating_sub(NEAR).max(SEGMENTS)..=(low + NEAR).min(PAGE);
        let random = around
            .min_by(|a, b| miss(*a).total_cmp(&miss(*b)))
            .unwrap_or(low);
        Ok(Self { ratio, random })
    }

    /// With so many random bytes per page, for content that is not whole pages.
    pub(crate) fn with_random(ratio: f64, random: usize) -> Self {
        Self { ratio, random }
    }

    /// The ratio asked for.
    pub fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Fills `page` (4096 bytes, or a shorter start of it) with the content of page `page_no` under
    /// `seed`. The same three always give the same bytes.
    pub fn page(&self, seed: u64, page_no: u64, page: &mut [u8]) {
        let mut state = mix(seed ^ mix(page_no));
        let filler = (next(&mut state) | 0x0101_0101_0101_0101).to_le_bytes();
        for (s, segment) in page.chunks_mut(SEGMENT).enumerate() {
            let random = self.random * (s + 1) / SEGMENTS - self.random * s / SEGMENTS;
            let (front, back) = segment.split_at_mut(random.min(segment.len()));
            for word in front.chunks_mut(8) {
                let bytes = next(&mut state).to_le_bytes();
                word.copy_from_slice(&bytes[..word.len()]);
            }
            for (i, byte) in back.iter_mut().enumerate() {
                // Aligned to the page, so that a filler continues the one of the segment before.
                *byte = filler[(random + i) % 8];
            }
        }
    }

    /// Mean compressed size of sample pages, in bytes.
    fn sample_size(&self) -> f64 {
        const SAMPLES: u64 = 8;
        let mut page = [0; PAGE];
        let total: usize = (0..SAMPLES)
            .map(|n| {
                self.page(0x6465_636b, n, &mut page);
                compressed(&page)
            })
            .sum();
        total as f64 / SAMPLES as f64
    }
}

/// Size of `page` after lz4, in bytes.
pub fn compressed(page: &[u8]) -> usize {
    let mut room = vec![0; lz4_flex::block::get_maximum_output_size(page.len())];
    // The room is what the library asks for, so it cannot fail; if it did, the page did not shrink.
    lz4_flex::block::compress_into(page, &mut room).unwrap_or(page.len())
}

/// lz4 ratio of the pages of `bytes`, each compressed by itself, looking at about `samples` of
/// them evenly spread. 0 pages have ratio 1.
pub fn measure(bytes: &[u8], samples: usize) -> f64 {
    let pages = bytes.len() / PAGE;
    let step = (pages / samples.max(1)).max(1);
    let (mut raw, mut small) = (0, 0);
    for page in bytes.chunks_exact(PAGE).step_by(step) {
        raw += PAGE;
        small += compressed(page);
    }
    if small == 0 {
        1.0
    } else {
        raw as f64 / small as f64
    }
}

/// splitmix64: the next number of the sequence.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Spreads a number over all bits; different numbers stay different.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Knuth's generator; its high bits are the random ones.
pub(crate) struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_content_has_the_stated_ratio() {
        for ratio in [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, 40.0] {
            let recipe = Recipe::new(ratio).unwrap();
            let mut bytes = vec![0; 256 * PAGE];
            for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
                recipe.page(7, n as u64, page);
            }
            let measured = measure(&bytes, 256);
            assert!(
                (measured / ratio - 1.0).abs() < 0.05,
                "asked {ratio}, measured {measured}"
            );
        }
        assert!(Recipe::new(0.5).is_err());
        assert!(Recipe::new(f64::NAN).is_err());
        assert!(Recipe::new(100.0).is_err());
    }

    #[test]
    fn r150_every_page_differs_and_none_is_same_filled() {
        let recipe = Recipe::new(40.0).unwrap();
        let mut seen = std::collections::HashSet::new();
        for n in 0..4096 {
            let mut page = vec![0; PAGE];
            recipe.page(1, n, &mut page);
            assert!(page[1..] != page[..PAGE - 1], "page {n} is same-filled");
            assert!(
                page.iter().filter(|b| **b == 0).count() < PAGE / 16,
                "page {n} is zeros"
            );
            assert!(seen.insert(page), "page {n} repeats");
        }
    }
}
