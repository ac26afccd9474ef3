//! Lines: one per process, from its joining to the return of what it had charged.
//!
//! A line is free, reserved, joining, live or being folded; the state word also names the process
//! that put it there, so that a line left half-way by a killed process can be taken over. A
//! reserved line waits for a child of fork, and names the parent's service until the child's takes
//! it. Folding moves the counters to the totals of the dead, one swap at a time: nothing is
//! counted twice.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use deckle_sys::futex::{Scope, wake_in};
use deckle_sys::signal;
use deckle_sys::{Errno, shared};

use crate::attach::Group;
use crate::layout::{LINES, Line};
use crate::lend::line_of;
use crate::news;
use crate::proc::{namespaces, proc_stat};
use crate::publish::Gauges;

const FREE: u64 = 0;
const JOINING: u64 = 1;
const LIVE: u64 = 2;
const FOLDING: u64 = 3;
const RESERVED: u64 = 4;
const ESTATE: u64 = 5;

const fn word(pid: u32, state: u64) -> u64 {
    (pid as u64) << 8 | state
}
/// The state of a line with a tenant. The tenancy is part of it: a process that executes another
/// program keeps its pid and often gets the same line again, and who looked at the old tenancy
/// must not end the new one.
const fn live(pid: u32, generation: u32) -> u64 {
    numbered(generation, word(pid, LIVE))
}
const fn numbered(generation: u32, word: u64) -> u64 {
    (generation as u64) << 40 | word
}
const fn pid_of(word: u64) -> u32 {
    (word >> 8) as u32
}

/// One tenancy of a line: a process between its start (or exec) and its end (or next exec).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

impl Default for LineId {
    fn default() -> LineId {
        LineId::NONE
    }
}

impl From<LineId> for [u32; 2] {
    fn from(line: LineId) -> [u32; 2] {
        [line.index.into(), line.generation]
    }
}

/// A line that a process keeps for its child; see [`Group::reserve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    index: usize,
    /// The line's state while it is kept.
    state: u64,
}

/// A line as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Its line.
    pub line: LineId,
    /// Pid, in the pid namespace of the process.
    pub pid: u32,
    /// Pid of its service, 0 if none.
    pub service: u32,
    /// Pages charged, without unspent batches.
    pub charged: u64,
    /// Pages of its memory that another pays for since a fork.
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
    /// Whether somebody has waited in vain for its answer, which it has not given yet.
    pub late: bool,
}

impl Process {
    /// What a kill at the limit would bring: resident and stored pages, or what is charged if that
    /// is more (it may not have published yet).
    pub fn size(&self) -> u64 {
        let held = self
            .gauges
            .resident
            .saturating_add(self.gauges.stored_pages);
        self.charged.max(held)
    }

    /// Pages of its memory that the limit holds, at whoever's charge.
    pub fn held(&self) -> u64 {
        let own = self.charged.saturating_sub(self.unbacked);
        own.saturating_add(self.borrowed)
    }
}

/// Why a process could not get a line: all, so many, belong to live processes, or the page's file
/// system has no memory for one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full(pub u32);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Full(most) = *self;
        write!(
            f,
            "the group has {most} processes already, which is its maximum"
        )?;
        match most < LINES as u32 {
            true => f.write_str(" under deckle run's limit on open files (ulimit -Hn)"),
            false => f.write_str(", or /dev/shm is full"),
        }
    }
}

impl core::error::Error for Full {}

impl Group {
    /// Gives process `pid` (of the caller's pid namespace) a line, all zero. A line that the
    /// same process had before it executed another program is folded first. `service` is the
    /// pid of its service, 0 if it has none yet.
    ///
    /// # Errors
    /// [`Full`].
    pub fn join(&self, pid: u32, service: u32) -> Result<LineId, Full> {
        let known = identity(pid);
        let (start, namespace) = known;
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
        let index = self.claim_any()?;
        Ok(self.enter(index, (pid, service), known))
    }

