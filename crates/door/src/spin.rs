//! Waiting awake for what comes soon.
//!
//! To wake a task costs more than most calls on memory take, where its CPU has gone idle in the
//! meantime: 50 us on a virtual machine. So who has served a call looks out for the next one for a
//! moment, as long as that pays: calls come in bursts (a program that starts, an allocator that
//! grows), and where CPUs are scarce the looking is in the way of who is looked out for.

use core::arch::x86_64::_rdtsc;
use core::hint::spin_loop;

/// Cycles of the time stamp counter that the caller waits awake for its answer: some 20 us.
pub const ANSWER: u64 = 60_000;
/// The same for the next call, with the time that its caller may need to wake up: some 80 us.
const NEXT: u64 = 240_000;
/// Calls that must come so soon, one after the other, before the next is waited for.
const TRUST: u32 = 2;
/// The same after one was waited for in vain.
const DOUBT: u32 = 16;

/// Waits until `done`, for so many cycles; whether it is.
pub fn until(done: impl Fn() -> bool, cycles: u64) -> bool {
    let start = now();
    while !done() {
        if now().wrapping_sub(start) > cycles {
            return false;
        }
        spin_loop();
    }
    true
}

/// The time stamp counter.
pub fn now() -> u64 {
    // SAFETY: reads a counter, which every x86-64 CPU has.
    unsafe { _rdtsc() }
}

/// Whether it pays to wait awake for the next call.
pub struct Lookout {
    /// How many more must come soon.
    wanted: u32,
    /// When the last was served.
    served: u64,
}

impl Lookout {
    /// Nothing has come yet.
    pub const fn new() -> Lookout {
        Lookout {
            wanted: TRUST,
            served: 0,
        }
    }

    /// Waits awake until `there`, if that pays.
    pub fn look(&mut self, there: impl Fn() -> bool) {
        if self.wanted == 0 && !until(there, NEXT) {
            self.wanted = DOUBT;
        }
    }

    /// A call has come, which was made at `posted`.
    pub fn came(&mut self, posted: u64) {
        self.wanted = match posted.wrapping_sub(self.served) <= NEXT {
            true => self.wanted.saturating_sub(1),
            false => self.wanted.max(TRUST),
        };
    }

    /// It is served.
    pub fn served(&mut self) {
        self.served = now();
    }
}
