//! Accounts: one limit for one process, and a shared handle on any account.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deckle_mm::{Charge, OverLimit};

use crate::platform::Account;

/// One process's own limit.
pub struct Limit {
    max: u64,
    high: u64,
    swap_max: u64,
    usage: AtomicU64,
    peak: AtomicU64,
    swap: AtomicU64,
}

impl Limit {
    /// An account with `max`, `high` and `swap_max` in pages; `u64::MAX` for none.
    pub fn new(max: u64, high: u64, swap_max: u64) -> Limit {
        Limit {
            max,
            high,
            swap_max,
            usage: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            swap: AtomicU64::new(0),
        }
    }

    /// The largest usage there has been, in pages.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

fn take(count: &AtomicU64, pages: u64, max: u64) -> Result<u64, OverLimit> {
    count
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            n.checked_add(pages).filter(|n| *n <= max)
        })
        .map(|n| n + pages)
        .map_err(|usage| OverLimit {
            asked: pages,
            max,
            usage,
        })
}

fn give_back(count: &AtomicU64, pages: u64) {
    let before = count.fetch_sub(pages, Ordering::AcqRel);
    debug_assert!(before >= pages, "uncharged {pages} of {before} pages");
}

impl Charge for Limit {
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit> {
        let usage = take(&self.usage, pages, self.max)?;
        self.peak.fetch_max(usage, Ordering::Relaxed);
        Ok(())
    }
    fn force_charge(&self, pages: u64) {
        let before = self.usage.fetch_add(pages, Ordering::AcqRel);
        self.peak.fetch_max(before + pages, Ordering::Relaxed);
    }
    fn uncharge(&self, pages: u64) {
        give_back(&self.usage, pages);
    }
    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit> {
        take(&self.swap, pages, self.swap_max).map(drop)
    }
    fn uncharge_swap(&self, pages: u64) {
        give_back(&self.swap, pages);
    }
    fn usage(&self) -> u64 {
        self.usage.load(Ordering::Acquire)
    }
    fn max(&self) -> u64 {
        self.max
    }
    fn high(&self) -> u64 {
        self.high
    }
}

/// A handle on an account that the manager and the nursery share.
pub struct Shared<C>(pub Arc<C>);

impl<C: Charge> Charge for Shared<C> {
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit> {
        self.0.try_charge(pages)
    }
    fn force_charge(&self, pages: u64) {
        self.0.force_charge(pages);
    }
    fn uncharge(&self, pages: u64) {
        self.0.uncharge(pages);
    }
    fn try_unshare(&self, pages: u64) -> Result<(), OverLimit> {
        self.0.try_unshare(pages)
    }
    fn force_unshare(&self, pages: u64) {
        self.0.force_unshare(pages);
    }
    fn unbacked(&self) -> u64 {
        self.0.unbacked()
    }
    fn is_alone(&self) -> bool {
        self.0.is_alone()
    }
    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit> {
        self.0.try_charge_swap(pages)
    }
    fn uncharge_swap(&self, pages: u64) {
        self.0.uncharge_swap(pages);
    }
    fn reclaim_elsewhere(&self, pages: u64) -> bool {
        self.0.reclaim_elsewhere(pages)
    }
    fn reclaim_colder(&self, pages: u64, refaults: u32) -> bool {
        self.0.reclaim_colder(pages, refaults)
    }
    fn own(&self) -> u64 {
        self.0.own()
    }
    fn settle_tables(&self) -> u64 {
        self.0.settle_tables()
    }
    fn usage(&self) -> u64 {
        self.0.usage()
    }
    fn max(&self) -> u64 {
        self.0.max()
    }
    fn high(&self) -> u64 {
        self.0.high()
    }
}

/// Pages ahead of need are paid for only while they push nothing out.
impl<C: Charge> Account for Shared<C> {
    fn try_charge(&self, pages: u64) -> bool {
        let room = self.0.high().saturating_sub(self.0.usage());
        room > pages && self.0.try_charge(pages).is_ok()
    }
    fn uncharge(&self, pages: u64) {
        self.0.uncharge(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_past_the_limit_charges_nothing() {
        let limit = Limit::new(100, 90, 10);
        limit.try_charge(60).unwrap();
        let over = limit.try_charge(41).unwrap_err();
        assert_eq!((over.asked, over.max, over.usage), (41, 100, 60));
        limit.force_charge(50);
        limit.uncharge(100);
        assert_eq!((Charge::usage(&limit), limit.peak()), (10, 110));
        assert!(limit.try_charge(u64::MAX).is_err());
        assert!(limit.try_charge_swap(11).is_err());
        limit.try_charge_swap(10).unwrap();
        limit.uncharge_swap(10);
        let shared = Shared(Arc::new(limit));
        assert!(!Account::try_charge(&shared, 80), "would reach high");
        assert!(Account::try_charge(&shared, 79));
    }
}