    /// Keeps a free line for a process that is about to be made, so that it will not lack one.
    /// The line is free again when it is [cancelled](Group::cancel), or when the caller ends
    /// before that other process has [joined](Group::join_reserved).
    ///
    /// # Errors
    /// [`Full`].
    pub fn reserve(&self) -> Result<Reservation, Full> {
        let index = self.claim_any()?;
        let line = &self.page.lines[index];
        line.namespace.store(namespaces(), Relaxed);
        let word = word(std::process::id(), RESERVED);
        let state = numbered(self.next_generation(), word);
        line.state.store(state, Release);
        Ok(Reservation { index, state })
    }

    /// Gives a reserved line back, unless the process it was for has it.
    pub fn cancel(&self, reserved: Reservation) {
        self.fold(&self.page.lines[reserved.index], reserved.state);
    }

    /// [Joins](Group::join) by the line that was reserved for `pid`, or by any other if that one
    /// was given back because its holder has ended.
    ///
    /// # Errors
    /// [`Full`].
    pub fn join_reserved(
        &self,
        reserved: Reservation,
        pid: u32,
        service: u32,
    ) -> Result<LineId, Full> {
        let known = identity(pid);
        let line = &self.page.lines[reserved.index];
        let mine = word(std::process::id(), JOINING);
        let taken = (line.state).compare_exchange(reserved.state, mine, AcqRel, Relaxed);
        match taken {
            Ok(_) => Ok(self.enter(reserved.index, (pid, service), known)),
            Err(_) => self.join(pid, service),
        }
    }

    /// Makes a line that the caller has claimed that of process `pid`.
    fn enter(
        &self,
        index: usize,
        (pid, service): (u32, u32),
        (start, namespace): (u64, u64),
    ) -> LineId {
        let line = &self.page.lines[index];
        // No other process judges the line by its namespace until it is live.
        line.namespace.store(0, Relaxed);
        line.start.store(start, Relaxed);
        line.service.store(service, Relaxed);
        line.killed.store(0, Relaxed);
        line.sponsor.store(0, Relaxed);
        line.borrowed.store(0, Relaxed);
        line.shared.store(0, Relaxed);
        line.unbacked.store(0, Relaxed);
        line.lent.store(0, Relaxed);
        line.filed.store(0, Relaxed);
        line.file_holders.store(0, Relaxed);
        line.settled.store(0, Relaxed);
        line.late.store(0, Relaxed);
        let generation = self.next_generation();
        line.generation.store(generation, Release);
        self.page.joins.fetch_add(1, Relaxed);
        line.namespace.store(namespace, Relaxed);
        line.state.store(live(pid, generation), Release);
        LineId {
            index: index as u16,
            generation,
        }
    }

    fn next_generation(&self) -> u32 {
        let before = self.page.generation.fetch_add(1, Relaxed);
        before.wrapping_add(1)
    }

    /// Most processes at one time.
    fn lines_max(&self) -> usize {
        (self.page.lines_max.load(Relaxed) as usize).min(LINES)
    }

    /// For `deckle run`, before any process joins: it can watch so many, at most [`LINES`].
    pub fn set_lines_max(&self, most: usize) {
        self.page.lines_max.store(most.min(LINES) as u32, Relaxed);
    }

    /// Takes a free line, if need be that of a process that is gone.
    fn claim_any(&self) -> Result<usize, Full> {
        let again = || {
            self.fold_stale();
            self.claim()
        };
        let full = Full(self.lines_max() as u32);
        self.claim().or_else(again).ok_or(full)
    }

