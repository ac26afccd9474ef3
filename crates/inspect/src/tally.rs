//! How many zero-filled pages huge pages have, and what a threshold makes of that.

use deckle_mm::is_underused;

use crate::sample::{Estimate, Moments};
use crate::{BLOCK, BLOCK_PAGES, PAGE};

/// Values a huge page can have: 0 to 512 zero-filled pages.
const BINS: usize = BLOCK_PAGES as usize + 1;

/// Huge pages by the number of zero-filled pages in each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram(Box<[u64; BINS]>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(Box::new([0; BINS]))
    }
}

impl Histogram {
    /// A huge page with so many was seen; more than 512 are as 512.
    pub fn add(&mut self, zeros: u32) {
        self.0[(zeros as usize).min(BINS - 1)] += 1;
    }

    /// The huge pages of another are here, too.
    pub fn merge(&mut self, other: &Histogram) {
        self.0
            .iter_mut()
            .zip(other.0.iter())
            .for_each(|(a, b)| *a += b);
    }

    /// Huge pages that were seen.
    pub fn pages(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each number of zero-filled pages that there is, with the huge pages that have it.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(*self.0).filter(|(_, pages)| *pages > 0)
    }
}

/// Huge pages of one kind, all or a sample of which were looked at.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// How many there are.
    pub all: u64,
    /// Those that were looked at.
    pub seen: Histogram,
}

impl Tally {
    /// Zero-filled bytes in them.
    pub fn zeros(&self) -> Estimate {
        self.sum(|zeros| zeros)
    }

    /// Bytes that the kernel frees of them at this threshold.
    pub fn freed_at(&self, max_ptes_none: u32) -> Estimate {
        let on = shrinks(max_ptes_none);
        let goes = |zeros| on && is_underused(zeros, max_ptes_none);
        self.sum(|zeros| if goes(zeros) { zeros } else { 0 })
    }

    /// Huge pages that are split for it.
    pub fn split_at(&self, max_ptes_none: u32) -> Estimate {
        let on = shrinks(max_ptes_none);
        let goes = |zeros| on && is_underused(zeros, max_ptes_none);
        let whole = self.sum(|zeros| if goes(zeros) { BLOCK_PAGES } else { 0 });
        whole.map(|bytes| bytes / BLOCK as f64)
    }

    /// Bytes of so many pages of each huge page, by its zero-filled ones.
    fn sum(&self, pages: impl Fn(u32) -> u32) -> Estimate {
        let mut moments = Moments::default();
        for (zeros, n) in self.seen.iter() {
            let share = f64::from(pages(zeros)) / f64::from(BLOCK_PAGES);
            moments.add(share, n);
        }
        moments.total(self.all).map(|blocks| blocks * BLOCK as f64)
    }

    /// The huge pages of another are here, too. Of two samples of different parts the whole is not
    /// a sample of both: what is estimated is to be added up instead, except where all was seen.
    pub fn merge(&mut self, other: &Tally) {
        self.all += other.all;
        self.seen.merge(&other.seen);
    }
}

/// Whether the kernel's shrinker does anything at this threshold: it takes 511 as off.
pub fn shrinks(max_ptes_none: u32) -> bool {
    let mut knobs = deckle_mm::Tunables::of_profile(deckle_mm::Profile::Linux);
    knobs.shrink_underused = true;
    knobs.max_ptes_none = max_ptes_none.min(BLOCK_PAGES) as u16;
    knobs.shrinks()
}

/// Bytes of pages.
pub const fn bytes(pages: u64) -> u64 {
    pages * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(zeros: &[u32]) -> Tally {
        let mut seen = Histogram::default();
        zeros.iter().for_each(|z| seen.add(*z));
        Tally {
            all: seen.pages(),
            seen,
        }
    }

    #[test]
    fn r98_more_zero_pages_than_max_ptes_none_are_freed_and_as_many_are_not() {
        let t = tally(&[0, 64, 65, 409, 410, 510, 511, 512]);
        let freed = |threshold| t.freed_at(threshold).value as u64 / PAGE;
        assert_eq!(freed(0), 64 + 65 + 409 + 410 + 510 + 511 + 512);
        assert_eq!(freed(64), 65 + 409 + 410 + 510 + 511 + 512);
        assert_eq!(freed(409), 410 + 510 + 511 + 512);
        assert_eq!(freed(510), 511 + 512);
        assert_eq!(freed(511), 0, "the kernel takes it as off");
        assert_eq!(t.split_at(409).value as u64, 4);
        assert_eq!(t.zeros().value as u64 / PAGE, freed(0));
        assert!(t.zeros().is_exact());
    }
}
