//! Direct and background reclaim.
//!
//! A round first closes what is open (`engine/open.rs`), since what of it was never touched costs
//! nobody anything, and frees tables of zeros (`zeros.rs`) if tables are large. It then runs the
//! shrinker over underused huge pages (cheap, and what it frees was never used), then takes folios
//! from the inactive list. Where no accessed bit can be read, the inactive list is kept stocked by
//! unmapping folios from the old end of the active one: what is touched before reclaim reaches it
//! comes back by a fault.

use crate::beyond::Beyond;
use crate::charge::Charge;
use crate::engine::folio::{AllocError, order_of};
use crate::engine::leaving::Leaving;
use crate::engine::lru::Which;
use crate::engine::pressure::Who;
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::reclaim::oom::OomReport;
use crate::stat::Item;
use crate::store::Store;
use crate::table::block::BlockState;
use crate::units::{BLOCK_ORDER, order_pages};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;

/// Pages that one round of reclaim is for, at least (SWAP_CLUSTER_MAX of Linux).
const CLUSTER: u64 = 32;
/// Folios that are unmapped in one go, while everybody else waits: some 100 microseconds. They are
/// evicted before the next are, so that nobody waits for several.
const CHUNK: u64 = 64;
/// Rounds without progress, while others hold isolated folios, before memory counts as out.
const PATIENCE: u32 = 256;
/// Rounds without progress, while nobody else is at work either, before memory counts as out.
const FRUITLESS: u32 = 8;
/// Copies in the store that are given back for each page that could not be had: each takes less
/// than a page.
const COPIES: u64 = 4;

/// Bytes of the store that are moved at once where nothing else can go.
const COMPACT: u64 = 256 << 10;

impl<E: Env> Mm<E> {
    /// Makes room after an allocation failed. `Ok`: try again. `Err`: memory is out.
    pub(crate) fn make_room(&self, failed: AllocError) -> Result<(), Box<OomReport>> {
        self.stats().add(Item::Allocstall, 1);
        let _stall = self.stall();
        let want = match failed {
            AllocError::Charge(over) => over.asked,
            AllocError::NoFrame { order } => order_pages(order) as u64,
        };
        let target = want.max(CLUSTER);
        if self.others_gave(target) {
            return Ok(());
        }
        let mut fruitless = 0;
        for _ in 0..PATIENCE {
            let seq = self.reclaim.rounds.load(Ordering::Acquire);
            let contended = self.folios.contended.load(Ordering::Relaxed);
            let open = self.stats().get(Item::NrOpen);
            // What another CPU's store grew by may hide what this round has freed, and another
            // CPU's round may have made the room: what counts is whether there is room now.
            if self.reclaim_round(target, Who::Direct) > 0 || self.has_room(&failed) {
                return Ok(());
            }
            // What was only kept to save work goes before anything is out.
            if self.shrink_copies(COPIES * target) > 0 {
                self.settle_store();
                continue;
            }
            // Not counted as patience: it ends with the store.
            while self.shrink_store().is_some() {
                if self.has_room(&failed) {
                    return Ok(());
                }
            }
            if (1..open).contains(&self.stats().get(Item::NrOpen)) {
                // The next round closes more.
                continue;
            }
            if self.stats().get(Item::NrIsolated) == 0 {
                // A folio whose block somebody has locked was passed over: it counts as soon
                // as that CPU has gone on.
                if self.folios.contended.load(Ordering::Relaxed) != contended {
                    self.machine().preempt(Site::ReclaimRound);
                    continue;
                }
                fruitless += 1;
                if fruitless == FRUITLESS {
                    if !self.offer_again() {
                        break;
                    }
                    fruitless = 0;
                }
                continue;
            }
            // Others are working on what is left: wait for one of them to get somewhere.
            self.machine().preempt(Site::ReclaimRound);
            self.machine().park(&self.reclaim.rounds, seq);
        }
        if self.forget_all_zeros(target) {
            return Ok(());
        }
        if self.tunables().oom_zero_drop && self.oom_drop_zeros(target) > 0 {
            return Ok(());
        }
        if self.charge().reclaim_elsewhere(target) {
            return Ok(());
        }
        self.stats().add(Item::OomKill, 1);
        Err(Box::new(self.oom_report(failed)))
    }

