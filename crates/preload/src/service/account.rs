//! The group's account as the manager of this process sees it, and where its pages go.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use core::time::Duration;
use deckle_group::{Answer, Group, GroupCharge, LineId, SwapKind};
use deckle_mm::{Charge, OverLimit, Slot, Store, StoreError};
use deckle_store::{Algorithm, Disabled, Ram};

/// How long a process that was asked for memory may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The same where the asker can help itself.
const SHORT_TIME: Duration = Duration::from_millis(100);
/// How many times such a process is not asked again after it was late.
const PENALTY: u32 = 256;

/// The account. A child of fork gets another line: hence the indirection.
pub struct Account {
    group: Group,
    /// The charge in use; never freed, because a load of it takes no lock.
    charge: core::sync::atomic::AtomicPtr<GroupCharge>,
    /// Pages of our own metadata that are charged.
    own: AtomicU64,
    /// Pages of the store that were borrowed from the parent at a fork; 0: nothing is.
    borrowed: AtomicU64,
    /// Whether children may share parts of the store.
    lending: AtomicBool,
    /// How many times nobody is asked to give instead of us: the last one was late.
    unasked: AtomicU32,
}

impl Account {
    /// Charges go to `line`.
    pub fn new(group: Group, line: LineId) -> Account {
        Account {
            group,
            charge: core::sync::atomic::AtomicPtr::new(leak(group, line)),
            own: AtomicU64::new(0),
            borrowed: AtomicU64::new(0),
            lending: AtomicBool::new(false),
            unasked: AtomicU32::new(0),
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

    /// In a child: `sponsor` pays for `pages` of the store that are shared with it. False: it
    /// is gone.
    pub fn borrow_from(&self, line: LineId, sponsor: LineId, pages: u64) -> bool {
        let granted = self.group.borrow_from(line, sponsor, pages);
        self.borrowed
            .store(if granted { pages } else { 0 }, Relaxed);
        self.lending.store(false, Relaxed);
        granted
    }

    /// Pays for what is borrowed, if its lender is gone or `now`.
    pub fn stop_borrowing(&self, mm: &super::Manager, now: bool) {
        if self.borrowed.load(Relaxed) == 0 || !now && self.group.is_sponsored(self.line()) {
            return;
        }
        let pages = self.borrowed.swap(0, Relaxed);
        mm.store().own();
        mm.settle_store();
        if pages > 0 && !self.group.stop_borrowing(self.line()) {
            // Whoever returned the lender's charge has charged all of it.
            self.charge().uncharge(pages);
        }
    }

    /// Before a fork: the child will share the store, at this process's charge.
    pub fn lend(&self, mm: &super::Manager) {
        self.stop_borrowing(mm, true);
        mm.store().lend();
        self.lending.store(true, Relaxed);
    }

    /// Whether children may share parts of the store.
    pub fn is_lending(&self) -> bool {
        self.lending.load(Relaxed)
    }

    /// Stops paying for what only children had, when there are none any more. True if that
    /// has returned pages.
    pub fn stop_lending(&self, mm: &super::Manager) -> bool {
        if !self.is_lending() {
            return false;
        }
        self.group.fold_stale();
        if self.group.has_borrowers(self.line()) {
            return false;
        }
        self.lending.store(false, Relaxed);
        mm.store().unlend();
        mm.settle_store() < 0
    }

    /// Brings the charge of our own metadata, `pages` now, up to date.
    pub fn settle_own(&self, pages: u64) {
        let before = self.own.swap(pages, Relaxed);
        if pages > before {
            self.charge().force_charge(pages - before);
        } else {
            self.charge().uncharge(before - pages);
        }
    }
}

fn leak(group: Group, line: LineId) -> *mut GroupCharge {
    Box::into_raw(Box::new(GroupCharge::new(group, line)))
}

impl Charge for Account {
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit> {
        self.charge().try_charge(pages)
    }
    fn force_charge(&self, pages: u64) {
        self.charge().force_charge(pages);
    }
    fn uncharge(&self, pages: u64) {
        self.charge().uncharge(pages);
    }
    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit> {
        self.charge().try_charge_swap(pages)
    }
    fn uncharge_swap(&self, pages: u64) {
        self.charge().uncharge_swap(pages);
    }
    fn usage(&self) -> u64 {
        self.charge().usage()
    }
    fn max(&self) -> u64 {
        self.charge().max()
    }
    fn high(&self) -> u64 {
        self.charge().high()
    }

    /// Asks the others, the one with most to give first, until one gives something.
    fn reclaim_elsewhere(&self, pages: u64) -> bool {
        if self.group.fold_stale() > 0 {
            return true;
        }
        let mut asked = [0_u64; 4];
        while let Some(donor) = self.group.choose_donor(self.line(), &asked) {
            let index = usize::from(donor.line.index());
            asked[index / 64 % 4] |= 1 << (index % 64);
            let Some(ring) = self.group.ask(donor.line, pages) else {
                continue;
            };
            let deadline = deckle_group::sys::now() + ANSWER_TIME;
            match self.group.wait_answer(ring, deadline) {
                Answer::Freed(0) | Answer::Late => {}
                Answer::Freed(_) => return true,
                Answer::Gone => return self.group.fold_stale() > 0,
            }
        }
        false
    }

    fn reclaim_colder(&self, pages: u64, refaults: u32) -> bool {
        let tick = |n: u32| n.checked_sub(1);
        if self.unasked.fetch_update(Relaxed, Relaxed, tick).is_ok() {
            return false;
        }
        let donor = self.group.choose_colder(self.line(), refaults);
        let Some(ring) = donor.and_then(|d| self.group.ask(d.line, pages)) else {
            return false;
        };
        let deadline = deckle_group::sys::now() + SHORT_TIME;
        match self.group.wait_answer(ring, deadline) {
            Answer::Freed(pages) => pages > 0,
            Answer::Gone => self.group.fold_stale() > 0,
            Answer::Late => {
                self.unasked.store(PENALTY, Relaxed);
                false
            }
        }
    }
}

/// Where swapped pages go: what the group says.
pub enum Swap {
    /// Nowhere.
    Off(Disabled),
    /// Compressed RAM.
    Ram(Ram),
}

impl Swap {
    /// The store of this kind.
    pub fn new(kind: SwapKind) -> Swap {
        match kind {
            SwapKind::None => Swap::Off(Disabled),
            SwapKind::Lz4 => Swap::Ram(Ram::new(Algorithm::Lz4)),
            SwapKind::Zstd => Swap::Ram(Ram::new(Algorithm::Zstd(3))),
        }
    }

    fn inner(&self) -> &dyn Store {
        match self {
            Swap::Off(store) => store,
            Swap::Ram(store) => store,
        }
    }

    /// Bytes of compressed data.
    pub fn live_bytes(&self) -> u64 {
        match self {
            Swap::Off(_) => 0,
            Swap::Ram(store) => store.counts().live_bytes,
        }
    }

    /// See [`Ram::lend`].
    pub fn lend(&self) {
        if let Swap::Ram(store) = self {
            store.lend();
        }
    }

    /// See [`Ram::unlend`].
    pub fn unlend(&self) {
        if let Swap::Ram(store) = self {
            store.unlend();
        }
    }

    /// See [`Ram::borrow_lent`].
    pub fn borrow_lent(&self) -> u64 {
        match self {
            Swap::Off(_) => 0,
            Swap::Ram(store) => store.borrow_lent(),
        }
    }

    /// See [`Ram::own`].
    pub fn own(&self) {
        if let Swap::Ram(store) = self {
            store.own();
        }
    }

    /// Gives back what compaction can win.
    pub fn compact(&self) {
        if let Swap::Ram(store) = self {
            store.compact(1 << 20);
        }
    }
}

impl Store for Swap {
    fn accepts(&self) -> bool {
        self.inner().accepts()
    }
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        self.inner().put(first, pages)
    }
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        self.inner().get(first, pages)
    }
    fn free(&self, first: Slot, count: u32) {
        self.inner().free(first, count);
    }
    fn ram_bytes(&self) -> u64 {
        self.inner().ram_bytes()
    }
    fn charged_bytes(&self) -> u64 {
        self.inner().charged_bytes()
    }
    fn stored_pages(&self) -> u64 {
        self.inner().stored_pages()
    }
}
