//! Memory that processes share since a fork, and who pays for it.
//!
//! The parent (the sponsor) pays for what both have, also after it has given it back itself,
//! until no borrower lives. If the sponsor ends first, whoever returns its charge charges each
//! borrower with all that it borrowed: too much rather than too little.
//!
//! Two words say how much a process borrows: of the store all that it got at the fork, of
//! resident pages what it has neither written nor given back since. The second goes down page
//! by page while the sponsor may end at any time: `SETTLED` in it says that the borrower was
//! charged with what it was. Both sides charge first and change the word then; who finds that
//! the other was faster takes its own charge back. So at no moment is a page charged to nobody,
//! and in the end each is charged once.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, fence};

use crate::attach::Group;
use crate::charge::change;
use crate::layout::Line;
use crate::line::LineId;

/// In the word of shared pages: nobody else pays for any.
const SETTLED: u64 = u64::MAX;
/// Most pages that are believed: whoever may write the page can lie in it.
const MOST: u64 = 1 << 38;

/// Never 0.
fn word(id: LineId) -> u64 {
    (u64::from(id.index) + 1) << 32 | u64::from(id.generation)
}

/// Charges what `shared` says by `charge` (pages, negative: takes back), and settles it.
/// Whoever of several is fastest does; the others leave no trace.
fn settle(shared: &AtomicU64, mut charge: impl FnMut(i64)) {
    loop {
        let now = shared.load(SeqCst);
        if now == SETTLED {
            return;
        }
        let pages = now.min(MOST) as i64;
        charge(pages);
        if shared
            .compare_exchange(now, SETTLED, SeqCst, SeqCst)
            .is_ok()
        {
            return;
        }
        charge(-pages);
    }
}

/// Takes `pages`, which their owner has charged to itself, off what it shares. False: they were
/// charged to it already.
fn take_off(shared: &AtomicU64, pages: u64) -> bool {
    shared
        .fetch_update(SeqCst, SeqCst, |now| {
            (now != SETTLED).then(|| now.saturating_sub(pages))
        })
        .is_ok()
}

fn charge_to(line: &Line) -> impl FnMut(i64) {
    |pages| {
        change(&line.slots[0].word, |c, u| Some((c + pages, u)));
    }
}

impl Group {
    /// `sponsor` pays for `stored` pages of the store and for `resident` pages that the process
    /// of `line` shares with it since the fork of this number. False: it is gone, and nobody
    /// does.
    pub fn borrow_from(
        &self,
        line: LineId,
        (sponsor, fork): (LineId, u64),
        (stored, resident): (u64, u64),
    ) -> bool {
        let Some(mine) = self.line(line) else {
            return false;
        };
        mine.fork.store(fork, SeqCst);
        mine.borrowed.store(stored, SeqCst);
        mine.shared.store(resident.min(MOST), SeqCst);
        mine.sponsor.store(word(sponsor), SeqCst);
        // Either this sees that the sponsor's line is being folded, or who folds it sees us.
        fence(SeqCst);
        if self.line(sponsor).is_some() || mine.sponsor.swap(0, SeqCst) == 0 {
            return true;
        }
        mine.shared.store(0, SeqCst);
        false
    }

    /// Resident pages of a process that another pays for.
    pub(crate) fn shared_of(line: &Line) -> u64 {
        match line.shared.load(SeqCst) {
            SETTLED => 0,
            pages => pages.min(MOST),
        }
    }

    /// What a process has and another pays for: of the store what it got at the fork, of
    /// resident pages what it shares still.
    pub(crate) fn borrowed_of(&self, line: &Line) -> u64 {
        let stored = match line.sponsor.load(SeqCst) {
            0 => 0,
            _ => line.borrowed.load(SeqCst).min(MOST),
        };
        Group::shared_of(line) + stored
    }

    /// `pages` more, or less if negative, are charged to the process of `line` that only others
    /// have, with whom it shared them. After they were charged, and before they are returned.
    pub fn note_unbacked(&self, line: LineId, pages: i64) {
        if let Some(line) = self.line(line) {
            let sum = |now: u64| Some(now.saturating_add_signed(pages));
            let _ = line.unbacked.fetch_update(SeqCst, SeqCst, sum);
        }
    }

    /// Whether somebody pays for what the process of `line` borrowed.
    pub fn is_sponsored(&self, line: LineId) -> bool {
        self.line(line).is_some_and(|l| l.sponsor.load(SeqCst) != 0)
    }

    /// The process of `line`, which has charged itself with `pages` of the resident ones that
    /// it shares, shares them no more. False: it was charged with them already.
    pub fn take_over(&self, line: LineId, pages: u64) -> bool {
        self.line(line).is_some_and(|l| take_off(&l.shared, pages))
    }

    /// Whether the process of `line` pays for all its resident pages.
    pub fn is_settled(&self, line: LineId) -> bool {
        self.line(line)
            .is_none_or(|l| l.shared.load(SeqCst) == SETTLED)
    }

    /// Charges the process of `line` with all resident pages that it still shares at its
    /// sponsor's charge; before [`stop_borrowing`](Group::stop_borrowing).
    pub fn settle_shared(&self, line: LineId) {
        if let Some(line) = self.line(line) {
            settle(&line.shared, charge_to(line));
        }
    }

    /// The process of `line` pays for itself from now on. False: it was charged with all of the
    /// store that it borrowed already.
    pub fn stop_borrowing(&self, line: LineId) -> bool {
        self.line(line)
            .is_some_and(|l| l.sponsor.swap(0, SeqCst) != 0)
    }

    /// Of the processes that borrow from that of `sponsor` the smallest number of a fork; `None`
    /// if there are none. Dead ones count until they are [folded](Group::fold_stale).
    pub fn oldest_borrower(&self, sponsor: LineId) -> Option<u64> {
        let borrowers = self.borrowers(word(sponsor));
        borrowers.map(|l| l.fork.load(SeqCst)).min()
    }

    fn borrowers(&self, word: u64) -> impl Iterator<Item = &Line> {
        let lines = self.lines().iter();
        lines.filter(move |l| l.sponsor.load(SeqCst) == word)
    }

    /// Resident pages that processes share at the charge of that of `sponsor`, each process
    /// counted for itself: never less than what only they hold.
    pub fn shared_with(&self, sponsor: LineId) -> u64 {
        self.shared_at(word(sponsor))
    }

    /// The same at the charge of whoever pays for what that of `line` shares.
    pub fn shared_beside(&self, line: LineId) -> u64 {
        self.line(line)
            .map_or(0, |l| self.shared_at(l.sponsor.load(SeqCst)))
    }

    fn shared_at(&self, word: u64) -> u64 {
        self.borrowers(word).map(Group::shared_of).sum()
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
                settle(&other.shared, charge_to(other));
                let pages = other.borrowed.load(SeqCst).min(MOST) as i64;
                charge_to(other)(pages);
            }
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/lend.rs"]
mod tests;