    /// Rounds of reclaim until now; wraps.
    pub fn reclaim_rounds(&self) -> u32 {
        self.reclaim.rounds.load(Ordering::Acquire)
    }

    /// Says that a round of reclaim ended.
    pub(super) fn reclaim_round_done(&self) {
        self.reclaim.rounds.fetch_add(1, Ordering::Release);
        self.machine().unpark(&self.reclaim.rounds, u32::MAX);
    }

    /// Moves what is stored together, or has it written to what is behind the store; the pages that
    /// this gave back, `None`: there is nothing to be gained any more.
    fn shrink_store(&self) -> Option<u64> {
        let grown = match self.store().compact(COMPACT) {
            0 => self.write_some()?,
            _ => self.settle_store(),
        };
        Some(grown.min(0).unsigned_abs())
    }

    /// Whether a charge that failed would succeed now.
    fn has_room(&self, failed: &AllocError) -> bool {
        match failed {
            AllocError::Charge(over) => {
                let after = self.charge().usage().saturating_add(over.asked);
                after <= self.charge().max()
            }
            AllocError::NoFrame { .. } => false,
        }
    }

    /// Reclaims about `pages` on somebody else's behalf; returns how many were freed.
    pub fn reclaim(&self, pages: u64) -> u64 {
        self.reclaim_round(pages, Who::Direct)
    }

    /// The same for who has run out of memory: if nothing goes, all is tried that is tried
    /// before this manager's own memory counts as out.
    pub fn reclaim_hard(&self, pages: u64) -> u64 {
        let mut freed = self.reclaim_round(pages, Who::Direct);
        while freed == 0
            && let Some(pages) = self.shrink_store()
        {
            freed = pages;
        }
        if freed == 0 && self.offer_again() {
            freed = self.reclaim_round(pages, Who::Direct);
        }
        if freed == 0 && self.forget_all_zeros(pages) {
            freed = 1;
        }
        if freed == 0 && self.tunables().oom_zero_drop {
            freed = self.oom_drop_zeros(pages);
        }
        freed
    }

    /// The same for who asks in good time: young huge pages sit out this round, and where there is
    /// no swap nothing is unmapped for it, since pages that hold something could not go anywhere.
    pub fn reclaim_gently(&self, pages: u64) -> u64 {
        self.reclaim_round(pages, Who::Request)
    }

    /// One round of background reclaim (kswapd's part); true: more is wanted and possible.
    pub fn reclaim_background(&self) -> bool {
        let over = self.charge().usage().saturating_sub(self.charge().high());
        if over == 0 {
            return false;
        }
        let target = over.clamp(CLUSTER, 1024);
        let freed = self.others_gave(target) || self.reclaim_round(target, Who::Kswapd) > 0;
        freed && self.charge().usage() > self.charge().high()
    }

