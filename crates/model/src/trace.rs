//! What a run did, for replay and for reports.

use deckle_mm::{LockClass, Site, Work};
use std::collections::VecDeque;
use std::fmt;

/// Entries that a trace keeps; older ones live on in its hash only.
const KEPT: usize = 1 << 16;
/// Entries that a report shows.
const SHOWN: usize = 40;

/// Something a CPU did that the scheduler saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Called `preempt`.
    Site(Site),
    /// Is about to do this operation of the model (see [`crate::Model::attach`]).
    Op(&'static str),
    /// Found the word unchanged and waits.
    Park,
    /// Woke this many waiters.
    Unpark(u32),
    /// Asked for background work.
    Kick(Work),
    /// Waits for background work.
    Idle,
    /// Returned from its function.
    Finish,
}

impl Event {
    fn code(self) -> u64 {
        match self {
            Event::Site(Site::Lock(class)) => 0x100 + class as u64,
            Event::Site(Site::Released) => 1,
            Event::Site(Site::ReclaimRound) => 2,
            Event::Site(Site::Relock) => 3,
            Event::Site(Site::Pcp) => 8,
            Event::Op(name) => name
                .bytes()
                .fold(0x200, |h, b| h.wrapping_mul(31).wrapping_add(b as u64)),
            Event::Park => 4,
            Event::Unpark(n) => 0x1_0000 + n as u64,
            Event::Kick(Work::Reclaim) => 5,
            Event::Idle => 6,
            Event::Finish => 7,
        }
    }
}

/// One step of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// The CPU.
    pub cpu: usize,
    /// What it did.
    pub event: Event,
}

/// The steps of a run in order. Two traces are equal if all their steps are, the ones that
/// are not kept included (by a 64-bit hash).
#[derive(Clone, Default)]
pub struct Trace {
    tail: VecDeque<TraceEntry>,
    steps: u64,
    hash: u64,
}

impl Trace {
    pub(crate) fn push(&mut self, cpu: usize, event: Event) {
        if self.tail.len() == KEPT {
            self.tail.pop_front();
        }
        self.tail.push_back(TraceEntry { cpu, event });
        self.steps += 1;
        for word in [cpu as u64, event.code()] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3);
            self.hash ^= self.hash >> 29;
        }
    }
    /// Steps of the run.
    pub fn steps(&self) -> u64 {
        self.steps
    }
    /// A hash over all steps.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// The last steps, up to 65536, oldest first.
    pub fn tail(&self) -> impl Iterator<Item = &TraceEntry> {
        self.tail.iter()
    }
}

impl PartialEq for Trace {
    fn eq(&self, other: &Trace) -> bool {
        (self.steps, self.hash) == (other.steps, other.hash) && self.tail == other.tail
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps, hash {:#018x}", self.steps, self.hash)?;
        for e in self.tail.iter().skip(self.tail.len().saturating_sub(SHOWN)) {
            write!(f, "\n  cpu {}: {:?}", e.cpu, e.event)?;
        }
        Ok(())
    }
}

/// Why a run did not end well. The text names the seed and shows the last steps.
#[derive(Clone, PartialEq)]
pub enum RunError {
    /// CPUs wait and nobody is left to wake them.
    Deadlock {
        /// The machine's seed.
        seed: u64,
        /// The CPUs that wait, with the locks each of them holds.
        waiting: Vec<(usize, Vec<(LockClass, u64)>)>,
        /// The steps up to there.
        trace: Trace,
    },
    /// A CPU panicked.
    Panicked {
        /// The machine's seed.
        seed: u64,
        /// The CPU.
        cpu: usize,
        /// The panic's message.
        message: String,
        /// The steps up to there.
        trace: Trace,
    },
    /// More steps than the limit: a livelock, or a long run.
    TooLong {
        /// The machine's seed.
        seed: u64,
        /// The steps up to there.
        trace: Trace,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Deadlock {
                seed,
                waiting,
                trace,
            } => {
                write!(f, "deadlock with seed {seed}:")?;
                for (cpu, held) in waiting {
                    write!(f, " cpu {cpu} waits and holds {held:x?};")?;
                }
                write!(f, " trace: {trace:?}")
            }
            RunError::Panicked {
                seed,
                cpu,
                message,
                trace,
            } => write!(
                f,
                "cpu {cpu} panicked with seed {seed}: {message}; trace: {trace:?}"
            ),
            RunError::TooLong { seed, trace } => {
                write!(f, "too many steps with seed {seed}; trace: {trace:?}")
            }
        }
    }
}

impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RunError {}
