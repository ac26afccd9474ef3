//! Giving up pages that this process shares since a fork; `deckle_group::Given` says when it
//! pays.

use crate::account::{Account, DONATION};
use crate::process::Manager;
use deckle_mm::{GivenUp, Item, PAGE_SIZE};
use deckle_store::Ram;

/// Pages of the first step after the sample; each next one is twice as large.
const FIRST_STEP: u64 = 64;

impl Account {
    /// A borrower that has nothing else to reclaim stores about `pages` of what it shares and
    /// drops them, if that pays. Its parent's can be reclaimed when nothing is shared any more.
    /// Returns how many pages it shares less.
    pub fn give_up_shared(&self, mm: &Manager, pages: u64) -> u64 {
        let beside = || self.group().shared_beside(self.line());
        match self.give_up(mm, pages, || self.is_borrowing().then(beside)) {
            (done, true) => done + self.take_over_rest(mm),
            (done, false) => done,
        }
    }

    /// The same of a parent before it forks again, so that the next child shares less: what is
    /// stored before the fork is stored once for both.
    pub fn give_up_lent(&self, mm: &Manager, pages: u64) -> u64 {
        let (done, _) = self.give_up(mm, pages, || Some(self.group().shared_with(self.line())));
        done
    }

    /// `all`: how many pages are shared, counted for each process that has them; `None`: nothing
    /// is. How many are given up, and whether no more can be.
    fn give_up(&self, mm: &Manager, pages: u64, all: impl Fn() -> Option<u64>) -> (u64, bool) {
        let (mut done, mut step) = (0, FIRST_STEP);
        if pages > 0 && all().is_some() && self.given().is_new() {
            done += self.note_given(mm, |mm| mm.reclaim_shared_sample());
        }
        while done < pages
            && let Some(all) = all()
            && self.pays_to_give(mm, all)
        {
            let n = step.min(pages - done).max(FIRST_STEP);
            match self.note_given(mm, |mm| mm.reclaim_shared(n)) {
                0 => return (done, true),
                given => done += given,
            }
            step *= 2;
        }
        (done, false)
    }

    /// Whether it pays to give up what is shared; `all` as in [`give_up`](Self::give_up).
    pub fn pays_to_give(&self, mm: &Manager, all: u64) -> bool {
        let shared = mm.stats().get(Item::NrShared);
        // What goes on to a file takes no memory.
        let filed = || self.group().has_file_room(all * PAGE_SIZE as u64);
        shared > 0 && (filed() || self.given().pays(shared, all))
    }

    /// The same before memory is out, for a process that would go on reading back what it has
    /// just evicted: where most of what it has resident is shared. Once it has begun it goes on
    /// to the end.
    pub fn relent(&self, mm: &Manager, pages: u64) -> u64 {
        match mm.is_crowded() || self.given().has_begun() {
            true => self.give_up_shared(mm, pages.max(DONATION)),
            false => 0,
        }
    }

    /// Does it, and notes what the pages take; how many were given up.
    fn note_given(&self, mm: &Manager, give: impl FnOnce(&Manager) -> GivenUp) -> u64 {
        let before = held(mm);
        let done = give(mm);
        let all = held(mm);
        // Other tasks of this process store pages and read some back at the same time: so only
        // how much a page takes is told by what the store has grown by.
        let grown = (all.0.checked_sub(before.0), all.1.checked_sub(before.1));
        let (bytes, n) = match grown {
            (Some(bytes), Some(n)) if 2 * n >= done.stored && n > 0 => (bytes, n),
            _ => (all.0, all.1.max(1)),
        };
        let taken = u128::from(bytes) * u128::from(done.stored) / u128::from(n);
        self.given().add(done.pages(), taken as u64, done.refused);
        done.pages()
    }

    /// What is left the store has refused, or it is locked. If it is little this process is
    /// charged with it: one page that is shared keeps all of the parent's resident.
    fn take_over_rest(&self, mm: &Manager) -> u64 {
        let rest = mm.stats().get(Item::NrShared);
        match self.given().may_take_over(rest) {
            true => mm.take_over_shared(),
            false => 0,
        }
    }
}

/// Bytes of the store in RAM, and pages.
fn held(mm: &Manager) -> (u64, u64) {
    let c = mm.store().ram(Ram::counts);
    let pages = c.same_pages + c.sparse_pages + c.block_pages;
    (c.live_bytes, pages)
}
