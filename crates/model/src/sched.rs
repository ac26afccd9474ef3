//! The scheduler's state: who runs, who waits for what, who holds which lock.
//!
//! Invariant: during a run without an abort at most one CPU runs, the one in `running`, and
//! it is the only one that changes anything here.

use crate::rng::Rng;
use crate::trace::{Event, RunError, Trace};
use deckle_mm::{LockClass, Work};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cpu {
    Runnable,
    /// Waits on the word at this address.
    Parked(usize),
    /// Waits for background work.
    Idle,
    Finished,
}

/// The locks that one CPU holds, in the order in which it took them.
#[derive(Default)]
pub(crate) struct Locks {
    pub held: Vec<(LockClass, u64)>,
    /// Between the announcement of a lock and having it: the only time at which a CPU may
    /// wait while it holds others.
    pub acquiring: bool,
}

impl Locks {
    /// Notes a lock that was taken; the complaint if that breaks the order.
    pub fn take(&mut self, class: LockClass, at: u64) -> Result<(), String> {
        self.acquiring = false;
        let bad = (self.held.iter()).find(|&&(c, a)| {
            let later = c < class || (c == class && class == LockClass::Block && a < at);
            !later
        });
        let complaint = bad.map(|(c, a)| {
            format!("lock order: {class:?} at {at:#x} taken while {c:?} at {a:#x} is held")
        });
        self.held.push((class, at));
        complaint.map_or(Ok(()), Err)
    }
    /// Notes a lock that was released; the complaint if it was not held.
    pub fn release(&mut self, class: LockClass, at: u64) -> Result<(), String> {
        match self.held.iter().rposition(|&l| l == (class, at)) {
            Some(i) => {
                self.held.remove(i);
                Ok(())
            }
            None => Err(format!("{class:?} at {at:#x} released, which is not held")),
        }
    }
    /// The complaint if waiting now breaks the rules: with a lock held (the mmap lock apart)
    /// a CPU may wait for a lock, but for nothing else.
    pub fn may_park(&self) -> Result<(), String> {
        if self.acquiring {
            return Ok(());
        }
        match self.held.iter().find(|(c, _)| *c != LockClass::MmapLock) {
            Some((c, a)) => Err(format!("park while {c:?} at {a:#x} is held")),
            None => Ok(()),
        }
    }
}

pub(crate) struct Sched {
    pub seed: u64,
    pub rng: Rng,
    /// At a site the scheduler decides anew once in this many times.
    pub switch_of: u32,
    pub max_steps: u64,
    pub cpus: Vec<Cpu>,
    pub locks: Vec<Locks>,
    /// Locks of code that runs outside of any run: a test that sets up.
    pub outside: Locks,
    pub running: Option<usize>,
    pub trace: Trace,
    pub kicks: Vec<Work>,
    /// How often a CPU was parked, ever.
    pub parked: u64,
    /// How often a lock of each class was taken, ever.
    pub taken: BTreeMap<LockClass, u64>,
    /// Set when the background CPUs are told that no more work can come.
    pub closing: bool,
    pub abort: Option<RunError>,
}

impl Sched {
    pub fn locks_of(&mut self, cpu: Option<usize>) -> &mut Locks {
        match cpu {
            Some(cpu) => &mut self.locks[cpu],
            None => &mut self.outside,
        }
    }

    /// Records a step of `cpu`; ends the run if there were too many.
    pub fn step(&mut self, cpu: usize, event: Event) {
        self.trace.push(cpu, event);
        if self.trace.steps() > self.max_steps && self.abort.is_none() {
            self.abort = Some(RunError::TooLong {
                seed: self.seed,
                trace: self.trace.clone(),
            });
        }
    }

    /// Gives the turn to a random CPU that can run. If none can and all that are left are
    /// background CPUs, they are woken to finish; else it is a deadlock, which ends the run.
    pub fn choose(&mut self) {
        let ready = |cpus: &[Cpu]| -> Vec<usize> {
            (0..cpus.len())
                .filter(|&i| cpus[i] == Cpu::Runnable)
                .collect()
        };
        let mut can = ready(&self.cpus);
        if can.is_empty() {
            let parked = self.cpus.iter().any(|c| matches!(c, Cpu::Parked(_)));
            if !parked && self.cpus.contains(&Cpu::Idle) {
                self.closing = true;
                for cpu in &mut self.cpus {
                    if *cpu == Cpu::Idle {
                        *cpu = Cpu::Runnable;
                    }
                }
                can = ready(&self.cpus);
            } else if parked && self.abort.is_none() {
                let waiting = (0..self.cpus.len())
                    .filter(|&i| matches!(self.cpus[i], Cpu::Parked(_)))
                    .map(|i| (i, self.locks[i].held.clone()))
                    .collect();
                self.abort = Some(RunError::Deadlock {
                    seed: self.seed,
                    waiting,
                    trace: self.trace.clone(),
                });
            }
        }
        self.running = match can.len() {
            0 => None,
            n => Some(can[self.rng.below(n as u64) as usize]),
        };
    }

    /// Makes up to `count` random waiters on the word runnable; how many.
    pub fn wake(&mut self, word: usize, count: u32) -> u32 {
        let mut waiting: Vec<usize> = (0..self.cpus.len())
            .filter(|&i| self.cpus[i] == Cpu::Parked(word))
            .collect();
        let mut woken = 0;
        while woken < count && !waiting.is_empty() {
            let i = self.rng.below(waiting.len() as u64) as usize;
            self.cpus[waiting.swap_remove(i)] = Cpu::Runnable;
            woken += 1;
        }
        woken
    }
}
