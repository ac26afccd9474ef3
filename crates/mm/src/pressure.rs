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

use crate::env::Env;
use crate::machine::Machine;
use crate::mm::Mm;
use crate::stat::Item;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of the word that hold the time since when.
const TIME: u64 = (1 << 48) - 1;

/// How many are stalled (bits 48 and up) and since when anybody is (below).
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    word: AtomicU64,
    /// What the program had computed when the first of them began.
    busy: AtomicU64,
}

impl Pressure {
    pub const fn new() -> Pressure {
        Pressure {
            word: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    /// One more waits; true for the first, who says next what the program had computed.
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
}

/// Somebody waits for memory; ends when dropped.
pub struct Stall<'a, E: Env>(&'a Mm<E>);

impl<E: Env> Mm<E> {
    /// A thread of the program waits for memory until [`Mm::stall_end`].
    pub fn stall_begin(&self) {
        if self.pressure.enter(self.machine().now()) {
            let busy = self.machine().busy().unwrap_or(0);
            self.pressure.busy.store(busy, Ordering::Release);
        }
    }

    /// It waits no longer. Without [`Mm::stall_begin`] nothing happens.
    pub fn stall_end(&self) {
        // Read first: when the last one has left, the next first one writes it.
        let before = self.pressure.busy.load(Ordering::Acquire);
        let Some(time) = self.pressure.leave(self.machine().now()) else {
            return;
        };
        self.stats().add(Item::PressureSome, time);
        if let Some(busy) = self.machine().busy() {
            let idle = time.saturating_sub(busy.saturating_sub(before));
            self.stats().add(Item::PressureFull, idle);
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
}
