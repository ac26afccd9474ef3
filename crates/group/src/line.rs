//! Lines: one per process, from its joining to the return of what it had charged.
//!
//! A line is free, joining, live or being folded; the state word also names the process that
//! put it there, so that a line left half-way by a killed process can be taken over. Folding
//! moves the counters to the totals of the dead, one swap at a time: nothing is counted twice.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use deckle_sys::Errno;
use deckle_sys::futex::{Scope, wake_in};
use deckle_sys::signal;

use crate::attach::Group;
use crate::layout::{LINES, Line};
use crate::proc::{namespaces, proc_stat};
use crate::publish::Gauges;

const FREE: u64 = 0;
const JOINING: u64 = 1;
const LIVE: u64 = 2;
const FOLDING: u64 = 3;

const fn word(pid: u32, state: u64) -> u64 {
    (pid as u64) << 8 | state
}
/// The state of a line with a tenant. The tenancy is part of it: a process that executes another
/// program keeps its pid and often gets the same line again, and who looked at the old tenancy
/// must not end the new one.
const fn live(pid: u32, generation: u32) -> u64 {
    (generation as u64) << 40 | word(pid, LIVE)
}
const fn pid_of(word: u64) -> u32 {
    (word >> 8) as u32
}

/// One tenancy of a line: a process between its start (or exec) and its end (or next exec).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineId {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

impl LineId {
    /// No line's.
    pub const NONE: LineId = LineId {
        index: u16::MAX,
        generation: 0,
    };

    /// Number of the line.
    pub fn index(self) -> u16 {
        self.index
    }
}

impl From<LineId> for [u32; 2] {
    fn from(line: LineId) -> [u32; 2] {
        [line.index.into(), line.generation]
    }
}

/// A line as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its line.
    pub line: LineId,
    /// Pid, in the pid namespace of the process.
    pub pid: u32,
    /// Pid of its service, 0 if none.
    pub service: u32,
    /// Pages charged, without unspent batches.
    pub charged: u64,
    /// Pages of its memory that another pays for since a fork, at most (it may have given back
    /// some of what the store held then).
    pub borrowed: u64,
    /// The resident ones among them.
    pub shared: u64,
    /// Pages charged here that only others have since a fork.
    pub unbacked: u64,
    /// Whether all that it had at its start is charged; see [`Group::note_settled`].
    pub settled: bool,
    /// Pages of swap charged.
    pub swap: u64,
    /// What it published last.
    pub gauges: Gauges,
    /// Chosen by the out-of-memory killer.
    pub killed: bool,
}

impl Process {
    /// Pages of its memory that the limit holds, at whoever's charge.
    pub fn held(&self) -> u64 {
        let own = self.charged.saturating_sub(self.unbacked);
        own.saturating_add(self.borrowed)
    }
}

/// Why a process could not get a line: all belong to live processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the group has {LINES} processes already, which is its maximum"
        )
    }
}

impl core::error::Error for Full {}

impl Group {
    /// Gives process `pid` (of the caller's pid namespace) a line, all zero. A line that the
    /// same process had before it executed another program is folded first. `service` is the
    /// pid of its service, 0 if it has none yet.
    pub fn join(&self, pid: u32, service: u32) -> Result<LineId, Full> {
        // Where /proc is of another pid namespace, or is not there, nobody can judge this process
        // by its start time; `deckle run` sees its end.
        let known = match namespaces() {
            0 => None,
            namespace => proc_stat(pid).ok().map(|s| (s.start, namespace)),
        };
        let (start, namespace) = known.unwrap_or((0, 0));
        for line in self.lines() {
            let before = line.state.load(Acquire);
            if namespace != 0
                && pid_of(before) == pid
                && before & 0xff == LIVE
                && line.start.load(Relaxed) == start
                && line.namespace.load(Relaxed) == namespace
            {
                self.fold(line, before);
            }
        }
        let again = || {
            self.fold_stale();
            self.claim()
        };
        let claimed = self.claim().or_else(again).ok_or(Full)?;
        let page = self.page;
        let line = &page.lines[claimed];
        line.start.store(start, Relaxed);
        line.namespace.store(namespace, Relaxed);
        line.service.store(service, Relaxed);
        line.killed.store(0, Relaxed);
        line.sponsor.store(0, Relaxed);
        line.borrowed.store(0, Relaxed);
        line.shared.store(0, Relaxed);
        line.unbacked.store(0, Relaxed);
        line.filed.store(0, Relaxed);
        line.file_holders.store(0, Relaxed);
        line.settled.store(0, Relaxed);
        let generation = page.generation.fetch_add(1, Relaxed).wrapping_add(1);
        line.generation.store(generation, Release);
        page.joins.fetch_add(1, Relaxed);
        line.state.store(live(pid, generation), Release);
        Ok(LineId {
            index: claimed as u16,
            generation,
        })
    }

    /// Takes a free line, below the mark of used lines first.
    fn claim(&self) -> Option<usize> {
        let page = self.page;
        let me = word(std::process::id(), JOINING);
        for (index, line) in page.lines.iter().enumerate() {
            if line.state.load(Relaxed) != FREE {
                continue;
            }
            // The mark goes up first, so that no line in use is ever above it.
            page.lines_used.fetch_max(index as u32 + 1, AcqRel);
            if line
                .state
                .compare_exchange(FREE, me, AcqRel, Relaxed)
                .is_ok()
            {
                return Some(index);
            }
        }
        None
    }

