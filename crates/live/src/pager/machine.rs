//! CPUs and waiting on a real computer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use deckle_mm::{Machine, Site, Work};

use super::signal::Signal;

/// What the background loop has to do, as bits of its signal.
pub(super) const RECLAIM: u32 = 1;
pub(super) const PAGEOUT: u32 = 2;
/// ... to look at the knobs again.
pub(super) const KNOBS: u32 = 4;
/// What the filler has to do.
pub(super) const FILL: u32 = 1;
/// Both: to end.
pub(super) const STOP: u32 = 1 << 31;

/// CPUs by `sched_getcpu`, waiting by private futex. Tasks of other thread groups that share
/// the memory wait on the same futexes.
pub struct LiveMachine {
    cpus: usize,
    pub(super) work: Signal,
    pub(super) filler: Signal,
}

impl LiveMachine {
    /// The machine as it is now.
    pub fn new() -> LiveMachine {
        LiveMachine {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            work: Signal::new(),
            filler: Signal::new(),
        }
    }
}

impl Default for LiveMachine {
    fn default() -> LiveMachine {
        LiveMachine::new()
    }
}

/// Waits until `word` may differ from `expected`, at most so long (`None`: for ever).
pub(super) fn futex_wait(word: &AtomicU32, expected: u32, most: Option<Duration>) {
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let time = most.map(|most| libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: most.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: word is a valid futex for the call, and the time, if any, lives through it;
    // whatever it returns, callers look again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, time) };
}

/// Wakes up to `count` waiters.
pub(super) fn futex_wake(word: &AtomicU32, count: u32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    // SAFETY: waking touches no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, count) };
}

impl Machine for LiveMachine {
    fn this_cpu(&self) -> usize {
        // SAFETY: no arguments, no memory of ours.
        let cpu = unsafe { libc::sched_getcpu() };
        usize::try_from(cpu).unwrap_or(0) % self.cpus
    }

    fn nr_cpus(&self) -> usize {
        self.cpus
    }

    fn park(&self, word: &AtomicU32, expected: u32) {
        if word.load(Ordering::Acquire) == expected {
            futex_wait(word, expected, None);
        }
    }

    fn unpark(&self, word: &AtomicU32, count: u32) {
        futex_wake(word, count);
    }

    fn kick(&self, work: Work) {
        match work {
            Work::Reclaim => self.work.raise(RECLAIM),
        }
    }

    fn preempt(&self, site: Site) {
        // After a round of reclaim that found blocks locked, their holders should run: there
        // may be fewer CPUs than tasks.
        if site == Site::ReclaimRound {
            // SAFETY: no arguments, no memory.
            unsafe { libc::sched_yield() };
        }
    }
}
