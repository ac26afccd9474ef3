//! `memory.high`: who grows beyond it reclaims, and who goes on growing waits.
//!
//! The kernel makes every allocation above `memory.high` reclaim as many pages, and when usage is
//! still above it, wait: the longer, the farther. Here the background reclaims first, beside the
//! program: between `memory.high` and the *reserve* above it faults are served without delay. The
//! reserve is as large as the room that `memory.high` leaves below `memory.max` if nobody sets
//! it, so by default direct reclaim at `memory.max` comes first, and nobody ever waits here.

use crate::charge::Charge;
use crate::engine::pressure::Who;
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use core::sync::atomic::Ordering::Relaxed;

/// Pages of the reserve, at least: 4 MiB.
const RESERVE: u64 = 1024;
/// Pages that one fault reclaims at most; and by which usage has to grow before it is tried again
/// after nothing was to be had.
const MOST: u64 = 1024;
/// Longest delay, microseconds (MEMCG_MAX_HIGH_DELAY_JIFFIES of Linux).
const LONGEST: u64 = 2_000_000;
/// Delay at an overage of as much as `memory.high` itself: the square of the overage scales it
/// (as Linux, whose constants come to 64 s).
const SCALE: u128 = 64_000_000;
/// Shorter delays are not worth a sleep (Linux: a hundredth of a second).
const WORTH: u64 = 10_000;

/// Microseconds to wait at `usage`.
fn delay(usage: u64, high: u64) -> u64 {
    let over = u128::from(usage.saturating_sub(high));
    let high = u128::from(high.max(1));
    let time = SCALE.saturating_mul(over).saturating_mul(over) / (high * high);
    let time = u64::try_from(time).unwrap_or(LONGEST).min(LONGEST);
    if time < WORTH { 0 } else { time }
}

impl<E: Env> Mm<E> {
    /// Pages above `memory.high` and its reserve.
    fn above_reserve(&self) -> u64 {
        let (high, max) = (self.charge().high(), self.charge().max());
        let reserve = (high / 31 + 1).max(RESERVE);
        let end = high.saturating_add(reserve);
        if end >= max {
            return 0;
        }
        self.charge().usage().saturating_sub(end)
    }

    /// Whether who needs memory now must reclaim first.
    pub(crate) fn is_far_above_high(&self) -> bool {
        self.above_reserve() > 0
    }

    /// What a thread does that grows the group far above `memory.high`: it reclaims. Returns
    /// how long it should wait then, in microseconds; 0 if it need not. No lock is held.
    pub fn reclaim_high(&self) -> u64 {
        if !self.is_far_above_high() {
            return 0;
        }
        self.stats().add(Item::ThrottleHigh, 1);
        let _stall = self.stall();
        let over = self.charge().usage().saturating_sub(self.charge().high());
        let target = over.min(MOST);
        let barren = self.reclaim.barren_high.load(Relaxed);
        let usage = self.charge().usage();
        let again = !(barren..barren.saturating_add(MOST)).contains(&usage);
        if again && !self.others_gave(target) {
            // What is shared since a fork goes only where all give it up.
            let freed = self.reclaim_round(target, Who::Direct) > 0
                || self.charge().reclaim_elsewhere(target);
            let now = if freed { u64::MAX } else { usage };
            self.reclaim.barren_high.store(now, Relaxed);
        }
        match self.is_far_above_high() {
            true => delay(self.charge().usage(), self.charge().high()),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_the_square_of_the_overage_and_ends_at_two_seconds() {
        assert_eq!(delay(100, 200), 0);
        assert_eq!(delay(1010, 1000), 0);
        assert_eq!(delay(1020, 1000), 25_600);
        assert_eq!(delay(1040, 1000), 4 * 25_600);
        assert_eq!(delay(2000, 1000), LONGEST);
        assert_eq!(delay(u64::MAX, 1), LONGEST);
        assert_eq!(delay(10, 0), LONGEST);
    }
}
