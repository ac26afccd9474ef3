//! What the background task does while memory is not short: it keeps what huge pages waste
//! within its budget, makes huge pages of small ones, and forces what a [`Forcing`] asks for.
//!
//! One small piece at a time, so that reclaim and a fork do not wait for long.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use deckle_mm::{Charge, Item, Store, ThpMode, Tunables};

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
    /// What [`state`] was when khugepaged began with the first page.
    begun: Option<u64>,
    /// The same when it had looked at all of that: until it changes, there is nothing to find.
    looked: Option<u64>,
    forced: u64,
    dice: u64,
}

/// A number that changes with what khugepaged may find: what is where, and what calls have said.
fn state<C, S>(pager: &Pager<C, S>) -> u64
where
    C: Charge + 'static,
    S: Store + 'static,
{
    const TOLD: [Item; 6] = [
        Item::Pgfault,
        Item::NrAnon,
        Item::NrOpen,
        Item::NrSwapped,
        Item::NrThp,
        Item::NrShared,
    ];
    let stats = pager.mm().stats();
    let calls = u64::from(pager.changes.load(Relaxed));
    TOLD.iter()
        .fold(calls, |sum, item| mix(sum ^ stats.get(*item)))
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
            begun: None,
            looked: None,
            forced: now,
            dice: 0,
        }
    }

    /// `state`: see there; `None`: nobody tells when it changes.
    fn due(&self, t: &Tunables, force: Option<Forcing>, state: Option<u64>) -> [Option<u64>; 3] {
        let is_looked = state.is_some() && self.looked == state;
        let rest = match (self.left, self.failed) {
            (0, true) => sleep(t.khugepaged_alloc_sleep_millisecs),
            (0, false) => sleep(t.khugepaged_scan_sleep_millisecs),
            _ => 0,
        };
        [
            trims(t).then_some(self.trimmed + ns(TRIM_EVERY)),
            (collapses(t) && !is_looked).then_some(self.scanned + rest),
            force.map(|f| self.forced + ns(f.every)),
        ]
    }

    /// How long nothing is due; `None`: not before something changes.
    pub(super) fn rest<C, S>(&self, pager: &Pager<C, S>) -> Option<Duration>
    where
        C: Charge + 'static,
        S: Store + 'static,
    {
        let t = pager.mm().tunables();
        // On demand who runs the loops is woken by each change.
        let state = pager.crew().is_on_demand().then(|| state(pager));
        let all = self.due(&t, pager.forcing, state);
        let next = all.into_iter().flatten().min()?;
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
        let [trim, collapse, _] = self.due(&t, None, None);
        let is_due = |due: Option<u64>| due.is_some_and(|due| now >= due);
        if is_due(trim) {
            self.trimmed = now;
            pager.mm().trim();
        } else if is_due(collapse) {
            if self.left == 0 {
                self.left = t.khugepaged_pages_to_scan;
            }
            let begun = *self.begun.get_or_insert_with(|| state(pager));
            let done = pager.mm().khugepaged_scan(self.left);
            if done.ended || done.failed {
                self.begun = None;
                self.looked = (done.ended && begun == state(pager)).then_some(begun);
            }
            self.left = match done.ended || done.failed {
                true => 0,
                false => self.left.saturating_sub(done.scanned),
            };
            (self.failed, self.scanned) = (done.failed, now);
        }
    }
}
