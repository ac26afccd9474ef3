//! Lines: one per process, from its joining to the return of what it had charged.
//!
//! A line is free, joining, live or being folded; the state word also names the process that
//! put it there, so that a line left half-way by a killed process can be taken over. Folding
//! moves the counters to the totals of the dead, one swap at a time: nothing is counted twice.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use deckle_mm::{Item, Stats};

use crate::attach::Group;
use crate::layout::{LINES, Line};
use crate::sys::{futex_wake_all, namespaces, proc_stat};

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
    /// Number of the line.
    pub fn index(self) -> u16 {
        self.index
    }
}

/// What a service publishes about its process from time to time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gauges {
    /// Pages resident: mapped and inactive.
    pub resident: u64,
    /// Of these, inactive (resident but unmapped).
    pub inactive: u64,
    /// Zero-filled subpages that a split would free, as far as known.
    pub droppable: u64,
    /// Pages that the program sees as its own but that are in the store (logical swap).
    pub swapped: u64,
    /// RAM that the store uses, pages.
    pub stored_pages: u64,
    /// Bytes of compressed data in the store.
    pub stored_bytes: u64,
    /// Age of the oldest inactive folio, in reclaim rounds.
    pub oldest_inactive: u64,
    /// Pages that come back for each hundred that are evicted (see `Mm::refault_percent`).
    pub refaults: u64,
    /// Anonymous memory of the process that is not managed (stacks, .bss, shared), pages.
    pub unmanaged_anon: u64,
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

/// Why a process could not get a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinError {
    /// All lines belong to live processes.
    Full {
        /// Number of lines.
        lines: usize,
    },
    /// The process to join does not exist.
    NoProcess(u32),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Full { lines } => {
                write!(
                    f,
                    "the group has {lines} processes already, which is its maximum"
                )
            }
            JoinError::NoProcess(pid) => write!(f, "process {pid} does not exist"),
        }
    }
}

impl core::error::Error for JoinError {}

/// Whether `item` is a gauge, which ends with its process, and not a counter, which stays.
pub fn is_gauge(item: Item) -> bool {
    matches!(
        item,
        Item::NrAnon
            | Item::NrInactive
            | Item::NrThp
            | Item::NrZero
            | Item::NrSwapped
            | Item::NrShared
            | Item::NrAnonPartiallyMapped
    )
}

impl Group {
    /// Gives process `pid` (of the caller's pid namespace) a line, all zero. A line that the
    /// same process had before it executed another program is folded first. `service` is the
    /// pid of its service task, 0 if it has none yet.
    pub fn join(&self, pid: u32, service: u32) -> Result<LineId, JoinError> {
        let start = proc_stat(pid).map_err(|_| JoinError::NoProcess(pid))?.start;
        let namespace = namespaces();
        for line in self.lines() {
            let before = line.state.load(Acquire);
            if pid_of(before) == pid
                && before & 0xff == LIVE
                && line.start.load(Relaxed) == start
                && line.namespace.load(Relaxed) == namespace
            {
                self.fold(line, before);
            }
        }
        let claimed = match self.claim() {
            Some(index) => index,
            None => {
                self.fold_stale();
                self.claim().ok_or(JoinError::Full { lines: LINES })?
            }
        };
        let page = self.page();
        let line = &page.lines[claimed];
        line.start.store(start, Relaxed);
        line.namespace.store(namespace, Relaxed);
        line.service.store(service, Relaxed);
        line.killed.store(0, Relaxed);
        line.sponsor.store(0, Relaxed);
        line.borrowed.store(0, Relaxed);
        line.shared.store(0, Relaxed);
        line.unbacked.store(0, Relaxed);
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
        let page = self.page();
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

    /// Sets the pid of the service of a line.
    pub fn set_service(&self, id: LineId, service: u32) {
        if let Some(line) = self.line(id) {
            line.service.store(service, Relaxed);
        }
    }

    /// The line of `id`, while that tenancy lasts.
    pub(crate) fn line(&self, id: LineId) -> Option<&Line> {
        let line = self.page().lines.get(usize::from(id.index))?;
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
        if let Some(line) = self.page().lines.get(usize::from(id.index)) {
            let before = line.state.load(Acquire);
            if before == live(pid_of(before), id.generation) {
                self.fold(line, before);
            }
        }
    }

    /// Returns the charge of processes that are gone; how many lines were folded.
    /// Costs one `kill(pid, 0)` and one read of /proc per live line.
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
        for gauge in [
            &line.resident,
            &line.inactive,
            &line.droppable,
            &line.swapped,
            &line.stored_pages,
            &line.stored_bytes,
            &line.oldest_inactive,
            &line.refaults,
            &line.unmanaged_anon,
            &line.unbacked,
            &line.request,
        ] {
            gauge.store(0, Relaxed);
        }
        for item in Item::ALL {
            let n = line.counters[*item as usize].swap(0, Relaxed);
            if !is_gauge(*item) {
                self.page().dead[*item as usize].fetch_add(n, Relaxed);
            }
        }
        line.namespace.store(0, Relaxed);
        line.state.store(FREE, Release);
        // Whoever waits for an answer of the one that is gone looks again.
        line.answered.store(line.doorbell.load(Acquire), Release);
        futex_wake_all(&line.answered);
        true
    }

