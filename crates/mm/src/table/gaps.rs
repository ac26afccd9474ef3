//! Free ranges of pages, by size class: class c holds those of 2^c to 2^(c+1)-1 pages.

use crate::table::vma::Search;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

/// Page numbers have 52 bits, so sizes up to 2^52 occur.
const CLASSES: usize = 53;
/// Gaps of one class that are looked at although each may turn out too small. Larger classes
/// fit at once, so this bounds the search; only if they have none, all are looked at.
const LOOKS: usize = 32;

/// Start and end of each gap.
pub(super) struct Gaps {
    classes: [BTreeMap<u64, u64>; CLASSES],
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps {
            classes: [const { BTreeMap::new() }; CLASSES],
        }
    }
}

fn class(pages: u64) -> usize {
    (pages.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// Where `pages` aligned to `align` fit into `[low, high)`.
fn place(low: u64, high: u64, pages: u64, align: u64, from: Search) -> Option<u64> {
    let at = match from {
        Search::Bottom => low.checked_next_multiple_of(align)?,
        Search::Top => high.checked_sub(pages)? & !(align - 1),
    };
    (at >= low && at.checked_add(pages)? <= high).then_some(at)
}

impl Gaps {
    /// One gap from 0 to `end`.
    pub(super) fn whole(end: u64) -> Gaps {
        let mut gaps = Gaps::default();
        gaps.insert(0, end);
        gaps
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(BTreeMap::is_empty)
    }

    /// Adds a gap; an empty one is ignored.
    pub(super) fn insert(&mut self, low: u64, high: u64) {
        if low < high {
            self.classes[class(high - low)].insert(low, high);
        }
    }

    /// Removes a gap that was added; an empty one is ignored.
    pub(super) fn remove(&mut self, low: u64, high: u64) {
        if low < high {
            self.classes[class(high - low)].remove(&low);
        }
    }

    /// Start of an area of `pages` in `[start, end)`, aligned to `align`.
    pub(super) fn find(
        &self,
        start: u64,
        end: u64,
        pages: u64,
        align: u64,
        from: Search,
    ) -> Option<u64> {
        let fits = |(low, high): (&u64, &u64)| {
            place(*low.max(&start), *high.min(&end), pages, align, from)
        };
        [LOOKS, usize::MAX].into_iter().find_map(|looks| {
            let found = self.classes[class(pages)..].iter().filter_map(|gaps| {
                // The gap that reaches into the window from below, then those that start in it.
                let below = gaps.range(..start).next_back();
                let inside = gaps.range(start..end);
                match from {
                    Search::Bottom => below.into_iter().chain(inside).take(looks).find_map(fits),
                    Search::Top => inside.rev().chain(below).take(looks).find_map(fits),
                }
            });
            match from {
                Search::Bottom => found.min(),
                Search::Top => found.max(),
            }
        })
    }

    /// Whether the index holds exactly `gaps`.
    pub(super) fn verify(&self, gaps: &[(u64, u64)]) -> Result<(), String> {
        let held: usize = self.classes.iter().map(BTreeMap::len).sum();
        if held != gaps.len() {
            return Err(format!("{held} gaps indexed of {}", gaps.len()));
        }
        for (low, high) in gaps {
            if self.classes[class(high - low)].get(low) != Some(high) {
                return Err(format!("gap {low:#x}..{high:#x} is not indexed"));
            }
        }
        Ok(())
    }
}
