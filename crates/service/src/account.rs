//! The group's account as the manager of this process sees it.

use crate::process::{self, Manager};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64};
use core::time::Duration;
use deckle_group::{Answer, Asked, Given, Group, GroupCharge, LineId};
use deckle_mm::units::bytes_to_pages;
use deckle_mm::{Charge, Item, OverLimit};
use deckle_store::Ram;

/// How long processes that were asked for memory may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The same where the asker can help itself.
const SHORT_TIME: Duration = Duration::from_millis(100);
/// How many times such a process is not asked again after it was late.
const PENALTY: u32 = 256;

/// How many times nobody is asked to give instead of us after all had nothing.
const PAUSE: u32 = 16;

/// Least pages that are reclaimed at once for another process, or of what is shared.
pub const DONATION: u64 = 1024;

/// What the pages that are marked as shared since a fork mean to the account.
mod role {
    /// Nothing: they are charged here like any other.
    pub const NONE: u8 = 0;
    /// They are charged here, and stay so when this process has pages of its own in their place
    /// or none at all: children hold them.
    pub const SPONSOR: u8 = 1;
    /// The parent pays for them.
    pub const BORROWER: u8 = 2;
}

/// The account. A child of fork gets another line: hence the indirection.
pub struct Account {
    group: Group,
    /// The charge in use; never freed, because a load of it takes no lock.
    charge: AtomicPtr<GroupCharge>,
    /// Pages of our own metadata that are charged.
    own: AtomicU64,
    /// Pages that are charged ahead of the charge that tells what they are.
    ahead: AtomicU64,
    /// Of our own the pages that the parent is charged for: neither side has written them since the
    /// fork.
    inherited: AtomicU64,
    /// These, and pages of the store that are borrowed from the parent since a fork; 0: nothing is.
    borrowed: AtomicU64,
    /// Whether children may share parts of the store.
    lending: AtomicBool,
    /// Number of the last fork; in its child of that.
    forks: AtomicU64,
    /// How many times nobody is asked to give instead of us: the last one was late.
    unasked: AtomicU32,
    /// See [`role`].
    role: AtomicU8,
    /// Pages charged here that only children hold, at most.
    ghost: AtomicU64,
    given: Given,
}

impl Account {
    /// Charges go to `line`.
    pub fn new(group: Group, line: LineId) -> Account {
        Account {
            group,
            charge: AtomicPtr::new(leak(group, line)),
            own: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            inherited: AtomicU64::new(0),
            borrowed: AtomicU64::new(0),
            lending: AtomicBool::new(false),
            forks: AtomicU64::new(0),
            unasked: AtomicU32::new(0),
            role: AtomicU8::new(role::NONE),
            ghost: AtomicU64::new(0),
            given: Given::default(),
        }
    }

