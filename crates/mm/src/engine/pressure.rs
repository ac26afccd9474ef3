//! Pressure in the style of the kernel's PSI: for how long somebody waited for memory.
//!
//! A thread of the program is stalled while it waits for a page to come back from the store, for
//! direct reclaim, or for `memory.high` (not while a new page is made for it). *some* is the time
//! in which at least one is stalled, *full* the part of it in which the program did nothing else
//! either. The core has no clock: the time is the machine's ([`Machine::now`]), microseconds on
//! live memory and steps on the model; what the program did is [`Machine::busy`], and where a
//! machine cannot tell it, *full* stays 0.
//!
//! Over several managers of a group the times add up.

use crate::engine::Engine;
use crate::env::Env;
use crate::machine::Machine;
use crate::stat::Item;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of the word that hold the time since when.
const TIME: u64 = (1 << 48) - 1;

/// How long it is not asked again what the program did, unless somebody has waited for as long: the
/// answer may cost a look at each of its threads, which for a thousand of them took as long as all
/// else that a fault does. In between the program did as much as when it was asked last.
const RECENT: u64 = 1000;
/// Parts that the share of a stall is counted in.
const WHOLE: u64 = 1024;

/// How many are stalled (bits 48 and up) and since when anybody is (below).
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    word: AtomicU64,
    /// When it was asked last, at the beginning of a stall, what the program had computed.
    asked: AtomicU64,
    /// The answer.
    busy: AtomicU64,
    /// Of a stall that was asked about, the share in which the program did nothing.
    idle: AtomicU64,
}

impl Pressure {
    pub const fn new() -> Pressure {
        Pressure {
            word: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            idle: AtomicU64::new(0),
        }
    }

    /// One more waits; true for the first.
    fn enter(&self, now: u64) -> bool {
        let enter = |word: u64| {
            let since = if word >> 48 == 0 { now } else { word };
            // Never so many: each is a thread.
            Some((word >> 48).saturating_add(1) << 48 | since & TIME)
        };
        let before = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, enter);
        before.is_ok_and(|word| word >> 48 == 0)
    }

    /// One waits no longer; for the last, for how long there was one.
    fn leave(&self, now: u64) -> Option<u64> {
        let leave = |word: u64| (word >> 48 > 0).then(|| word - (1 << 48));
        let before = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, leave)
            .ok()?;
        (before >> 48 == 1).then(|| (now & TIME).saturating_sub(before & TIME))
    }

    /// One more waits, from `now` on; `ask` tells what the program has computed, if anybody can.
    fn begin(&self, now: u64, ask: impl FnOnce() -> Option<u64>) {
        if self.enter(now) && now.saturating_sub(self.asked.load(Ordering::Acquire)) >= RECENT {
            self.busy.store(ask().unwrap_or(0), Ordering::Release);
            self.asked.store(now, Ordering::Release);
        }
    }

    /// One waits no longer; for the last, for how long there was one, and for how much of that the
    /// program did nothing else.
    fn end(&self, now: u64, ask: impl FnOnce() -> Option<u64>) -> Option<(u64, u64)> {
        // Read first: when the last one has left, the next first one writes them.
        let asked = self.asked.load(Ordering::Acquire);
        let before = self.busy.load(Ordering::Acquire);
        let time = self.leave(now)?;
        let is_known = asked.saturating_add(time) >= now;
        if !is_known && time < RECENT {
            return Some((time, time * self.idle.load(Ordering::Relaxed) / WHOLE));
        }
        let busy = ask().map_or(time, |busy| busy.saturating_sub(before));
        let idle = time.saturating_sub(busy);
        if let Some(share) = (idle * WHOLE).checked_div(time) {
            self.idle.store(share, Ordering::Relaxed);
        }
        Some((time, idle))
    }
}

/// Somebody waits for memory; ends when dropped.
pub struct Stall<'a, E: Env>(&'a Engine<E>);

impl<E: Env> Engine<E> {
    /// A thread of the program waits for memory until [`Engine::stall_end`].
    pub fn stall_begin(&self) {
        let machine = self.machine();
        self.pressure.begin(machine.now(), || machine.busy());
    }

    /// It waits no longer. Without [`Engine::stall_begin`] nothing happens.
    pub fn stall_end(&self) {
        let machine = self.machine();
        let waited = self.pressure.end(machine.now(), || machine.busy());
        if let Some((some, full)) = waited {
            self.stats().add(Item::PressureSome, some);
            self.stats().add(Item::PressureFull, full);
        }
    }

    /// A thread of the program waits for memory until the value is dropped.
    pub fn stall(&self) -> Stall<'_, E> {
        self.stall_begin();
        Stall(self)
    }

    /// In a copy of a manager (in a child of fork): nobody waits here yet.
    pub fn forget_stalls(&self) {
        self.pressure.word.store(0, Ordering::Release);
    }
}

impl<E: Env> Drop for Stall<'_, E> {
    fn drop(&mut self) {
        self.0.stall_end();
    }
}

/// Who reclaims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// Somebody waits for the memory.
    Direct,
    /// Nobody waits.
    Kswapd,
    /// Somebody else would like to have it, and has not run out yet.
    Request,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_many_wait() {
        let p = Pressure::new();
        assert_eq!(p.leave(5), None);
        assert!(p.enter(10));
        assert!(!p.enter(20));
        assert_eq!(p.leave(30), None);
        assert!(!p.enter(40));
        assert_eq!(p.leave(50), None);
        assert_eq!(p.leave(65), Some(55));
        assert_eq!(p.leave(70), None);
        assert!(p.enter(100));
        assert_eq!(p.leave(100), Some(0));
    }

    #[test]
    fn what_the_program_did_is_asked_now_and_then_and_for_long_stalls() {
        let (p, asks) = (Pressure::new(), core::cell::Cell::new(0));
        let ask = |busy| {
            asks.set(asks.get() + 1);
            Some(busy)
        };
        // A thousand stalls of 40 units, 20 apart. Another thread computes for a quarter of the
        // time of each, so that 30 of the 40 are idle.
        let (mut busy, mut full) = (0, 0);
        for n in 0..1000 {
            let now = 10_000 + 60 * n;
            p.begin(now, || ask(busy));
            busy += 10;
            let (some, idle) = p.end(now + 40, || ask(busy)).unwrap();
            assert_eq!(some, 40);
            full += idle;
            busy += 20;
        }
        assert!((29_000..=31_000).contains(&full), "{full}");
        assert!(asks.get() < 150, "{}", asks.get());
        // One that was not asked about at its beginning, and lasts: nothing was done in it.
        let now = 100_000;
        p.begin(now - 10, || ask(busy));
        p.end(now, || ask(busy)).unwrap();
        p.begin(now, || panic!("it was just asked"));
        let (some, idle) = p.end(now + 5000, || ask(busy)).unwrap();
        assert_eq!((some, idle), (5000, 5000));
        // Where nobody can tell it is nothing.
        let p = Pressure::new();
        p.begin(5000, || None);
        assert_eq!(p.end(9000, || None), Some((4000, 0)));
    }
}
