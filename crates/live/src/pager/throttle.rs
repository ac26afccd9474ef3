//! Which of the faults far above `memory.high` waits.
//!
//! The kernel's delay is for a batch of 64 pages (MEMCG_CHARGE_BATCH), since it charges so many
//! at once and the faults after it take them from its stock. A delay for every page would be 64
//! times as long.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages that one delay is for.
const BATCH: u64 = 64;

#[derive(Default)]
pub(super) struct Throttle {
    /// Faults since the last delay.
    faults: AtomicU64,
    /// Pages that were mapped then, or the fewest since.
    mapped: AtomicU64,
}

impl Throttle {
    /// Whether a fault waits, while `mapped` pages are: those since the last one that did have
    /// brought a batch, or were as many.
    pub(super) fn is_due(&self, mapped: u64) -> bool {
        let faults = self.faults.fetch_add(1, Relaxed) + 1;
        let least = self.mapped.fetch_min(mapped, Relaxed).min(mapped);
        if faults < BATCH && mapped < least + BATCH {
            return false;
        }
        self.faults.store(0, Relaxed);
        self.mapped.store(mapped, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_one_fault_of_a_batch_waits_and_each_that_brings_one() {
        let t = Throttle::default();
        let due = |mapped: &dyn Fn(u64) -> u64| (1..=640).filter(|&i| t.is_due(mapped(i))).count();
        assert_eq!(due(&|_| 0), 10, "as many come as go");
        assert_eq!(due(&|i| i), 10, "page by page");
        assert_eq!(due(&|i| 640 + 512 * i), 640, "huge pages");
        t.is_due(0);
        assert!(!t.is_due(63) && t.is_due(64));
    }
}