    /// Takes a free line, below the mark of used lines first. One above it gets its memory before
    /// any process touches it: where the file system has none, an access is SIGBUS.
    fn claim(&self) -> Option<usize> {
        let page = self.page;
        let me = word(std::process::id(), JOINING);
        let used = self.lines().len();
        for (index, line) in page.lines[..self.lines_max()].iter().enumerate() {
            if index >= used && shared::populate(line).is_err() {
                return None;
            }
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
        let line = self.lines().get(usize::from(id.index))?;
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
        if let Some(line) = self.lines().get(usize::from(id.index)) {
            let before = line.state.load(Acquire);
            if before == live(pid_of(before), id.generation) {
                self.fold(line, before);
            }
        }
    }

    /// Returns the charge of processes that are gone, and of what nobody has any more of theirs;
    /// how many lines were folded.
    /// Costs one `kill(pid, 0)` and one read of /proc per live line. A service may open nothing
    /// once it runs: it takes those for dead whose pid is nobody's, and `deckle run` the others.
    pub fn fold_stale(&self) -> usize {
        let namespace = namespaces();
        let mut folded = 0;
        for line in self.lines() {
            let before = line.state.load(Acquire);
            if !matches!(before, FREE | ESTATE)
                && gone(line, before, namespace)
                && self.fold(line, before)
            {
                folded += 1;
            }
        }
        for line in self.lines() {
            if line.state.load(Acquire) == ESTATE && self.settle_estate(line) {
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

    /// Brings the charge of an estate down to what others have of it, and ends it if one alone
    /// has. False: it is no more already.
    fn settle_estate(&self, line: &Line) -> bool {
        self.estate_of(line) < crate::charge::spent_of(line) && self.fold(line, ESTATE)
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
        // of all those who share its memory pay for themselves, or it stays charged here.
        let estate = self.stop_sponsoring(line);
        let sponsor = line_of(line.sponsor.swap(0, SeqCst));
        crate::charge::replace(line, estate);
        line.swap.store(0, SeqCst);
        let gauges = line.gauges.iter();
        for word in gauges.chain([&line.unbacked, &line.filed, &line.request]) {
            word.store(0, Relaxed);
        }
        self.count_as_dead(line);
        line.namespace.store(0, Relaxed);
        let left = if estate == 0 { FREE } else { ESTATE };
        line.state.store(left, Release);
        // Whoever waits for an answer of the one that is gone looks again.
        line.answered.store(line.doorbell.load(Acquire), Release);
        wake_in(Scope::Shared, &line.answered, u32::MAX);
        // Who has lost its line by a mistake ends, and who paid for what it shared may stop.
        news::tell(line);
        self.tell(sponsor);
        true
    }

    /// The processes that have a line now.
    pub fn processes(&self) -> impl Iterator<Item = Process> + '_ {
        let lines = self.lines().iter().enumerate();
        lines.filter_map(|(index, line)| self.process_of(index, line))
    }

    /// The process of `id`, while that tenancy lasts.
    pub fn process(&self, id: LineId) -> Option<Process> {
        let index = usize::from(id.index);
        let process = self.process_of(index, self.lines().get(index)?);
        process.filter(|p| p.line == id)
    }

    fn process_of(&self, index: usize, line: &Line) -> Option<Process> {
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
            late: line.late.load(Relaxed) != 0,
        })
    }

    /// Processes (and programs executed) that ever joined.
    pub fn joins(&self) -> u64 {
        self.page.joins.load(Relaxed)
    }
}

/// When a process was started, and its namespaces: zeros where /proc is of another pid namespace,
/// or is not there. Then no other process can judge this one by its start time; `deckle run` sees
/// its end.
fn identity(pid: u32) -> (u64, u64) {
    let known = match namespaces() {
        0 => None,
        namespace => proc_stat(pid).ok().map(|s| (s.start, namespace)),
    };
    known.unwrap_or((0, 0))
}

/// Whether the process that put `line` into its state is gone. A process of another pid or time
/// namespace cannot be judged from here and counts as there. A failed read of /proc proves
/// nothing (a service's filter refuses to open files): only ESRCH from kill, another start time
/// or a finished zombie do.
fn gone(line: &Line, state: u64, namespace: u64) -> bool {
    let (pid, state) = (pid_of(state), state & 0xff);
    if namespace == 0 || state != FOLDING && line.namespace.load(Relaxed) != namespace {
        return false;
    }
    // Signal 0 sends nothing.
    if signal::send(pid as i32, 0) == Err(Errno(libc::ESRCH)) {
        return true;
    }
    // The start time is that of the process that has the line, not of one that works on it.
    if state != LIVE {
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