    /// The line of `id`, while that tenancy lasts.
    pub(crate) fn line(&self, id: LineId) -> Option<&Line> {
        let line = self.page.lines.get(usize::from(id.index))?;
        let live = line.state.load(Acquire) & 0xff == LIVE;
        (live && line.generation.load(Acquire) == id.generation).then_some(line)
    }

    /// Says that the process of `id` has charged all that it had at its start: its own
    /// metadata, in a child of fork the copy of its parent's memory.
    pub fn note_settled(&self, id: LineId) {
        if let Some(line) = self.line(id) {
            line.settled.store(1, Release);
        }
    }

    /// Whether the tenancy of `id` lasts still (its process may have ended all the same).
    pub fn is_current(&self, id: LineId) -> bool {
        self.line(id).is_some()
    }

    /// Ends the tenancy: returns what the line has charged, keeps its counters in the totals.
    pub fn leave(&self, id: LineId) {
        if let Some(line) = self.page.lines.get(usize::from(id.index)) {
            let before = line.state.load(Acquire);
            if before == live(pid_of(before), id.generation) {
                self.fold(line, before);
            }
        }
    }

    /// Returns the charge of processes that are gone; how many lines were folded.
    /// Costs one `kill(pid, 0)` and one read of /proc per live line. A service may open nothing
    /// once it runs: it takes those for dead whose pid is nobody's, and `deckle run` the others.
    pub fn fold_stale(&self) -> usize {
        let namespace = namespaces();
        let mut folded = 0;
        for line in self.lines() {
            let before = line.state.load(Acquire);
            if before & 0xff != FREE && gone(line, before, namespace) && self.fold(line, before) {
                folded += 1;
            }
        }
        folded
    }

    /// Whether the process of `id` is gone (or never was).
    pub fn is_gone(&self, id: LineId) -> bool {
        match self.line(id) {
            Some(line) => gone(line, line.state.load(Acquire), namespaces()),
            None => true,
        }
    }

    fn fold(&self, line: &Line, before: u64) -> bool {
        let me = word(std::process::id(), FOLDING);
        if line
            .state
            .compare_exchange(before, me, AcqRel, Relaxed)
            .is_err()
        {
            return false;
        }
        // From here on `line()` finds no tenant, so nothing is charged to it any more. First
        // of all those who share its memory pay for themselves.
        self.stop_sponsoring(line);
        line.sponsor.store(0, SeqCst);
        for slot in &line.slots {
            slot.word.store(0, SeqCst);
        }
        line.swap.store(0, SeqCst);
        let gauges = line.gauges.iter();
        for word in gauges.chain([&line.unbacked, &line.filed, &line.request]) {
            word.store(0, Relaxed);
        }
        self.count_as_dead(line);
        line.namespace.store(0, Relaxed);
        line.state.store(FREE, Release);
        // Whoever waits for an answer of the one that is gone looks again.
        line.answered.store(line.doorbell.load(Acquire), Release);
        wake_in(Scope::Shared, &line.answered, u32::MAX);
        true
    }

    /// The processes that have a line now.
    pub fn processes(&self) -> impl Iterator<Item = Process> + '_ {
        self.lines().iter().enumerate().filter_map(|(index, line)| {
            let state = line.state.load(Acquire);
            // First: whoever changes one of these has changed the charge before.
            let settled = line.settled.load(Acquire) != 0;
            let (borrowed, unbacked) = (self.borrowed_of(line), line.unbacked.load(SeqCst));
            (state & 0xff == LIVE).then(|| Process {
                line: LineId {
                    index: index as u16,
                    generation: line.generation.load(Acquire),
                },
                pid: pid_of(state),
                service: line.service.load(Relaxed),
                charged: crate::charge::spent_of(line),
                borrowed,
                shared: Group::shared_of(line),
                unbacked,
                settled,
                swap: line.swap.load(Relaxed),
                gauges: Gauges::read(&line.gauges),
                killed: line.killed.load(Relaxed) != 0,
            })
        })
    }

    /// Processes (and programs executed) that ever joined.
    pub fn joins(&self) -> u64 {
        self.page.joins.load(Relaxed)
    }
}

/// Whether the process that put `line` into its state is gone. A process of another pid or time
/// namespace cannot be judged from here and counts as there. A failed read of /proc proves
/// nothing (a service's filter refuses to open files): only ESRCH from kill, another start time
/// or a finished zombie do.
fn gone(line: &Line, state: u64, namespace: u64) -> bool {
    let pid = pid_of(state);
    let folding = state & 0xff == FOLDING;
    if namespace == 0 || !folding && line.namespace.load(Relaxed) != namespace {
        return false;
    }
    // Signal 0 sends nothing.
    if signal::send(pid as i32, 0) == Err(Errno(libc::ESRCH)) {
        return true;
    }
    if folding {
        return false;
    }
    proc_stat(pid).is_ok_and(|now| {
        let ended = matches!(now.state, b'Z' | b'X') && now.threads <= 1;
        now.start != line.start.load(Relaxed) || ended
    })
}

#[cfg(test)]
#[path = "../tests/unit/line.rs"]
mod tests;
