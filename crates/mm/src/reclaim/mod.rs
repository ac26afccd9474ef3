//! Reclaim: which pages go when memory runs short, and how.

mod ahead;
pub mod contig;
pub mod direct;
pub mod evict;
mod forked;
mod high;
pub mod oom;
pub mod pageout;
pub mod refault;
mod rejected;
pub mod shared;
mod writeback;
mod zeros;

use core::sync::atomic::{AtomicU32, AtomicU64};
use refault::Refault;
use zeros::Zeros;

/// What reclaim remembers.
pub(crate) struct Reclaim {
    refault: Refault,
    /// Rounds until now; changes after each: who found everything isolated waits on it.
    rounds: AtomicU32,
    /// Usage when reclaim above `memory.high` last found nothing; `u64::MAX`: it found some.
    barren_high: AtomicU64,
    zeros: Zeros,
}

impl Reclaim {
    pub const fn new() -> Reclaim {
        Reclaim {
            refault: Refault::new(),
            rounds: AtomicU32::new(0),
            barren_high: AtomicU64::new(u64::MAX),
            zeros: Zeros::new(),
        }
    }
}
