//! Services that have nothing left to serve.
//!
//! Such a service is no part of the program: nobody waits for it. Until it is gone it holds the
//! memory of a program that is not there any more. Where CPUs are few it may take long to end,
//! though nothing is wrong: it waits for a CPU, or the kernel takes its memory apart, gigabytes
//! of it. So the clock runs only while it could go on and does not: it has [`LINGER`] asleep, or
//! as much time on a CPU. Then something is wrong, and it is killed.

use std::fs;
use std::time::{Duration, Instant};

use deckle_group::proc::{ProcStat, proc_stat, task_stat};
use deckle_group::{Group, LineId};
use deckle_sys::clock;
use deckle_sys::pidfd;

use super::events::Watched;
use crate::say;

/// How long a service may sleep, or work, after the end of its program.
const LINGER: Duration = Duration::from_secs(1);
/// How often it is looked what a service does.
const LOOK: Duration = Duration::from_millis(100);

/// What the tasks of a process do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Doing {
    /// Some task runs or waits for a CPU.
    runs: bool,
    /// Some task has not begun to end.
    lives: bool,
    /// What all of them have used of CPUs, also those that have ended.
    cpu: Duration,
}

impl Doing {
    /// Of the process `pid`; `None` if it cannot be read.
    fn of(pid: u32) -> Option<Doing> {
        // The first task stays until the last has ended, and its line has the sum of the times.
        let process = proc_stat(pid).ok()?;
        let mut doing = Doing {
            cpu: Duration::from_secs_f64(process.cpu as f64 / ticks_per_second()),
            ..Doing::default()
        };
        doing.note(&process);
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
            // One that is gone has ended.
            if let Some(task) = tid.and_then(|tid| task_stat(pid, tid).ok()) {
                doing.note(&task);
            }
        }
        Some(doing)
    }

    fn note(&mut self, task: &ProcStat) {
        self.runs |= task.state == b'R';
        self.lives |= !task.exiting;
    }
}

pub fn ticks_per_second() -> f64 {
    clock::ticks_per_second().into()
}

/// How long a service has been at rest or at work for nothing.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// When it was last seen to use a CPU, or to want one.
    awake: Instant,
    /// What it has used of CPUs then, and at the first look.
    cpu: Duration,
    first: Option<Duration>,
}

impl Patience {
    fn new(now: Instant) -> Patience {
        Patience {
            awake: now,
            cpu: Duration::ZERO,
            first: None,
        }
    }

    /// Notes what it does now; true: it will not end by itself.
    fn is_over(&mut self, doing: Doing, now: Instant) -> bool {
        let first = *self.first.get_or_insert(doing.cpu);
        if doing.runs || !doing.lives || doing.cpu != self.cpu {
            self.awake = now;
        }
        self.cpu = doing.cpu;
        let works = doing.lives && doing.cpu.saturating_sub(first) >= LINGER;
        works || now.saturating_duration_since(self.awake) >= LINGER
    }
}

/// A service that has nothing to serve any more.
struct Leaving {
    pid: u32,
    pidfd: Watched,
    /// Where it publishes its last figures before it ends.
    line: LineId,
    patience: Patience,
    killed: bool,
}

/// All of them.
#[derive(Default)]
pub struct Leavings(Vec<Leaving>);

impl Leavings {
    /// Adds one, whose time runs from now on.
    pub fn add(&mut self, pid: u32, pidfd: Watched, line: LineId) {
        self.0.push(Leaving {
            pid,
            pidfd,
            line,
            patience: Patience::new(Instant::now()),
            killed: false,
        });
    }

    /// Whether `pid` is one of them.
    pub fn has(&self, pid: u32) -> bool {
        self.0.iter().any(|l| l.pid == pid)
    }

    /// Their lines.
    pub fn lines(&self) -> impl Iterator<Item = LineId> + '_ {
        self.0.iter().map(|l| l.line)
    }

    /// When to look at them without any event.
    pub fn deadline(&self) -> Option<Instant> {
        let waiting = self.0.iter().any(|l| !l.killed);
        waiting.then(|| Instant::now() + LOOK)
    }

    /// Forgets those that have ended, kills those that will not. What one that was killed had
    /// charged goes back to the group: nobody else may see its end.
    pub fn see_off(&mut self, group: &Group) {
        self.0.retain_mut(|l| {
            if pidfd::has_ended(&l.pidfd) {
                group.leave(l.line);
                return false;
            }
            // Without a pid here, or without /proc, nothing is seen of it: as if it slept.
            let doing = Doing::of(l.pid).unwrap_or(Doing {
                lives: true,
                ..Doing::default()
            });
            if !l.killed && l.patience.is_over(doing, Instant::now()) {
                l.killed = true;
                say(format_args!(
                    "process {}: a memory manager outlived its program: killed",
                    l.pid
                ));
                let _ = pidfd::kill(&l.pidfd, libc::SIGKILL);
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASLEEP: Doing = Doing {
        runs: false,
        lives: true,
        cpu: Duration::from_millis(30),
    };

    /// Looks every 100 ms; after how many patience is over, at most 100.
    fn looks(doing: impl Fn(u32) -> Doing) -> Option<u32> {
        let begin = Instant::now();
        let mut patience = Patience::new(begin);
        (1..=100).find(|n| patience.is_over(doing(*n), begin + *n * LOOK))
    }

    #[test]
    fn p22_a_service_that_sleeps_for_a_second_does_not_end_by_itself() {
        // The first look finds what it has used before.
        assert_eq!(looks(|_| ASLEEP), Some(11));
    }

    #[test]
    fn p22_a_service_that_waits_for_a_cpu_or_for_the_kernel_is_waited_for() {
        let waits = Doing {
            runs: true,
            ..ASLEEP
        };
        let ends = Doing {
            lives: false,
            ..ASLEEP
        };
        assert_eq!(looks(|_| waits), None);
        assert_eq!(looks(|_| ends), None);
        // Seen to want one from time to time only; then not any more.
        let starved = |n| if n % 7 == 0 { waits } else { ASLEEP };
        assert_eq!(looks(starved), None);
        let stuck = |n| if n <= 35 { starved(n) } else { ASLEEP };
        assert_eq!(looks(stuck), Some(45));
    }

    #[test]
    fn p22_a_service_that_works_for_a_second_does_not_end_by_itself() {
        let spins = |n| Doing {
            runs: true,
            cpu: ASLEEP.cpu + n * Duration::from_millis(50),
            ..ASLEEP
        };
        assert_eq!(looks(spins), Some(21));
        // The kernel may take as long as it needs.
        let ends = |n| Doing {
            lives: false,
            ..spins(n)
        };
        assert_eq!(looks(ends), None);
    }

    #[test]
    fn who_looks_at_itself_runs_and_lives() {
        let me = Doing::of(std::process::id()).unwrap();
        assert!(me.runs && me.lives);
        assert_eq!(Doing::of(u32::MAX), None);
    }
}
