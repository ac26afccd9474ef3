//! A word of requests that one task sleeps on and any task may raise, without blocking.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use deckle_sys::futex;

use super::crew::{Crew, Role};

/// Pending requests as bits.
pub struct Signal {
    bits: AtomicU32,
    /// Who takes them, and among whom.
    role: Role,
    crew: Arc<Crew>,
}

impl Signal {
    /// Nothing pending. Whoever has that role takes what comes.
    pub fn of(crew: &Arc<Crew>, role: Role) -> Signal {
        Signal {
            bits: AtomicU32::new(0),
            role,
            crew: crew.clone(),
        }
    }

    /// Adds requests; the sleeper is woken only if one of them is new.
    pub fn raise(&self, bits: u32) {
        if self.bits.fetch_or(bits, Ordering::AcqRel) & bits != bits {
            futex::wake(&self.bits, u32::MAX);
        }
        self.call();
    }

    /// Whether there are requests.
    pub fn is_raised(&self) -> bool {
        self.bits.load(Ordering::SeqCst) != 0
    }

    /// Has somebody come who takes what is pending.
    pub fn call(&self) {
        if self.is_raised() {
            self.crew.want(self.role);
        }
    }

    /// Takes those of `bits` that are pending.
    pub fn take_now(&self, bits: u32) -> u32 {
        self.bits.fetch_and(!bits, Ordering::AcqRel) & bits
    }

    /// Waits for requests and takes them all, except those in `sticky`, which stay.
    pub fn take(&self, sticky: u32) -> u32 {
        loop {
            let bits = self.bits.fetch_and(sticky, Ordering::AcqRel);
            if bits != 0 {
                return bits;
            }
            futex::wait(&self.bits, 0, None);
        }
    }

    /// As [`take`](Self::take), but for so long at most; 0 then.
    pub fn take_within(&self, sticky: u32, most: Duration) -> u32 {
        if self.bits.load(Ordering::Acquire) == 0 {
            futex::wait(&self.bits, 0, Some(most));
        }
        self.bits.fetch_and(sticky, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Signal {
        Signal::of(&Arc::new(Crew::new()), Role::FILLER)
    }

    #[test]
    fn a_request_wakes_its_sleeper_once_and_sticky_ones_stay() {
        let signal = silent();
        std::thread::scope(|s| {
            let got = s.spawn(|| signal.take(8));
            signal.raise(1);
            assert_eq!(got.join().unwrap(), 1);
        });
        signal.raise(2);
        signal.raise(2 | 8);
        assert_eq!(signal.take(8), 10);
        assert_eq!(signal.take(8), 8);
        let signal = silent();
        assert_eq!(signal.take_within(8, Duration::from_millis(1)), 0);
        signal.raise(3);
        assert_eq!(signal.take_within(8, Duration::from_secs(60)), 3);
    }
}
