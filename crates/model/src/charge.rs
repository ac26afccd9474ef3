//! An exact account of one group.

use deckle_mm::{Charge, OverLimit};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Who gives pages when a manager of the group has none left: returns whether anybody did.
type Elsewhere = Box<dyn Fn(u64) -> bool + Send + Sync>;
/// Who gives pages to a manager of whose evicted pages so many per cent come back.
type Colder = Box<dyn Fn(u64, u32) -> bool + Send + Sync>;

/// What the manager's own tables take, in pages.
type Tables = Box<dyn Fn() -> u64 + Send + Sync>;

/// What the account asks: the other managers of the group, and the tables.
#[derive(Default)]
struct Others {
    tables: OnceLock<Tables>,
    elsewhere: OnceLock<Elsewhere>,
    colder: OnceLock<Colder>,
}

#[derive(Default)]
struct Account {
    max: u64,
    high: u64,
    swap_max: u64,
    usage: u64,
    peak: u64,
    swap: u64,
    /// Pages charged for what only others hold.
    unbacked: u64,
    failures: u64,
    swap_failures: u64,
    /// Charges still to be let through before one is refused; `None` for no refusal.
    fail_after: Option<u64>,
    /// Pages that were returned without having been charged.
    underflow: u64,
    /// Calls that returned pages.
    uncharges: u64,
    /// Pages charged for tables.
    own: u64,
    /// Whether nobody else holds anything.
    alone: bool,
}

/// The group's account of the model: exact, limits may change at any time, the nth charge can
/// be made to fail. A handle: clones are the same account.
#[derive(Clone)]
pub struct ModelCharge(Arc<Mutex<Account>>, Arc<Others>);

impl ModelCharge {
    /// An account with `memory.max` in pages (`u64::MAX` for none), and no other limit.
    pub fn new(max: u64) -> ModelCharge {
        let account = Account {
            max,
            high: u64::MAX,
            swap_max: u64::MAX,
            ..Account::default()
        };
        ModelCharge(Arc::new(Mutex::new(account)), Arc::default())
    }
    /// An account without limits.
    pub fn unlimited() -> ModelCharge {
        ModelCharge::new(u64::MAX)
    }
    fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Sets `memory.max`, in pages. Usage may be above it then.
    pub fn set_max(&self, pages: u64) {
        self.lock().max = pages;
    }
    /// Sets `memory.high`, in pages.
    pub fn set_high(&self, pages: u64) {
        self.lock().high = pages;
    }
    /// Sets `memory.swap.max`, in pages.
    pub fn set_swap_max(&self, pages: u64) {
        self.lock().swap_max = pages;
    }
    /// Says whether nobody holds any more what a fork has shared ([`Charge::is_alone`]).
    pub fn set_alone(&self, alone: bool) {
        self.lock().alone = alone;
    }
    /// Refuses the `nth` charge (`try_charge`) from now on, 1 being the next; 0 none.
    pub fn fail_nth(&self, nth: u64) {
        self.lock().fail_after = nth.checked_sub(1);
    }
    /// Whom a manager asks that has reclaimed what it could: the other managers of the group. Only
    /// the first call has an effect.
    pub fn set_elsewhere(&self, ask: impl Fn(u64) -> bool + Send + Sync + 'static) {
        let _ = self.1.elsewhere.set(Box::new(ask));
    }
    /// Whom a manager asks, with that share in per cent, before it evicts what would come back.
    /// Only the first call has an effect.
    pub fn set_colder(&self, ask: impl Fn(u64, u32) -> bool + Send + Sync + 'static) {
        let _ = self.1.colder.set(Box::new(ask));
    }
    /// What the manager's own tables take, in pages: charged from now on, whenever the manager or
    /// the test says so ([`Charge::settle_tables`]). Only the first call has an effect.
    pub fn set_tables(&self, pages: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.1.tables.set(Box::new(pages));
    }
    /// Pages of swap charged now.
    pub fn swap_usage(&self) -> u64 {
        self.lock().swap
    }
    /// The most pages that were charged at once.
    pub fn peak(&self) -> u64 {
        self.lock().peak
    }
    /// Nobody else holds anything any more: what only others held is not charged from now on.
    /// Returns how much that was.
    pub fn others_are_gone(&self) -> u64 {
        let mut a = self.lock();
        let unbacked = std::mem::take(&mut a.unbacked);
        let (left, missing) = take(a.usage, unbacked);
        a.usage = left;
        a.underflow += missing;
        unbacked
    }
    /// Charges refused, injected refusals included.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }
    /// Swap charges refused.
    pub fn swap_failures(&self) -> u64 {
        self.lock().swap_failures
    }
    /// Pages that were returned without having been charged: 0 unless the core is wrong.
    pub fn underflow(&self) -> u64 {
        self.lock().underflow
    }
    /// Calls that returned pages.
    pub fn uncharges(&self) -> u64 {
        self.lock().uncharges
    }
}

