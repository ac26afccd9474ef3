//! Cross-process reclaim: a request word, a doorbell, an answer.
//!
//! The one who cannot charge adds to the other's request and rings; the other's service takes
//! the request, reclaims and answers. Requests of several askers add up into one; each asker
//! waits for the answer to its own ring or a later one, and looks at the account again.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::time::Duration;
use std::time::Instant;

use deckle_sys::futex::{Scope, wait_in, wake_in};

use crate::attach::Group;
use crate::line::{LineId, Process};

/// A ring of somebody's doorbell, to be waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Ring {
    line: LineId,
    number: u32,
}

impl Ring {
    /// Whether an answer to the request of that number is one to this ring, or came later.
    fn is_answered_by(self, number: u32) -> bool {
        number.wrapping_sub(self.number) as i32 >= 0
    }
}

/// Work for a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Pages wanted.
    pub pages: u64,
    /// Somebody is out of memory otherwise.
    pub last: bool,
    /// `memory.max` was lowered, and holds no more by itself.
    pub lowered: bool,
    number: u32,
}

/// In the request word, beside the pages: see [`Request::last`].
const LAST: u64 = 1 << 62;
/// The same: see [`Request::lowered`].
const LOWERED: u64 = 1 << 61;

/// What came of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// So many pages were reclaimed (0: it has nothing to give).
    Freed(u64),
    /// The process is gone; its charge can be had by [`fold_stale`](Group::fold_stale).
    Gone,
    /// No answer in time: it is stopped, or very slow.
    Late,
}

impl Group {
    /// Asks the process of `line` for `pages` and rings its doorbell. `None` if it is gone.
    pub fn ask(&self, line: LineId, pages: u64) -> Option<Ring> {
        let l = self.line(line)?;
        l.request.fetch_add(pages.min(1 << 38), AcqRel);
        let number = l.doorbell.fetch_add(1, AcqRel).wrapping_add(1);
        wake_in(Scope::Shared, &l.doorbell, u32::MAX);
        Some(Ring { line, number })
    }

    /// The same for who is out of memory otherwise: the other does what costs it more, too.
    pub fn ask_last(&self, line: LineId, pages: u64) -> Option<Ring> {
        self.line(line)?.request.fetch_or(LAST, AcqRel);
        self.ask(line, pages)
    }

    /// Has the process of `line` bring usage below `memory.max` after that was lowered.
    pub fn ask_below_max(&self, line: LineId) -> Option<Ring> {
        self.line(line)?.request.fetch_or(LOWERED, AcqRel);
        self.ask(line, 0)
    }

    /// Counts pages that were reclaimed because a user asked for it.
    pub fn count_reclaimed_on_request(&self, pages: u64) {
        self.page.reclaimed_on_request.fetch_add(pages, Relaxed);
    }

    /// Pages that were reclaimed because a user asked for it, ever.
    pub fn reclaimed_on_request(&self) -> u64 {
        self.page.reclaimed_on_request.load(Relaxed)
    }

    /// Waits for the answer, at most so long.
    pub fn wait_answer(&self, ring: Ring, timeout: Duration) -> Answer {
        // Long enough to cost nothing, short enough to notice a death within a blink.
        const LOOK: Duration = Duration::from_millis(50);
        let start = Instant::now();
        loop {
            let Some(l) = self.line(ring.line) else {
                return Answer::Gone;
            };
            let answered = l.answered.load(Acquire);
            if ring.is_answered_by(answered) {
                return Answer::Freed(l.answer.load(Relaxed));
            }
            let left = timeout.saturating_sub(start.elapsed());
            wait_in(Scope::Shared, &l.answered, answered, Some(left.min(LOOK)));
            if self.is_gone(ring.line) {
                return Answer::Gone;
            }
            if left.is_zero() {
                return Answer::Late;
            }
        }
    }

    /// Asks all other processes at once, as who is out of memory otherwise, and waits for the first
    /// that has given something, at most so long. Who has not answered by then is late, and is not
    /// [chosen](Group::choose_donor) until it does.
    pub fn ask_all(&self, me: LineId, pages: u64, timeout: Duration) -> Answer {
        /// Between two looks at all of them.
        const LOOK: Duration = Duration::from_millis(5);
        let ask = |p: Process| self.ask_last(p.line, pages);
        let mut rings: Vec<Ring> = self.others(me).filter_map(ask).collect();
        let start = Instant::now();
        while !rings.is_empty() && start.elapsed() < timeout {
            let mut given = None;
            rings.retain(|&ring| match self.wait_answer(ring, Duration::ZERO) {
                Answer::Late => true,
                Answer::Freed(0) => false,
                some => {
                    given = Some(some);
                    false
                }
            });
            if let Some(given) = given {
                return given;
            }
            if let Some(&first) = rings.first() {
                let _ = self.wait_answer(first, LOOK);
            }
        }
        match rings.is_empty() {
            true => Answer::Freed(0),
            false => {
                rings.iter().for_each(|ring| self.note_late(*ring));
                Answer::Late
            }
        }
    }

    /// Who was rung so is late, unless it has answered or left meanwhile.
    pub fn note_late(&self, ring: Ring) {
        let Some(l) = self.line(ring.line) else {
            return;
        };
        l.late.store(1, SeqCst);
        let is_answered = ring.is_answered_by(l.answered.load(SeqCst));
        if is_answered || self.line(ring.line).is_none() {
            l.late.store(0, SeqCst);
        }
    }

    /// The service's side: takes what is asked of it, if anything.
    fn take_request(&self, me: LineId) -> Option<Request> {
        let l = self.line(me)?;
        let number = l.doorbell.load(Acquire);
        if number == l.answered.load(Acquire) {
            return None;
        }
        let word = l.request.swap(0, AcqRel);
        Some(Request {
            pages: word & (LOWERED - 1),
            last: word & LAST != 0,
            lowered: word & LOWERED != 0,
            number,
        })
    }

    /// The service's side: sleeps until the doorbell rings or `timeout` passes.
    pub fn wait_request(&self, me: LineId, timeout: Duration) -> Option<Request> {
        if let Some(request) = self.take_request(me) {
            return Some(request);
        }
        let l = self.line(me)?;
        // Nothing was asked when the doorbell showed what has been answered.
        let answered = l.answered.load(Acquire);
        wait_in(Scope::Shared, &l.doorbell, answered, Some(timeout));
        self.take_request(me)
    }

    /// The service's side: the doorbell, a futex word of all processes, and its value as long as
    /// nothing is asked. `None`: it is gone.
    pub fn doorbell(&self, me: LineId) -> Option<(&AtomicU32, u32)> {
        let l = self.line(me)?;
        Some((&l.doorbell, l.answered.load(Acquire)))
    }

    /// The service's side: whether something is asked.
    pub fn is_asked(&self, me: LineId) -> bool {
        let bell = self.doorbell(me);
        bell.is_some_and(|(bell, answered)| bell.load(SeqCst) != answered)
    }

    /// The service's side: `freed` pages were reclaimed for `request`.
    pub fn answer(&self, me: LineId, request: Request, freed: u64) {
        let Some(l) = self.line(me) else { return };
        l.answer.store(freed, Relaxed);
        l.answered.store(request.number, SeqCst);
        l.late.store(0, SeqCst);
        wake_in(Scope::Shared, &l.answered, u32::MAX);
    }
}
