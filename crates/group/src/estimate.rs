//! Gauges of a process line that no counter says: estimates, for the choice of whom to ask for
//! memory.

use deckle_mm::BLOCK_PAGES;

/// Looks that are remembered.
const LOOKS: usize = 64;

/// When how many pages had been deactivated: (reclaim round, pages ever), the last of them.
#[derive(Debug)]
pub struct History {
    looks: [(u64, u64); LOOKS],
    /// Looks ever; the latest is at `count - 1`, round the array.
    count: usize,
}

impl Default for History {
    fn default() -> History {
        History {
            looks: [(0, 0); LOOKS],
            count: 0,
        }
    }
}

impl History {
    /// The looks that are remembered, the latest first.
    fn back(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let kept = self.count.min(LOOKS);
        (1..=kept).map(|k| self.looks[(self.count - k) % LOOKS])
    }

    /// Rounds since the oldest of `inactive` pages was deactivated, if `ever` pages were until
    /// `round`. The list is served from its old end, so it holds what was deactivated last; if
    /// pages have left it from the middle, the oldest is older than this says.
    pub fn age(&mut self, round: u64, ever: u64, inactive: u64) -> u64 {
        if self.back().next().is_none_or(|last| last.0 != round) {
            self.looks[self.count % LOOKS] = (round, ever);
            self.count += 1;
        }
        if inactive == 0 {
            return 0;
        }
        let oldest = ever.saturating_sub(inactive);
        // The last look before it was deactivated, or the first there is.
        let then = self.back().find(|look| look.1 <= oldest);
        then.or(self.back().last())
            .map_or(0, |look| round.saturating_sub(look.0))
    }
}

/// Zero-filled subpages of huge pages that the shrinker has not looked at, if they are like
/// those that it has: `dropped` of the `scanned` subpages were zero.
pub fn droppable(queued: u64, dropped: u64, scanned: u64) -> u64 {
    let subpages = u128::from(queued) * u128::from(BLOCK_PAGES);
    let share = u128::from(dropped.min(scanned)) * subpages;
    let pages = share.checked_div(u128::from(scanned)).unwrap_or(0);
    u64::try_from(pages).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "../tests/unit/estimate.rs"]
mod tests;
