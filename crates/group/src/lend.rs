//! Memory that processes share since a fork, and who pays for it.
//!
//! The parent (the sponsor) pays for what both have, also after it has given it back itself,
//! until no borrower lives. If the sponsor ends first, whoever returns its charge charges each
//! borrower with all that it borrowed: too much rather than too little.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;

use crate::attach::Group;
use crate::charge::change;
use crate::layout::Line;
use crate::line::LineId;

/// Never 0.
fn word(id: LineId) -> u64 {
    (u64::from(id.index) + 1) << 32 | u64::from(id.generation)
}

impl Group {
    /// `sponsor` pays for `pages` that the process of `line` shares with it. False: it is gone,
    /// and nobody does.
    pub fn borrow_from(&self, line: LineId, sponsor: LineId, pages: u64) -> bool {
        let Some(mine) = self.line(line) else {
            return false;
        };
        mine.borrowed.store(pages, SeqCst);
        mine.sponsor.store(word(sponsor), SeqCst);
        // Either this sees that the sponsor's line is being folded, or who folds it sees us.
        fence(SeqCst);
        self.line(sponsor).is_some() || mine.sponsor.swap(0, SeqCst) == 0
    }

    /// Whether somebody pays for what the process of `line` borrowed.
    pub fn is_sponsored(&self, line: LineId) -> bool {
        self.line(line).is_some_and(|l| l.sponsor.load(SeqCst) != 0)
    }

    /// The process of `line` pays for itself from now on. False: it was charged with all that
    /// it borrowed already.
    pub fn stop_borrowing(&self, line: LineId) -> bool {
        self.line(line)
            .is_some_and(|l| l.sponsor.swap(0, SeqCst) != 0)
    }

    /// Whether any process borrows from that of `sponsor`. Dead ones count until they are
    /// [folded](Group::fold_stale).
    pub fn has_borrowers(&self, sponsor: LineId) -> bool {
        let word = word(sponsor);
        self.lines().iter().any(|l| l.sponsor.load(SeqCst) == word)
    }

    /// Charges everybody who borrows from a line that is about to be folded.
    pub(crate) fn stop_sponsoring(&self, line: &Line) {
        fence(SeqCst);
        let lines = self.lines();
        let Some(index) = lines.iter().position(|l| core::ptr::eq(l, line)) else {
            return;
        };
        let word = word(LineId {
            index: index as u16,
            generation: line.generation.load(Relaxed),
        });
        for other in lines {
            if other
                .sponsor
                .compare_exchange(word, 0, SeqCst, SeqCst)
                .is_ok()
            {
                let pages = other.borrowed.load(SeqCst).min(1 << 38) as i64;
                change(&other.slots[0].word, |c, u| Some((c + pages, u)));
            }
        }
    }
}
