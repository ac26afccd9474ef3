//! Waits for memory between two looks.

use std::time::Duration;

/// How long after it has counted a wait a process may tell it, microseconds.
const LATE: u64 = 100_000;

/// Waits, in microseconds, that the last look had no room for.
///
/// A process tells ten times a second what it has counted, so a short time between two looks may
/// have the news of a longer one. What is more than there was time for is of the next look, as far
/// as it may have been told late; the rest is of a long wait, which is counted when it is over, and
/// was waited for before anybody looked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Waits(u64);

impl Waits {
    /// Of `told`, and of what is left, that for which so many processes can have waited in `time`.
    pub fn within(&mut self, told: u64, time: Duration, processes: u64) -> u64 {
        let processes = processes.max(1);
        let room = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let room = room.saturating_mul(processes);
        let waited = told.saturating_add(self.0);
        let left = waited.saturating_sub(room);
        self.0 = left.min(LATE.saturating_mul(processes));
        waited.min(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[test]
    fn news_that_come_late_are_no_more_than_the_time() {
        let mut waits = Waits::default();
        let told = [90_000, 0, 180_000, 0, 50_000];
        let shown = told.map(|told| waits.within(told, TENTH, 1));
        assert_eq!(shown, [90_000, 0, 100_000, 80_000, 50_000]);
        // Two processes may wait at once.
        assert_eq!(waits.within(180_000, TENTH, 2), 180_000);
    }

    #[test]
    fn a_long_wait_is_not_shown_long_after_it() {
        let mut waits = Waits::default();
        let told = [60_000_000, 0, 0];
        let shown = told.map(|told| waits.within(told, TENTH, 1));
        assert_eq!(shown, [100_000, 100_000, 0]);
        assert_eq!(waits.within(u64::MAX, Duration::MAX, u64::MAX), u64::MAX);
    }
}
