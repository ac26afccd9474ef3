//! The group's account (memcg): what may be used, what is used.

use core::fmt;

/// A charge that would pass the limit; nothing was charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverLimit {
    /// Pages that were asked for.
    pub asked: u64,
    /// `memory.max` in pages.
    pub max: u64,
    /// Usage of the group in pages at that moment.
    pub usage: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverLimit { asked, max, usage } = self;
        write!(
            f,
            "charge of {asked} pages: usage {usage} of {max} pages (memory.max)"
        )
    }
}

/// The account of one group, which several managers (processes) may share.
///
/// All amounts are pages. Operations never block and may be called with any lock held.
/// Usage counts what is mapped, inactive, parked ahead of need, stored and spent on metadata.
pub trait Charge: Send + Sync {
    /// Charges `pages`, or nothing at all if usage would pass `memory.max`.
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit>;
    /// Charges `pages` even past `memory.max`: for pages that are about to replace a larger
    /// number of charged ones, and for a store that just grew. Use sparingly.
    fn force_charge(&self, pages: u64);
    /// Returns `pages` that were charged.
    fn uncharge(&self, pages: u64);
    /// Charges `pages` that were shared since a fork and are about to become this manager's
    /// own by a write; the others keep what was shared. Refused as `try_charge`.
    fn try_unshare(&self, pages: u64) -> Result<(), OverLimit> {
        self.try_charge(pages)
    }
    /// The same past the limit: for shared pages that are written already, or that this
    /// manager is about to give back (it returns their charge next, the others keep them).
    fn force_unshare(&self, pages: u64) {
        self.force_charge(pages);
    }
    /// Pages charged here that only others hold, since this manager has unshared them.
    fn unbacked(&self) -> u64 {
        0
    }
    /// Whether nobody holds any more what this manager has shared by forks, as far as can be seen
    /// now: then a write need not take a shared huge page apart. Asked before that alone.
    fn is_alone(&self) -> bool {
        false
    }
    /// Charges `pages` of swap, or nothing if it would pass `memory.swap.max`.
    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit>;
    /// Returns `pages` of swap.
    fn uncharge_swap(&self, pages: u64);
    /// The caller has reclaimed what it could and needs `pages` more: gets them from other
    /// managers of the group, and waits for it. False: nobody had any. No lock is held.
    fn reclaim_elsewhere(&self, pages: u64) -> bool {
        let _ = pages;
        false
    }
    /// Of what this manager evicts, `refaults` per cent come back: gets pages from another
    /// manager of the group of whose pages fewer come back, if there is one, and waits for it.
    /// False: there is none, or it had nothing. No lock is held.
    fn reclaim_colder(&self, pages: u64, refaults: u32) -> bool {
        let _ = (pages, refaults);
        false
    }
    /// Pages charged for the manager's own tables.
    fn own(&self) -> u64 {
        0
    }
    /// Tables were freed: brings their charge up to date; returns by how many pages it fell. No
    /// lock is held.
    fn settle_tables(&self) -> u64 {
        0
    }
    /// What the whole group uses now (may lag by the per-CPU batches).
    fn usage(&self) -> u64;
    /// `memory.max`; `u64::MAX` for none.
    fn max(&self) -> u64;
    /// `memory.high`; `u64::MAX` for none.
    fn high(&self) -> u64;
}
