//! Standing still: everybody who changes the manager's state passes this gate, and whoever
//! needs the state to rest (a fork copies it) closes it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use deckle_sys::futex;

const CLOSED: u32 = 1 << 31;

/// Counts who is inside; bit 31: closed.
pub struct Gate {
    word: AtomicU32,
}

/// Somebody inside; leaves when dropped.
pub struct Inside<'a>(&'a Gate);

impl Gate {
    /// An open gate.
    pub const fn new() -> Gate {
        Gate {
            word: AtomicU32::new(0),
        }
    }

    /// Enters, when the gate is open. May be entered again by who is inside only while nobody
    /// closes it.
    pub fn enter(&self) -> Inside<'_> {
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            let now = self.word.load(Ordering::Relaxed);
            if now & CLOSED != 0 {
                futex::wait(&self.word, now, None);
            }
        }
    }

    /// Waits until the gate is open, for `most` at most.
    pub fn wait_open(&self, most: Duration) {
        let now = self.word.load(Ordering::Relaxed);
        if now & CLOSED != 0 {
            futex::wait(&self.word, now, Some(most));
        }
    }

    /// Enters if the gate is open; never waits.
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        self.word
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
                (now & CLOSED == 0).then_some(now + 1)
            })
            .is_ok()
            .then(|| Inside(self))
    }

    /// Closes the gate and waits until nobody is inside; first until it is open, if somebody else
    /// has closed it.
    pub fn close(&self) {
        while !self.shut() {
            let now = self.word.load(Ordering::Relaxed);
            if now & CLOSED != 0 {
                futex::wait(&self.word, now, None);
            }
        }
        self.wait_empty(None);
    }

    /// Closes the gate for good if it is open, and waits until nobody is inside. False if it was
    /// closed, or somebody is inside after `most`: it stays closed then, too.
    pub fn try_close(&self, most: Duration) -> bool {
        self.shut() && self.wait_empty(Some(Instant::now() + most))
    }

    fn shut(&self) -> bool {
        let close = |now| (now & CLOSED == 0).then_some(now | CLOSED);
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        self.word.fetch_update(success, failure, close).is_ok()
    }

    fn wait_empty(&self, until: Option<Instant>) -> bool {
        loop {
            let now = self.word.load(Ordering::Acquire);
            if now == CLOSED {
                return true;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            futex::wait(&self.word, now, left);
        }
    }

    /// Opens the gate: by who closed it, or by anybody in a child of fork, where nobody is
    /// inside.
    pub fn open(&self) {
        self.word.store(0, Ordering::Release);
        futex::wake(&self.word, u32::MAX);
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.word.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            futex::wake(&self.0.word, u32::MAX);
        }
    }
}