impl Account {
    fn add(&mut self, pages: u64) {
        self.usage = self.usage.saturating_add(pages);
        self.peak = self.peak.max(self.usage);
    }
}

/// `from - pages`, and how much was missing.
fn take(from: u64, pages: u64) -> (u64, u64) {
    (from.saturating_sub(pages), pages.saturating_sub(from))
}

impl Charge for ModelCharge {
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit> {
        let mut a = self.lock();
        let injected = a.fail_after == Some(0);
        a.fail_after = a.fail_after.and_then(|n| n.checked_sub(1));
        if injected || a.usage.saturating_add(pages) > a.max {
            a.failures += 1;
            return Err(OverLimit {
                asked: pages,
                max: a.max,
                usage: a.usage,
            });
        }
        a.add(pages);
        Ok(())
    }
    fn force_charge(&self, pages: u64) {
        self.lock().add(pages);
    }
    fn uncharge(&self, pages: u64) {
        let mut a = self.lock();
        a.uncharges += 1;
        let (left, missing) = take(a.usage, pages);
        a.usage = left;
        a.underflow += missing;
    }
    /// As a parent does: it goes on paying for what its children hold.
    fn try_unshare(&self, pages: u64) -> Result<(), OverLimit> {
        self.try_charge(pages)?;
        self.lock().unbacked += pages;
        Ok(())
    }
    fn force_unshare(&self, pages: u64) {
        let mut a = self.lock();
        a.add(pages);
        a.unbacked += pages;
    }
    fn unbacked(&self) -> u64 {
        self.lock().unbacked
    }
    fn reclaim_elsewhere(&self, pages: u64) -> bool {
        let ask = self.1.elsewhere.get();
        ask.is_some_and(|ask| ask(pages))
    }
    fn reclaim_colder(&self, pages: u64, refaults: u32) -> bool {
        let ask = self.1.colder.get();
        ask.is_some_and(|ask| ask(pages, refaults))
    }
    fn is_alone(&self) -> bool {
        self.lock().alone
    }
    fn own(&self) -> u64 {
        self.lock().own
    }
    fn settle_tables(&self) -> u64 {
        let Some(tables) = self.1.tables.get() else {
            return 0;
        };
        let now = tables();
        let mut a = self.lock();
        let before = std::mem::replace(&mut a.own, now);
        a.usage = a.usage.saturating_sub(before);
        a.add(now);
        before.saturating_sub(now)
    }
    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit> {
        let mut a = self.lock();
        if a.swap.saturating_add(pages) > a.swap_max {
            a.swap_failures += 1;
            return Err(OverLimit {
                asked: pages,
                max: a.swap_max,
                usage: a.swap,
            });
        }
        a.swap += pages;
        Ok(())
    }
    fn uncharge_swap(&self, pages: u64) {
        let mut a = self.lock();
        let (left, missing) = take(a.swap, pages);
        a.swap = left;
        a.underflow += missing;
    }
    fn usage(&self) -> u64 {
        self.lock().usage
    }
    fn max(&self) -> u64 {
        self.lock().max
    }
    fn high(&self) -> u64 {
        self.lock().high
    }
}