    /// Publishes gauges and counters of a process. Called by its service a few times a second
    /// and at its end; what was published survives the process.
    pub fn publish(&self, id: LineId, g: &Gauges, stats: &Stats) {
        let Some(line) = self.line(id) else { return };
        line.resident.store(level(g.resident), Relaxed);
        line.inactive.store(level(g.inactive), Relaxed);
        line.droppable.store(level(g.droppable), Relaxed);
        line.swapped.store(level(g.swapped), Relaxed);
        line.stored_pages.store(level(g.stored_pages), Relaxed);
        line.stored_bytes.store(level(g.stored_bytes), Relaxed);
        line.oldest_inactive.store(g.oldest_inactive, Relaxed);
        line.refaults.store(g.refaults, Relaxed);
        line.unmanaged_anon.store(level(g.unmanaged_anon), Relaxed);
        for item in Item::ALL {
            let n = stats.get(*item);
            let n = if is_gauge(*item) { level(n) } else { n };
            line.counters[*item as usize].store(n, Relaxed);
        }
        let sum = self.gauges();
        let page = self.page();
        page.resident_peak.fetch_max(sum.resident, Relaxed);
        page.stored_bytes_peak.fetch_max(sum.stored_bytes, Relaxed);
        page.swapped_peak.fetch_max(sum.swapped, Relaxed);
        page.unmanaged_anon_peak
            .fetch_max(sum.unmanaged_anon, Relaxed);
    }

    /// A counter (dead and live processes) or a gauge (live ones) of the whole group.
    pub fn counter(&self, item: Item) -> u64 {
        let i = item as usize;
        let live = |l: &Line| l.counters[i].load(Relaxed);
        self.lines()
            .iter()
            .map(live)
            .fold(self.page().dead[i].load(Relaxed), u64::saturating_add)
    }

    /// Gauges summed over the group; `oldest_inactive` and `refaults` are the largest.
    pub fn gauges(&self) -> Gauges {
        self.processes()
            .fold(Gauges::default(), |sum, p| sum.plus(&p.gauges))
    }

    /// Peaks of the sums: those of resident, swapped and stored bytes and of unmanaged memory.
    pub fn peak_gauges(&self) -> Gauges {
        let page = self.page();
        Gauges {
            resident: page.resident_peak.load(Relaxed),
            swapped: page.swapped_peak.load(Relaxed),
            stored_bytes: page.stored_bytes_peak.load(Relaxed),
            unmanaged_anon: page.unmanaged_anon_peak.load(Relaxed),
            ..Gauges::default()
        }
    }