    fn charge(&self) -> &GroupCharge {
        // SAFETY: always a leaked value.
        unsafe { &*self.charge.load(Acquire) }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The line.
    pub fn line(&self) -> LineId {
        self.charge().line()
    }

    /// Charges go to `line` from now on, beginning with `pages` that are there already and
    /// `swapped` pages in the store. Our own metadata is charged anew.
    pub fn move_to(&self, line: LineId, pages: u64, swapped: u64) {
        self.charge.store(leak(self.group, line), Release);
        self.own.store(0, Relaxed);
        self.charge().force_charge(pages);
        self.charge().force_charge_swap(swapped);
    }

    /// In a child: `sponsor` pays for what is shared with it, of the store, of the manager's
    /// tables, which are `tables` pages at most, and of what is resident. If it is gone, nothing
    /// counts as shared.
    pub fn borrow_from(&self, line: LineId, sponsor: LineId, mm: &Manager, tables: u64) {
        let stored = bytes_to_pages(mm.store().ram(Ram::borrow_lent)) + tables;
        let resident = mm.stats().get(Item::NrShared);
        self.ghost.store(0, Relaxed);
        self.given.reset();
        self.lending.store(false, Relaxed);
        let lender = (sponsor, self.forks.load(Relaxed));
        let granted = self.group.borrow_from(line, lender, (stored, resident));
        if granted {
            self.inherited.store(tables, Relaxed);
            self.borrowed.store(stored, Relaxed);
            self.role.store(role::BORROWER, Release);
        } else {
            self.inherited.store(0, Relaxed);
            self.borrowed.store(0, Relaxed);
            self.role.store(role::NONE, Release);
            mm.store().ram(Ram::own);
            mm.unshare_all();
        }
    }

    /// Whether a parent pays for what is shared with it.
    pub fn is_borrowing(&self) -> bool {
        self.role.load(Acquire) == role::BORROWER
    }

    /// Resident pages that a parent pays for.
    pub fn borrows_resident(&self, mm: &Manager) -> u64 {
        match self.is_borrowing() {
            true => mm.stats().get(Item::NrShared),
            false => 0,
        }
    }

    /// The same, and what is borrowed of the store and of the tables.
    pub fn borrows(&self, mm: &Manager) -> u64 {
        self.borrows_resident(mm) + self.borrowed.load(Relaxed)
    }

    /// Pays for what is borrowed, if nobody else does any more or `now`; else tells what of the
    /// store and of the tables is borrowed still.
    pub fn stop_borrowing(&self, mm: &Manager, now: bool) {
        if !self.is_borrowing() {
            return;
        }
        if !now && self.group.is_sponsored(self.line()) {
            return self.give_back(mm);
        }
        self.group.settle_shared(self.line());
        let pages = self.borrowed.swap(0, Relaxed);
        mm.store().ram(Ram::own);
        mm.settle_store();
        let tables = self.inherited.swap(0, AcqRel);
        self.own.fetch_add(tables, Relaxed);
        self.charge().force_charge(tables);
        if !self.group.stop_borrowing(self.line()) && pages > 0 {
            // Whoever returned the lender's charge has charged all of it.
            self.charge().uncharge(pages);
        }
        mm.unshare_all();
        self.role.store(role::NONE, Release);
    }

    fn give_back(&self, mm: &Manager) {
        let before = self.borrowed.load(Relaxed);
        let tables = self.inherited.load(Acquire);
        let now = bytes_to_pages(mm.store().ram(Ram::borrowed)) + tables;
        if now < before {
            self.borrowed.store(now, Relaxed);
            if !self.group.give_back(self.line(), before - now) {
                // Whoever returned the lender's charge has charged it.
                self.charge().uncharge(before - now);
            }
        }
    }

    /// Before a fork: the child will share the store and what is resident, at this process's
    /// charge.
    pub fn lend(&self, mm: &Manager) {
        debug_assert!(!self.is_borrowing(), "paid for before a fork");
        if !self.has_borrowers() {
            self.given.reset();
        }
        self.forks.store(mm.store().ram(Ram::lend), Relaxed);
        self.lending.store(true, Relaxed);
        self.role.store(role::SPONSOR, Release);
    }

    /// The same, when all is marked that will be shared: says how much it is at most, with so many
    /// pages of tables.
    pub fn note_lent(&self, mm: &Manager, tables: u64) {
        let stored = bytes_to_pages(deckle_mm::Store::charged_bytes(mm.store()));
        let resident = mm.stats().get(Item::NrShared) + self.ghost.load(Acquire);
        let pages = resident + stored + tables;
        self.group.note_lent(self.line(), pages);
    }

    /// Stops paying for what only children had, as far as there are none any more who have it.
    /// True if that has returned pages, or made some reclaimable.
    pub fn stop_lending(&self, mm: &Manager) -> bool {
        if !self.lending.load(Relaxed) {
            return false;
        }
        // Who has ended has left: if not by itself, `deckle run` has seen it.
        let left = self.group.shared_with(self.line());
        let mut better = left == 0 && mm.stats().get(Item::NrShared) > 0;
        if better {
            // They can be reclaimed again.
            mm.unshare_all();
        }
        // A page that only children hold counts with at least one of them, so the rest was
        // charged in vain: they have written or given back what this process had left to them.
        let more = |ghost: u64| (ghost > left).then_some(left);
        let before = self.ghost.fetch_update(AcqRel, Acquire, more);
        let vain = before.map_or(0, |ghost| ghost - left);
        self.group.note_unbacked(self.line(), -(vain as i64));
        self.charge().uncharge(vain);
        better |= vain > 0;
        let oldest = self.group.oldest_borrower(self.line());
        self.lending.store(oldest.is_some(), Relaxed);
        mm.store().ram(|ram| ram.unlend(oldest));
        if oldest.is_none() {
            mm.leave_family();
        }
        mm.settle_store() < 0 || better
    }

    /// Whether children live that share what is charged here.
    pub fn has_borrowers(&self) -> bool {
        self.lending.load(Relaxed) && self.group.oldest_borrower(self.line()).is_some()
    }

    /// Number of the last fork; in its child of that.
    pub fn forks(&self) -> u64 {
        self.forks.load(Relaxed)
    }

    /// Uses places in this process's file anew that nobody else can read any more.
    pub fn stop_lending_file(&self, mm: &Manager) {
        mm.store().ram(|ram| {
            if ram.lends_file() {
                ram.unlend_file(self.group.file_holders(self.line()));
            }
        });
    }

    /// Whether nobody tells what this process waits for: that children have less of what it pays
    /// for, or of its file.
    pub fn has_to_look(&self, mm: &Manager) -> bool {
        self.ghost.load(Relaxed) > 0 || mm.store().ram(|ram| ram.lends_file())
    }

    /// What it has given up of what it shares.
    pub fn given(&self) -> &Given {
        &self.given
    }

    /// Pages of our own metadata that are charged.
    pub fn own(&self) -> u64 {
        self.own.load(Relaxed)
    }

    /// Brings the charge of our own metadata up to date: `pages` of it now, of which other
    /// processes have `shared` too.
    pub fn settle_own(&self, pages: u64, shared: u64) {
        let pages = pages - self.inherited.fetch_min(shared, AcqRel).min(shared);
        let before = self.own.swap(pages, Relaxed);
        if pages > before {
            self.charge().force_charge(pages - before);
        } else {
            self.charge().uncharge(before - pages);
        }
    }

    /// Of what is charged as our own these pages are about to be charged as memory of the
    /// program's. Usage is the same all the time: else a lowered limit might seem to be held.
    pub fn charge_ahead(&self, pages: u64) {
        let less = |own: u64| Some(own.saturating_sub(pages));
        let own = self.own.fetch_update(Relaxed, Relaxed, less);
        let taken = own.unwrap_or_else(|own| own).min(pages);
        self.ahead.fetch_add(taken, Relaxed);
    }

    /// That is done: what was not charged so is uncharged.
    pub fn end_ahead(&self) {
        self.charge().uncharge(self.ahead.swap(0, Relaxed));
    }

    /// The role, unless nothing is shared for the account, or all of it was charged to this process
    /// since its parent has ended.
    fn shares(&self) -> Option<u8> {
        let role = self.role.load(Acquire);
        let has_paid = || role == role::BORROWER && self.group.is_settled(self.line());
        (role != role::NONE && !has_paid()).then_some(role)
    }

    /// Says that `pages`, which are charged here now, are shared no more.
    fn unshared(&self, role: u8, pages: u64) {
        if role == role::SPONSOR {
            self.ghost.fetch_add(pages, AcqRel);
            self.group.note_unbacked(self.line(), pages as i64);
        } else if !self.group.take_over(self.line(), pages) {
            // Whoever returned the parent's charge was faster.
            self.charge().uncharge(pages);
        }
    }
}

fn leak(group: Group, line: LineId) -> *mut GroupCharge {
    Box::into_raw(Box::new(GroupCharge::new(group, line)))
}

/// Functions of a trait that another value of it answers.
macro_rules! forward {
    ($to:ident: $($name:ident($($arg:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self, $($arg: $kind),*) $(-> $result)? {
            self.$to().$name($($arg),*)
        }
    )*};
}
pub(crate) use forward;

impl Charge for Account {
    forward! {
        charge:
        try_charge(pages: u64) -> Result<(), OverLimit>;
        uncharge(pages: u64);
        try_charge_swap(pages: u64) -> Result<(), OverLimit>;
        uncharge_swap(pages: u64);
        usage() -> u64;
        max() -> u64;
        high() -> u64;
    }

    fn force_charge(&self, pages: u64) {
        let less = |ahead: u64| Some(ahead.saturating_sub(pages));
        let ahead = self.ahead.fetch_update(Relaxed, Relaxed, less);
        let charged = ahead.unwrap_or_else(|ahead| ahead).min(pages);
        self.charge().force_charge(pages - charged);
    }

    fn try_unshare(&self, pages: u64) -> Result<(), OverLimit> {
        if let Some(role) = self.shares() {
            self.charge().try_charge(pages)?;
            self.unshared(role, pages);
        }
        Ok(())
    }
    fn force_unshare(&self, pages: u64) {
        if let Some(role) = self.shares() {
            self.charge().force_charge(pages);
            self.unshared(role, pages);
        }
    }
    fn unbacked(&self) -> u64 {
        self.ghost.load(Acquire)
    }
    fn is_alone(&self) -> bool {
        if self.is_borrowing() || !self.lending.load(Relaxed) {
            return false;
        }
        self.group.fold_stale();
        self.group.oldest_borrower(self.line()).is_none()
    }

    fn own(&self) -> u64 {
        self.own.load(Relaxed)
    }
    fn settle_tables(&self) -> u64 {
        let before = self.own();
        if let Some(process) = process::process() {
            process.settle_tables();
        }
        before.saturating_sub(self.own())
    }

    /// Asks the others, the one with most to give first, until one gives something. Twice: what a
    /// child has given up since its parent was asked is the parent's to give now.
    fn reclaim_elsewhere(&self, pages: u64) -> bool {
        let folded = self.group.fold_stale() > 0;
        let mm = process::process().map(|p| p.pager.mm());
        if mm.is_some_and(|mm| self.stop_lending(mm)) || folded {
            return true;
        }
        let (mut asked, mut again) = (Asked::default(), true);
        loop {
            let Some(donor) = self.group.choose_donor(self.line(), &mut asked) else {
                if !core::mem::take(&mut again) {
                    break;
                }
                asked = Asked::default();
                continue;
            };
            let Some(ring) = self.group.ask_last(donor.line, pages) else {
                continue;
            };
            let mut answer = self.group.wait_answer(ring, ANSWER_TIME);
            if answer == Answer::Late {
                // It may be stopped, and others as well: those are waited for once, together.
                // Not before: who reclaims at the limit all at once may find no room for its store.
                self.group.note_late(ring);
                answer = self.group.ask_all(self.line(), pages, ANSWER_TIME);
            }
            match answer {
                Answer::Freed(0) | Answer::Late => {}
                Answer::Freed(_) => return true,
                Answer::Gone => {
                    // If not here, somebody else has returned its charge.
                    self.group.fold_stale();
                    return true;
                }
            }
        }
        // What was shared when this process looked for something to reclaim may be its own now.
        mm.is_some_and(|mm| {
            self.give_up_shared(mm, pages.max(DONATION)) > 0 || mm.reclaim(pages) > 0
        })
    }

    fn reclaim_colder(&self, pages: u64, refaults: u32) -> bool {
        let mm = process::process().map(|p| p.pager.mm());
        // What only children had that have ended is older than what comes back.
        if mm.is_some_and(|mm| mm.is_crowded() && self.stop_lending(mm)) {
            return true;
        }
        if refaults >= deckle_group::THRASHING && mm.is_some_and(|mm| self.relent(mm, pages) > 0) {
            return true;
        }
        let tick = |n: u32| n.checked_sub(1);
        if self.unasked.fetch_update(Relaxed, Relaxed, tick).is_ok() {
            return false;
        }
        let mut asked = Asked::default();
        while let Some(donor) = self.group.choose_colder(self.line(), refaults, &mut asked) {
            let Some(ring) = self.group.ask(donor.line, pages) else {
                continue;
            };
            match self.group.wait_answer(ring, SHORT_TIME) {
                Answer::Freed(0) => {}
                Answer::Freed(_) => return true,
                Answer::Gone => return self.group.fold_stale() > 0,
                Answer::Late => {
                    self.unasked.store(PENALTY, Relaxed);
                    return false;
                }
            }
        }
        self.unasked.store(PAUSE, Relaxed);
        false
    }
}
