//! Out of memory: whom to ask, whom to kill, and that only one is killed.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::attach::Group;
use crate::line::{LineId, Process};
use crate::sys::{Errno, pidfd_kill, pidfd_open, proc_stat};

/// The right to kill one process of the group. While it is held and its victim lives, nobody
/// else gets one; it lapses with the victim's end or the holder's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OomTicket {
    /// Who is to die.
    pub victim: LineId,
    word: u64,
}

/// Why there is no ticket now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OomError {
    /// Another process is killing this one: wait for its memory, then charge again.
    InProgress {
        /// Who is dying.
        victim: LineId,
    },
    /// The victim is gone already: charge again.
    Gone,
}

impl fmt::Display for OomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OomError::InProgress { victim } => {
                write!(
                    f,
                    "the process on line {} is being killed already",
                    victim.index
                )
            }
            OomError::Gone => f.write_str("the process to be killed is gone"),
        }
    }
}

impl core::error::Error for OomError {}

/// What came of a kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kill {
    /// The signal was sent.
    Sent,
    /// It was gone already.
    Gone,
    /// The signal could not be sent.
    Failed(Errno),
}

// valid:1 | index:8 | holder pid:22 (the kernel's maximum) | generation:32
const VALID: u64 = 1 << 63;
const PID_MASK: u64 = (1 << 22) - 1;

fn ticket_word(victim: LineId, holder: u32) -> u64 {
    VALID
        | (u64::from(victim.index) & 0xff) << 54
        | (u64::from(holder) & PID_MASK) << 32
        | u64::from(victim.generation)
}

fn ticket_parts(word: u64) -> (LineId, u32) {
    let victim = LineId {
        index: (word >> 54 & 0xff) as u16,
        generation: word as u32,
    };
    (victim, (word >> 32 & PID_MASK) as u32)
}

/// The processes of a group and what each holds, the largest first: for the report of a kill.
pub struct Members<'a>(pub &'a Group);

/// Processes that a report names.
const NAMED: usize = 16;

impl fmt::Display for Members<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>9} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "pid", "charged kB", "resident kB", "store kB", "borrowed kB", "unbacked kB"
        )?;
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
            writeln!(
                f,
                "{:>9} {:>12} {:>12} {:>12} {:>12} {:>12}",
                p.pid,
                p.charged * 4,
                p.gauges.resident * 4,
                p.gauges.stored_bytes / 1024,
                p.borrowed * 4,
                p.unbacked * 4
            )?;
            last = Some(key(&p));
        }
        f.write_str("(smaller ones not shown)\n")
    }
}

impl Group {
    /// Whom to ask for memory: the process, other than `me` and those in `asked` (a mask of
    /// line numbers), with most inactive and droppable pages, then with most resident ones.
    /// `None` when everybody was asked.
    pub fn choose_donor(&self, me: LineId, asked: &[u64; 4]) -> Option<Process> {
        self.processes()
            .filter(|p| {
                let i = usize::from(p.line.index);
                p.line != me && asked[i / 64] >> (i % 64) & 1 == 0
            })
            .max_by_key(|p| {
                let cold = p.gauges.inactive.saturating_add(p.gauges.droppable);
                (cold, p.gauges.resident, p.gauges.oldest_inactive)
            })
    }

    /// Whom to ask for memory rather than evict what comes back, `refaults` per cent of it, in
    /// the process `me`: the process of whose evicted pages fewest come back, then with most
    /// resident pages, if that is less than half as many and it has something worth the
    /// trouble.
    pub fn choose_colder(&self, me: LineId, refaults: u32) -> Option<Process> {
        /// Pages: 4 MiB.
        const WORTH: u64 = 1024;
        self.processes()
            .filter(|p| p.line != me && p.service != 0 && p.gauges.resident >= WORTH)
            .filter(|p| p.gauges.refaults < u64::from(refaults / 2))
            .min_by_key(|p| (p.gauges.refaults, u64::MAX - p.gauges.resident))
    }

    /// Whom to kill: the process that holds most. Resident plus stored, or what it has charged
    /// if that is more (it may not have published yet). `None` in an empty group.
    pub fn choose_victim(&self) -> Option<Process> {
        self.processes().max_by_key(|p| {
            p.charged
                .max(p.gauges.resident.saturating_add(p.gauges.stored_pages))
        })
    }

    /// Takes the ticket to kill `victim`. `holder` is the caller's pid (the program's, or its
    /// service's), by which a dead holder's ticket is recognised.
    pub fn oom_ticket(&self, victim: LineId, holder: u32) -> Result<OomTicket, OomError> {
        let oom = &self.page().oom;
        let word = ticket_word(victim, holder);
        loop {
            if self.is_gone(victim) {
                return Err(OomError::Gone);
            }
            let now = oom.load(Acquire);
            if now & VALID != 0 {
                let (other, other_holder) = ticket_parts(now);
                // SAFETY: signal 0 sends nothing.
                let holder_lives = unsafe { libc::kill(other_holder as i32, 0) } == 0
                    || Errno::last().0 != libc::ESRCH;
                let gone = self.is_gone(other);
                if holder_lives && !gone {
                    return Err(OomError::InProgress { victim: other });
                }
                if gone && other == victim {
                    // It ended since the look above.
                    return Err(OomError::Gone);
                }
            }
            if oom.compare_exchange(now, word, AcqRel, Relaxed).is_ok() {
                return Ok(OomTicket { victim, word });
            }
        }
    }

    /// Gives the ticket back unused (memory turned up after all).
    pub fn drop_ticket(&self, ticket: OomTicket) {
        let _ = self
            .page()
            .oom
            .compare_exchange(ticket.word, 0, AcqRel, Relaxed);
    }

    /// Kills the ticket's victim with SIGKILL, by a pidfd that is checked to be of that very
    /// process, and counts it. The ticket stays until the victim is gone.
    pub fn kill(&self, ticket: OomTicket) -> Kill {
        let Some(line) = self.line(ticket.victim) else {
            return Kill::Gone;
        };
        let pid = (line.state.load(Acquire) >> 8) as u32;
        let pidfd = match pidfd_open(pid) {
            Ok(fd) => fd,
            Err(Errno(libc::ESRCH)) => return Kill::Gone,
            Err(e) => return Kill::Failed(e),
        };
        // Opened first, checked then: the pid cannot be another's any more.
        if proc_stat(pid).is_ok_and(|s| s.start != line.start.load(Relaxed)) {
            return Kill::Gone;
        }
        // Before the signal: the victim may be the caller itself.
        let first = line.killed.swap(1, AcqRel) == 0;
        if first {
            self.page().oom_kills.fetch_add(1, Relaxed);
        }
        match pidfd_kill(&pidfd, libc::SIGKILL) {
            Ok(()) => Kill::Sent,
            Err(e) => {
                if first {
                    line.killed.store(0, Relaxed);
                    self.page().oom_kills.fetch_sub(1, Relaxed);
                }
                if e.0 == libc::ESRCH {
                    Kill::Gone
                } else {
                    Kill::Failed(e)
                }
            }
        }
    }

    /// Processes killed at the limit so far.
    pub fn oom_kills(&self) -> u64 {
        self.page().oom_kills.load(Relaxed)
    }
}
