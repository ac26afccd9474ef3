//! The smallest change that keeps what huge pages waste within a budget.

use crate::BLOCK_PAGES;
use crate::sample::Estimate;
use crate::survey::Survey;
use crate::tally::shrinks;

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// Nothing: no more is wasted.
    None {
        /// Bytes that are wasted.
        wastes: Estimate,
    },
    /// The shrinker, with this threshold, once memory is short or somebody requests it.
    Threshold {
        /// `max_ptes_none`: the highest, which splits the fewest huge pages.
        max_ptes_none: u32,
        /// Whether that, or less, is in force.
        in_force: bool,
        /// Bytes that are freed.
        frees: Estimate,
        /// Bytes that are wasted still.
        leaves: Estimate,
        /// Huge mappings that it costs.
        splits: Estimate,
        /// Of so many.
        of: u64,
        /// Processes, the fewest, that have to be reclaimed from for it.
        pids: Vec<u32>,
    },
    /// No threshold is enough.
    TooSmall {
        /// Bytes that are wasted still at 0.
        leaves: Estimate,
        /// Of these, bytes that are locked.
        locked: Estimate,
    },
}

/// The change that lets no more than `budget` bytes be wasted.
pub fn smallest(survey: &Survey, budget: u64) -> Change {
    let wastes = survey.waste();
    if wastes.value <= budget as f64 {
        return Change::None { wastes };
    }
    let leaves = |frees: Estimate| Estimate {
        value: (wastes.value - frees.value).max(0.0),
        low: (wastes.low - frees.high).max(0.0),
        high: (wastes.high - frees.low).max(0.0),
    };
    let enough = |n: u32| shrinks(n) && leaves(survey.freed_at(n)).value <= budget as f64;
    // A lower threshold frees more.
    let (mut low, mut high) = (0, BLOCK_PAGES);
    while low < high {
        let middle = low.midpoint(high);
        match enough(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let Some(max_ptes_none) = low.checked_sub(1) else {
        return Change::TooSmall {
            leaves: leaves(survey.freed_at(0)),
            locked: survey.locked(),
        };
    };
    let frees = survey.freed_at(max_ptes_none);
    Change::Threshold {
        max_ptes_none,
        in_force: survey
            .knobs
            .threshold()
            .is_some_and(|now| now <= max_ptes_none),
        frees,
        leaves: leaves(frees),
        splits: survey.split_at(max_ptes_none),
        of: survey.huge(),
        pids: fewest(survey, max_ptes_none, wastes.value - budget as f64),
    }
}

/// The fewest processes that have so many bytes together.
fn fewest(survey: &Survey, max_ptes_none: u32, bytes: f64) -> Vec<u32> {
    let freed = survey.looked.iter().map(|one| {
        let shared = one.first_freed_at(max_ptes_none).value;
        (one.freed_at(max_ptes_none).value + shared, one.process.pid)
    });
    let mut freed: Vec<(f64, u32)> = freed.filter(|(bytes, _)| *bytes > 0.0).collect();
    freed.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut sum = 0.0;
    let still = freed.into_iter().take_while(|(more, _)| {
        let needed = sum < bytes;
        sum += more;
        needed
    });
    still.map(|(_, pid)| pid).collect()
}
