//! Memory that processes share since a fork, and who pays for it.
//!
//! The parent (the sponsor) pays for what both have, also after it has given it back itself,
//! until no borrower lives. If the sponsor ends first and several borrow from it, its line is an
//! *estate* from then on: charged with what the sponsor had at its last fork, or with what all of
//! them borrow if that is less. Nobody can borrow from it anew, so that goes down only. When one
//! borrower is left, it is charged with all that it borrows, which is exact, and the line is free.
//!
//! Two words say how much a process borrows: of the store, and of resident pages, what it has
//! neither written nor given back since. Both go down page by page while the sponsor may end at
//! any time: `SETTLED` in them says that the borrower was charged with what they were. Both sides
//! charge first and change the word then; who finds that the other was faster takes its own charge
//! back. So at no moment is a page charged to nobody, and in the end each is charged once.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, fence};

use crate::attach::Group;
use crate::charge::{change, spent_of};
use crate::layout::Line;
use crate::line::LineId;
use crate::news;

/// In a word of pages: nobody else pays for any.
const SETTLED: u64 = u64::MAX;
/// Most pages that are believed: whoever may write the page can lie in it.
const MOST: u64 = 1 << 38;

/// The line that [`word`] made `word` of; `None` for 0.
pub(crate) fn line_of(word: u64) -> Option<LineId> {
    let index = (word >> 32).checked_sub(1)?;
    Some(LineId {
        index: u16::try_from(index).ok()?,
        generation: word as u32,
    })
}

/// Never 0.
fn word(id: LineId) -> u64 {
    (u64::from(id.index) + 1) << 32 | u64::from(id.generation)
}

/// Charges what `word` says by `charge` (pages, negative: takes back), and settles it.
/// Whoever of several is fastest does; the others leave no trace.
fn settle(word: &AtomicU64, mut charge: impl FnMut(i64)) {
    loop {
        let now = word.load(SeqCst);
        if now == SETTLED {
            return;
        }
        let pages = now.min(MOST) as i64;
        charge(pages);
        if word.compare_exchange(now, SETTLED, SeqCst, SeqCst).is_ok() {
            return;
        }
        charge(-pages);
    }
}

/// Takes `pages`, which their owner has charged to itself or has no more, off what it borrows.
/// False: they were charged to it already.
fn take_off(word: &AtomicU64, pages: u64) -> bool {
    word.fetch_update(SeqCst, SeqCst, |now| {
        (now != SETTLED).then(|| now.saturating_sub(pages))
    })
    .is_ok()
}

/// What such a word says.
fn pages_of(word: &AtomicU64) -> u64 {
    match word.load(SeqCst) {
        SETTLED => 0,
        pages => pages.min(MOST),
    }
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
        let borrowed = [(&mine.borrowed, stored), (&mine.shared, resident)];
        mine.fork.store(fork, SeqCst);
        for (word, pages) in borrowed {
            word.store(pages.min(MOST), SeqCst);
        }
        mine.sponsor.store(word(sponsor), SeqCst);
        // Either this sees that the sponsor's line is being folded, or who folds it sees us.
        fence(SeqCst);
        if self.line(sponsor).is_some() {
            return true;
        }
        mine.sponsor.store(0, SeqCst);
        for (word, pages) in borrowed {
            // Who folds it may have charged this process already.
            if word.swap(0, SeqCst) == SETTLED {
                charge_to(mine)(-(pages.min(MOST) as i64));
            }
        }
        false
    }

    /// The process of `line` has forked, and had so many pages then: resident and stored ones, and
    /// those charged to it that only its other children have.
    pub fn note_lent(&self, line: LineId, pages: u64) {
        if let Some(line) = self.line(line) {
            line.lent.store(pages.min(MOST), SeqCst);
        }
    }

    /// Resident pages of a process that another pays for.
    pub(crate) fn shared_of(line: &Line) -> u64 {
        pages_of(&line.shared)
    }

    /// What a process has and another pays for, resident and stored.
    pub(crate) fn borrowed_of(&self, line: &Line) -> u64 {
        Group::shared_of(line) + pages_of(&line.borrowed)
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

    /// The process of `line` has given back `pages` of the store that it borrows. False: it was
    /// charged with them, and returns that.
    pub fn give_back(&self, line: LineId, pages: u64) -> bool {
        self.line(line).is_none_or(|l| take_off(&l.borrowed, pages))
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
        self.line(line).is_some_and(|l| {
            let is_first = l.borrowed.swap(SETTLED, SeqCst) != SETTLED;
            l.sponsor.store(0, SeqCst);
            is_first
        })
    }

    /// The process that pays for what the one of `line` borrows, if any.
    pub fn sponsor_of(&self, line: LineId) -> Option<LineId> {
        line_of(self.line(line)?.sponsor.load(SeqCst))
    }

    /// Pages at the charge of the process of `line` that do not come free when it ends, since a
    /// borrower has them too: as many at least as the one has that borrows most.
    pub fn lent_by(&self, line: LineId) -> u64 {
        let borrowers = self.borrowers(word(line));
        borrowers.map(|l| self.borrowed_of(l)).max().unwrap_or(0)
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

    /// What an estate is to be charged: nothing if one alone borrows from it.
    pub(crate) fn estate_of(&self, line: &Line) -> u64 {
        self.heirs_of(line).map_or(0, |(_, pages)| pages)
    }

    /// Who borrows from a line that is not live any more, as their sponsor's word, and what stays
    /// charged to it for them: 0 if it is one alone, or it is not known how much there was. `None`:
    /// nobody does.
    fn heirs_of(&self, line: &Line) -> Option<(u64, u64)> {
        // Either this sees who borrows from now on, or that one sees that the line is no more live.
        fence(SeqCst);
        let word = self.word_of(line)?;
        let (mut heirs, mut borrowed) = (0, 0);
        for other in self.borrowers(word) {
            heirs += 1;
            borrowed += self.borrowed_of(other);
        }
        let pages = match heirs {
            0 => return None,
            1 => 0,
            _ => borrowed.min(line.lent.load(SeqCst)).min(spent_of(line)),
        };
        Some((word, pages))
    }

    /// For a line that is being folded: what stays charged to it, since several borrow it. Else
    /// charges everybody who borrows from it.
    pub(crate) fn stop_sponsoring(&self, line: &Line) -> u64 {
        let Some((word, estate)) = self.heirs_of(line) else {
            return 0;
        };
        if estate == 0 {
            for other in self.borrowers(word) {
                settle(&other.shared, charge_to(other));
                settle(&other.borrowed, charge_to(other));
                // It may have stopped by itself.
                let _ = other.sponsor.compare_exchange(word, 0, SeqCst, SeqCst);
                news::tell(other);
            }
        }
        estate
    }

    fn word_of(&self, line: &Line) -> Option<u64> {
        let index = self.lines().iter().position(|l| core::ptr::eq(l, line))?;
        Some(word(LineId {
            index: index as u16,
            generation: line.generation.load(Relaxed),
        }))
    }
}

#[cfg(test)]
#[path = "../tests/unit/lend.rs"]
mod tests;