    /// One round; returns the pages freed, less what the store grew by meanwhile.
    pub(super) fn reclaim_round(&self, target: u64, who: Who) -> u64 {
        let mut freed = self.close_some(target);
        if freed < target {
            freed += self.forget_some_zeros(target - freed);
        }
        if freed < target {
            freed += self.shrink_for(who, target - freed);
        }
        if self.trim_copies() > 0 {
            freed += self.settle_store().min(0).unsigned_abs();
        }
        let swap = self.can_swap();
        let anon = swap || self.tunables().beyond(Beyond::ReclaimWithoutSwap);
        // Without swap only zero pages and lazily freed ones can go. For who waits all are looked
        // at; else those that are unmapped already.
        let unmap = swap || who == Who::Direct;
        let (mut scanned, mut grown, mut leaving) = (0, 0, Leaving::default());
        // Pages looked at since the last one that was freed: when that is all that was
        // inactive, the ones after it are the same again.
        let mut barren = 0;
        if anon && freed < target {
            let inactive = self.lru_pages(Which::Inactive);
            let total = inactive + self.lru_pages(Which::Active);
            while freed < target && scanned < total {
                self.machine().stand_aside();
                let inactive = self.lru_pages(Which::Inactive);
                if !unmap && barren >= inactive {
                    break;
                }
                if unmap && (inactive < target || barren >= inactive) {
                    self.deactivate();
                    barren = 0;
                }
                let Some(folio) = self.isolate_tail(Which::Inactive) else {
                    break;
                };
                let pages = order_pages(order_of(self.meta(folio.pfn()))) as u64;
                scanned += pages;
                let got = self.reclaim_folio(folio, &mut leaving);
                barren = if got > 0 { 0 } else { barren + pages };
                freed += got;
                if leaving.is_due() {
                    self.let_go(&mut leaving);
                    grown += self.settle_store() + self.write_back();
                }
            }
            self.let_go(&mut leaving);
            grown += self.settle_store() + self.write_back();
        }
        let (scan, steal) = match who {
            Who::Direct | Who::Request => (Item::PgscanDirect, Item::PgstealDirect),
            Who::Kswapd => (Item::PgscanKswapd, Item::PgstealKswapd),
        };
        self.stats().add(scan, scanned);
        self.stats().add(steal, freed);
        self.reclaim_round_done();
        self.machine().preempt(Site::ReclaimRound);
        freed.saturating_sub(grown.max(0) as u64)
    }

    /// Unmaps about [`CHUNK`] pages from the old end of the active list. Where many folios must
    /// stay, others have their turn after so many that were looked at.
    fn deactivate(&self) {
        let (mut done, mut looked, mut folios) = (0, 0, 0);
        let limit = self.lru_pages(Which::Active);
        self.machine().quiet(true);
        while done < CHUNK && looked < limit {
            if folios == CHUNK {
                self.machine().quiet(false);
                self.machine().quiet(true);
                folios = 0;
            }
            let Some(folio) = self.isolate_tail(Which::Active) else {
                break;
            };
            let pfn = folio.pfn();
            let n = order_pages(order_of(self.meta(pfn))) as u64;
            (looked, folios) = (looked + n, folios + 1);
            if self.unmap_isolated(pfn) {
                self.meta(pfn).clear(Flags::ACTIVE);
                self.stats().add(Item::Pgdeactivate, n);
                done += n;
            }
            self.putback(folio);
        }
        self.machine().quiet(false);
    }

    /// Unmaps an isolated folio; false if it must stay.
    fn unmap_isolated(&self, pfn: crate::units::Pfn) -> bool {
        let meta = self.meta(pfn);
        if meta.has(Flags::REJECTED) {
            return false;
        }
        if meta.has(Flags::FORKED) {
            // It stays mapped: who reclaims it unmaps it everywhere at once.
            return true;
        }
        let order = order_of(meta);
        let Some((id, page)) = meta.owner() else {
            return false;
        };
        let Ok(space) = self.space(id) else {
            return false;
        };
        let block = space.block(self, page.block());
        let Some(mut state) = block.try_lock(self) else {
            self.folios.contended.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        match &mut *state {
            BlockState::Huge(h)
                if h.pfn == pfn && order == BLOCK_ORDER && !h.locked && !h.shared() =>
            {
                self.unmap_huge(&space, page.block(), h).is_ok()
            }
            BlockState::Table(table) => {
                let (i, mut any) = (page.index(), false);
                for k in 0..order_pages(order) {
                    if table.get(i + k).frame() != Some(pfn.add(k)) {
                        continue;
                    }
                    any = true;
                }
                if any {
                    self.unmap_entries(&space, page.block(), table, i, order_pages(order));
                }
                any && (0..order_pages(order)).all(|k| {
                    !matches!(
                        table.get(i + k).kind(),
                        crate::table::entry::Kind::Mapped(_)
                    )
                })
            }
            _ => false,
        }
    }
}
