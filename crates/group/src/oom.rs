//! Out of memory: whom to ask, whom to kill. Who kills, one at a time, is `deckle run`.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::attach::Group;
use crate::layout::LINES;
use crate::line::{LineId, Process};

/// The processes of a group and what each holds, the largest first: for the report of a kill.
pub struct Members<'a>(pub &'a Group);

/// Per cent of what a process evicts that comes back, from which on borrowers are asked to give up
/// what they share.
pub const THRASHING: u32 = 50;

/// Words of a set of lines.
const WORDS: usize = LINES.div_ceil(64);

/// Who was asked for memory already, by number of line.
pub struct Asked([u64; WORDS]);

impl Default for Asked {
    fn default() -> Asked {
        Asked([0; WORDS])
    }
}

impl Asked {
    fn has(&self, line: LineId) -> bool {
        let i = usize::from(line.index);
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 != 0)
    }

    fn note(&mut self, donor: Option<Process>) -> Option<Process> {
        let i = usize::from(donor?.line.index);
        if let Some(word) = self.0.get_mut(i / 64) {
            *word |= 1 << (i % 64);
        }
        donor
    }
}

/// Processes that a report names.
const NAMED: usize = 16;

impl fmt::Display for Members<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |pid: &dyn fmt::Display, others: [&dyn fmt::Display; 5]| {
            write!(f, "{pid:>9}")?;
            others
                .iter()
                .try_for_each(|cell| write!(f, " {cell:>12}"))?;
            f.write_str("\n")
        };
        let names = [
            "charged kB",
            "resident kB",
            "store kB",
            "borrowed kB",
            "unbacked kB",
        ];
        row(&"pid", names.each_ref().map(|name| name as _))?;
        // Largest first without memory of our own: each time the largest below the last one.
        let key = |p: &Process| (p.charged, p.pid);
        let mut last = None;
        for _ in 0..NAMED {
            let rest = self
                .0
                .processes()
                .filter(|p| last.is_none_or(|l| key(p) < l));
            let Some(p) = rest.max_by_key(key) else {
                return Ok(());
            };
            // Who is out of memory has all of it unmapped.
            let held = p.gauges.resident.saturating_add(p.gauges.inactive) * 4;
            let stored = p.gauges.stored_bytes / 1024;
            let others = [p.charged * 4, held, stored, p.borrowed * 4, p.unbacked * 4];
            row(&p.pid, others.each_ref().map(|cell| cell as _))?;
            last = Some(key(&p));
        }
        f.write_str("(smaller ones not shown)\n")
    }
}

impl Group {
    /// The processes other than `me` that have a service which may answer soon.
    pub(crate) fn others(&self, me: LineId) -> impl Iterator<Item = Process> {
        let others = self.processes().filter(move |p| p.line != me);
        others.filter(|p| p.service != 0 && !p.late)
    }

    /// Whom to ask for memory: the process, other than `me` and those in `asked`, with most
    /// inactive and droppable pages, then with most resident ones. `None` when everybody was
    /// asked who is not late with an answer.
    pub fn choose_donor(&self, me: LineId, asked: &mut Asked) -> Option<Process> {
        let others = self.others(me);
        let donor = others.filter(|p| !asked.has(p.line)).max_by_key(|p| {
            let cold = p.gauges.inactive.saturating_add(p.gauges.droppable);
            (cold, p.gauges.resident, p.gauges.oldest_inactive)
        });
        asked.note(donor)
    }

    /// Whom to ask for memory rather than evict what comes back, `refaults` per cent of it, in
    /// the process `me`: the process of whose evicted pages fewest come back, then with most
    /// resident pages, if that is less than half as many and it has something worth the
    /// trouble. `None` when everybody was asked.
    pub fn choose_colder(&self, me: LineId, refaults: u32, asked: &mut Asked) -> Option<Process> {
        /// Pages: 4 MiB.
        const WORTH: u64 = 1024;
        let has = |p: &Process| match refaults < THRASHING {
            true => p.gauges.resident,
            false => p.gauges.resident.saturating_add(p.shared),
        };
        let donor = self
            .others(me)
            .filter(|p| !asked.has(p.line) && has(p) >= WORTH)
            .filter(|p| p.gauges.refaults < u64::from(refaults / 2))
            .min_by_key(|p| (p.gauges.refaults, u64::MAX - has(p)));
        asked.note(donor)
    }

    /// Whether memory is out no more: so much is free that a fault finds room for certain.
    pub fn has_room(&self) -> bool {
        /// Pages: a folio of 64 KiB for each task.
        const ROOM: u64 = 64;
        self.usage() + ROOM <= self.limits().max
    }

    /// Pages that come free when a process ends: its size without what others share.
    pub fn weight(&self, p: &Process) -> u64 {
        p.size().saturating_sub(self.lent_by(p.line))
    }

    /// The process whose end frees most. What a `deckle run` within this one has reserved, a line
    /// without a service, comes last. `None` in an empty group. `deckle run`, which kills, knows
    /// more of each.
    pub fn choose_victim(&self) -> Option<Process> {
        let all = self.processes();
        all.max_by_key(|p| (p.service != 0, self.weight(p)))
    }

    /// Counts a process as killed at the limit; `deckle run` does so, which kills it. False if
    /// its tenancy is over.
    pub fn note_killed(&self, victim: LineId) -> bool {
        let Some(line) = self.line(victim) else {
            return false;
        };
        if line.killed.swap(1, AcqRel) == 0 {
            self.page.oom_kills.fetch_add(1, Relaxed);
        }
        true
    }

    /// Processes killed at the limit so far.
    pub fn oom_kills(&self) -> u64 {
        self.page.oom_kills.load(Relaxed)
    }
}