    /// Raises the peak of unmanaged anonymous memory, pages: for a supervisor that measures it.
    pub fn note_unmanaged_anon(&self, pages: u64) {
        self.page().unmanaged_anon_peak.fetch_max(pages, Relaxed);
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
                unbacked,
                settled,
                swap: line.swap.load(Relaxed),
                gauges: Gauges {
                    resident: line.resident.load(Relaxed),
                    inactive: line.inactive.load(Relaxed),
                    droppable: line.droppable.load(Relaxed),
                    swapped: line.swapped.load(Relaxed),
                    stored_pages: line.stored_pages.load(Relaxed),
                    stored_bytes: line.stored_bytes.load(Relaxed),
                    oldest_inactive: line.oldest_inactive.load(Relaxed),
                    refaults: line.refaults.load(Relaxed),
                    unmanaged_anon: line.unmanaged_anon.load(Relaxed),
                },
                killed: line.killed.load(Relaxed) != 0,
            })
        })
    }

    /// Processes (and programs executed) that ever joined.
    pub fn joins(&self) -> u64 {
        self.page().joins.load(Relaxed)
    }
}

/// A gauge without its passing dips below zero: it is read while others change it, and what
/// one takes off may be seen before what another put on.
fn level(n: u64) -> u64 {
    if n > i64::MAX as u64 { 0 } else { n }
}

impl Gauges {
    fn plus(&self, o: &Gauges) -> Gauges {
        Gauges {
            resident: self.resident.saturating_add(o.resident),
            inactive: self.inactive.saturating_add(o.inactive),
            droppable: self.droppable.saturating_add(o.droppable),
            swapped: self.swapped.saturating_add(o.swapped),
            stored_pages: self.stored_pages.saturating_add(o.stored_pages),
            stored_bytes: self.stored_bytes.saturating_add(o.stored_bytes),
            oldest_inactive: self.oldest_inactive.max(o.oldest_inactive),
            refaults: self.refaults.max(o.refaults),
            unmanaged_anon: self.unmanaged_anon.saturating_add(o.unmanaged_anon),
        }
    }
}

/// Whether the process that put `line` into its state is gone. A process of another pid or time
/// namespace cannot be judged from here and counts as there. A failed read of /proc proves
/// nothing: only ESRCH from kill, another start time or a finished zombie do.
fn gone(line: &Line, state: u64, namespace: u64) -> bool {
    let pid = pid_of(state);
    let folding = state & 0xff == FOLDING;
    if !folding && (namespace == 0 || line.namespace.load(Relaxed) != namespace) {
        return false;
    }
    // SAFETY: signal 0 sends nothing.
    let alive =
        unsafe { libc::kill(pid as i32, 0) } == 0 || crate::sys::Errno::last().0 != libc::ESRCH;
    if !alive {
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
mod tests {
    use super::*;
    use crate::{Limits, Name, SwapKind};

    /// The old service of a process that executes another program ends while the new one joins.
    #[test]
    fn p22_who_looked_at_a_tenancy_does_not_end_the_next_one_of_the_same_process() {
        let name = Name::new(format!("test-line-{}", std::process::id()).as_bytes()).unwrap();
        let limits = Limits {
            max: 100,
            high: 100,
            swap_max: 100,
        };
        let tunables = deckle_mm::Tunables::default();
        let group = Group::create(name, limits, &tunables, SwapKind::Lz4).unwrap();
        Group::unlink(group.name());
        let old = group.join(std::process::id(), 0).unwrap();
        let line = group.line(old).unwrap();
        let seen = line.state.load(Acquire);
        let new = group.join(std::process::id(), 0).unwrap();
        assert_eq!(old.index, new.index, "the same line again");
        assert!(!group.fold(line, seen));
        group.leave(old);
        assert!(group.is_current(new) && !group.is_current(old));
        group.leave(new);
        assert!(!group.is_current(new));
    }
}
