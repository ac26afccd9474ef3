//! A bound on the CPU that looking takes.

use std::time::Duration;

use deckle_sys::clock::{Clock, nanos};

/// Rests that are shorter are put off, since each costs something itself.
const LEAST: u64 = 1_000_000;

/// Keeps the calling thread at a share of one CPU.
pub struct Pace {
    percent: u64,
    wall: u64,
    cpu: u64,
}

impl Pace {
    /// At most this many per cent of a CPU from now on; 100 and more: no bound.
    pub fn new(percent: u32) -> Pace {
        Pace {
            percent: u64::from(percent.max(1)),
            wall: nanos(Clock::Monotonic),
            cpu: nanos(Clock::Thread),
        }
    }

    /// CPU time since the beginning.
    pub fn used(&self) -> Duration {
        Duration::from_nanos(nanos(Clock::Thread) - self.cpu)
    }

    /// To be called after each piece of work: rests as long as is needed.
    pub fn rest(&self) {
        if self.percent >= 100 {
            return;
        }
        let used = self.used().as_nanos() as u64;
        let due = self.wall + used * 100 / self.percent;
        let early = due.saturating_sub(nanos(Clock::Monotonic));
        if early >= LEAST {
            std::thread::sleep(Duration::from_nanos(early));
        }
    }
}
