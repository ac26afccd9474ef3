//! What the background task does while memory is not short: it keeps what huge pages waste
//! within its budget, makes huge pages of small ones, and forces what a [`Forcing`] asks for.
//!
//! One small piece at a time, so that reclaim and a fork do not wait for long.

use std::time::Duration;

use deckle_mm::{Charge, Store, ThpMode, Tunables};

use super::Pager;
use crate::platform::monotonic_ns;

/// How often some huge pages are looked at for what they waste, where that has a budget: all
/// huge pages of a GiB in a quarter of a minute, for a few microseconds each time.
const TRIM_EVERY: Duration = Duration::from_millis(200);

/// Splits, shatters, collapses and trims blocks at random, to find defects in this library and
/// in programs that take less than the system promises for granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forcing {
    /// Of the choices; any number.
    pub seed: u64,
    /// Between two of them.
    pub every: Duration,
}

/// When what was done last, in nanoseconds of the monotonic clock. What is due follows from the
/// knobs as they are then.
pub(super) struct Chores {
    trimmed: u64,
    scanned: u64,
    /// There was no huge page.
    failed: bool,
    /// Pages that khugepaged still looks at before it rests; 0: it rests.
    left: u32,
    forced: u64,
    dice: u64,
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn sleep(millisecs: u32) -> u64 {
    u64::from(millisecs.max(Tunables::TICK_MILLISECS)) * 1_000_000
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn trims(t: &Tunables) -> bool {
    t.thp_waste_max != u64::MAX
}

fn collapses(t: &Tunables) -> bool {
    t.thp != ThpMode::Never && t.khugepaged_pages_to_scan > 0
}

impl Chores {
    /// Nothing is due yet.
    pub(super) fn new() -> Chores {
        let now = monotonic_ns();
        Chores {
            trimmed: now,
            scanned: now,
            failed: false,
            left: 0,
            forced: now,
            dice: 0,
        }
    }

    fn due(&self, t: &Tunables, force: Option<Forcing>) -> [Option<u64>; 3] {
        let rest = match (self.left, self.failed) {
            (0, true) => sleep(t.khugepaged_alloc_sleep_millisecs),
            (0, false) => sleep(t.khugepaged_scan_sleep_millisecs),
            _ => 0,
        };
        [
            trims(t).then_some(self.trimmed + ns(TRIM_EVERY)),
            collapses(t).then_some(self.scanned + rest),
            force.map(|f| self.forced + ns(f.every)),
        ]
    }

    /// How long nothing is due; `None`: never.
    pub(super) fn rest(&self, t: &Tunables, force: Option<Forcing>) -> Option<Duration> {
        let next = self.due(t, force).into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(monotonic_ns())))
    }

    /// Forces what is due, whatever else there is to do.
    pub(super) fn force<C, S>(&mut self, pager: &Pager<C, S>)
    where
        C: Charge + 'static,
        S: Store + 'static,
    {
        let Some(forcing) = pager.forcing else { return };
        let now = monotonic_ns();
        if now >= self.forced + ns(forcing.every) {
            self.forced = now;
            // Of SplitMix64: the n-th number is a function of the seed and n.
            self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let dice = mix(forcing.seed.wrapping_add(self.dice));
            pager.mm().force(pager.space(), dice);
        }
    }

    /// Does a piece of what is due.
    pub(super) fn step<C, S>(&mut self, pager: &Pager<C, S>)
    where
        C: Charge + 'static,
        S: Store + 'static,
    {
        let (t, now) = (pager.mm().tunables(), monotonic_ns());
        let [trim, collapse, _] = self.due(&t, None);
        let is_due = |due: Option<u64>| due.is_some_and(|due| now >= due);
        if is_due(trim) {
            self.trimmed = now;
            pager.mm().trim();
        } else if is_due(collapse) {
            if self.left == 0 {
                self.left = t.khugepaged_pages_to_scan;
            }
            let done = pager.mm().khugepaged_scan(self.left);
            self.left = match done.ended || done.failed {
                true => 0,
                false => self.left.saturating_sub(done.scanned),
            };
            (self.failed, self.scanned) = (done.failed, now);
        }
    }
}
