//! CPUs and waiting on a real computer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use deckle_mm::{Machine, Site, Work};
use deckle_sys::{clock, futex};

use super::cpu;
use super::crew::{Crew, Role};
use super::signal::Signal;
use crate::platform::monotonic_ns;
use crate::trace::{Stage, stage};

/// What the background loop has to do, as bits of its signal.
pub(super) const RECLAIM: u32 = 1;
pub(super) const PAGEOUT: u32 = 2;
/// ... to look at the knobs again.
pub(super) const KNOBS: u32 = 4;
/// ... to read what the handlers do not read.
pub(super) const MESSAGES: u32 = 8;
/// What the filler has to do.
pub(super) const FILL: u32 = 1;
/// Both: to end.
pub(super) const STOP: u32 = 1 << 31;

/// Somebody unmaps pages.
const HELD: u32 = 1;
/// ... and others wait for that.
const AWAITED: u32 = 2;

/// CPUs by `sched_getcpu`, waiting by private futex. Tasks of other thread groups that share
/// the memory wait on the same futexes.
pub struct LiveMachine {
    cpus: usize,
    /// Clock of the program's CPU time; 0: the program is not told apart from who serves it.
    program: AtomicI32,
    pub(super) work: Arc<Signal>,
    pub(super) filler: Signal,
    pub(super) crew: Arc<Crew>,
    /// 0, or whether anybody waits for the end of who unmaps pages.
    quiet: AtomicU32,
}

impl LiveMachine {
    /// The machine as it is now.
    pub fn new() -> LiveMachine {
        let crew = Arc::new(Crew::new());
        LiveMachine {
            cpus: cpu::count(),
            program: AtomicI32::new(0),
            work: Arc::new(Signal::of(&crew, Role::BACKGROUND)),
            filler: Signal::of(&crew, Role::FILLER),
            crew,
            quiet: AtomicU32::new(0),
        }
    }
}

impl LiveMachine {
    /// The program is the process `pid`, and who serves it is outside of it: what it computes
    /// can be told.
    pub fn set_program(&self, pid: i32) {
        let mut clock = 0;
        // SAFETY: writes the clock's number.
        let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
        let clock = if error == 0 { clock } else { 0 };
        self.program.store(clock, Ordering::Release);
    }
}

/// A clock in microseconds.
fn microseconds(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (done == 0).then_some(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

impl Default for LiveMachine {
    fn default() -> LiveMachine {
        LiveMachine::new()
    }
}

impl Machine for LiveMachine {
    fn this_cpu(&self) -> usize {
        clock::this_cpu() % self.cpus
    }

    fn nr_cpus(&self) -> usize {
        self.cpus
    }

    fn park(&self, word: &AtomicU32, expected: u32) {
        if word.load(Ordering::Acquire) == expected {
            futex::wait(word, expected, None);
        }
    }

    fn unpark(&self, word: &AtomicU32, count: u32) {
        futex::wake(word, count);
    }

    fn kick(&self, work: Work) {
        match work {
            Work::Reclaim => self.work.raise(RECLAIM),
        }
    }

    fn now(&self) -> u64 {
        monotonic_ns() / 1000
    }

    fn busy(&self) -> Option<u64> {
        match self.program.load(Ordering::Acquire) {
            0 => None,
            clock => microseconds(clock),
        }
    }

    fn quiet(&self, on: bool) {
        if self.cpus == 1 {
            // Nobody else runs.
            return;
        }
        if !on {
            if self.quiet.swap(0, Ordering::Release) == AWAITED {
                futex::wake(&self.quiet, u32::MAX);
            }
            return;
        }
        let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
        while (self.quiet.compare_exchange(0, HELD, set, fetch)).is_err() {
            self.stand_aside();
        }
    }

    /// For the stretch that has begun, not for one that follows.
    fn stand_aside(&self) {
        let wait = |word| (word != 0).then_some(AWAITED);
        let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
        if self.quiet.fetch_update(set, fetch, wait).is_ok() {
            let _traced = stage(Stage::Aside);
            futex::wait(&self.quiet, AWAITED, None);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Two unmap, two serve: never two at once unmap, who stands aside waits for the end of what
    /// had begun before, and nobody waits for ever.
    #[test]
    fn who_stands_aside_waits_for_who_unmaps_and_no_longer() {
        const ROUNDS: u64 = 5_000;
        let machine = LiveMachine {
            cpus: 2,
            ..LiveMachine::new()
        };
        // Stretches begun and ended.
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let met = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        machine.quiet(true);
                        let n = begun.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(n, ended.load(Ordering::SeqCst), "two at once");
                        std::thread::yield_now();
                        ended.fetch_add(1, Ordering::SeqCst);
                        machine.quiet(false);
                    }
                });
                scope.spawn(|| {
                    while ended.load(Ordering::SeqCst) < 2 * ROUNDS {
                        let before = begun.load(Ordering::SeqCst);
                        let inside = before > ended.load(Ordering::SeqCst);
                        met.fetch_add(inside.into(), Ordering::Relaxed);
                        machine.stand_aside();
                        assert!(ended.load(Ordering::SeqCst) >= before, "not waited for");
                    }
                });
            }
        });
        // Or nothing was tried.
        assert!(met.load(Ordering::Relaxed) > 20, "{met:?}");
        assert_eq!(machine.quiet.load(Ordering::Relaxed), 0);
    }
}
