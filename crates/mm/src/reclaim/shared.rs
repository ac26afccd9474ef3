//! Reclaim of pages that a fork has shared, by a process that is not charged for them.
//!
//! Such pages are stored from where they are mapped, under write-protection, and then the
//! process drops its mapping. Nothing is copied or charged before it is stored, so pages that
//! the store refuses cost nothing: they stay shared, and are not offered again.

use crate::engine::busy::Busy;
use crate::engine::lru::Which;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::scratch::PORTION;
use crate::stat::Item;
use crate::store::{Store, StoreStop};
use crate::table::block::{BlockState, Table};
use crate::table::entry::{Entry, Kind};
use crate::units::{BLOCK_PAGES, PAGE_SIZE, PageMask, PageRun, Pfn, Vpn};
use alloc::vec;
use alloc::vec::Vec;

/// Places of a sample, at most, and pages of each.
const PLACES: (usize, u32) = (16, 4);

static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// What became of shared pages that were offered to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GivenUp {
    /// Pages of zeros, which need no store.
    pub zeros: u64,
    /// Pages that were stored now.
    pub stored: u64,
    /// Pages that were stored before the fork that has shared them.
    pub kept: u64,
    /// Pages that the store has refused: they are shared still.
    pub refused: u64,
}

impl GivenUp {
    /// Pages that are shared no more.
    pub fn pages(&self) -> u64 {
        self.zeros + self.stored + self.kept
    }
}

/// Shared pages that are busy, what they were, and what becomes of those that are stored.
struct Offer {
    run: PageRun,
    was: Vec<Entry>,
    kinds: Vec<Option<Kind>>,
}

impl<E: Env> Mm<E> {
    /// Whether more is shared, so that reclaim passes it by, than there is to reclaim.
    pub fn is_crowded(&self) -> bool {
        let own = self.lru_pages(Which::Active) + self.lru_pages(Which::Inactive);
        self.stats().get(Item::NrShared) > own
    }

    /// Stores about `pages` shared pages and drops them here: what a manager can do that pays
    /// for none of them and has nothing else to reclaim. Locked pages stay, and those that the
    /// store refuses, each of which is offered once.
    pub fn reclaim_shared(&self, pages: u64) -> GivenUp {
        let mut done = GivenUp::default();
        if !self.can_swap() {
            return done;
        }
        for space in self.all_spaces() {
            for (block, first, _) in space.parts(self, space.base, space.pages) {
                let mut at = 0;
                while done.pages() < pages && self.stats().get(Item::NrShared) > 0 {
                    let offered = self.offer_shared(&space, &block, first, (at, PORTION));
                    let Some((busy, offer)) = offered else { break };
                    at = offer.run.start.index() + offer.run.pages;
                    self.store_shared(&space, busy, offer, &mut done);
                    self.settle_store();
                    self.write_back();
                }
            }
        }
        self.reclaim_round_done();
        done
    }

    /// The same for some pages here and there, which tell what the others would take in the store.
    pub fn reclaim_shared_sample(&self) -> GivenUp {
        let mut done = GivenUp::default();
        if !self.can_swap() {
            return done;
        }
        let (places, each) = PLACES;
        for space in self.all_spaces() {
            let is_shared = |(block, ..): &(BlockRef, Vpn, u32)| {
                self.lock_settled(block, 0, 0).shared_pages() > 0
            };
            let blocks = || space.parts(self, space.base, space.pages).filter(is_shared);
            let step = blocks().count().div_ceil(places).max(1);
            for (block, first, _) in blocks().step_by(step) {
                if let Some((busy, offer)) = self.offer_shared(&space, &block, first, (0, each)) {
                    self.store_shared(&space, busy, offer, &mut done);
                }
            }
        }
        self.settle_store();
        self.reclaim_round_done();
        done
    }

    /// Charges all shared pages here, past the limit if it must be: what the store has refused
    /// of them would otherwise keep resident all that their owner has shared. Returns how many
    /// there were.
    pub fn take_over_shared(&self) -> u64 {
        let before = self.stats().get(Item::NrShared);
        for space in self.all_spaces() {
            for (block, ..) in space.parts(self, space.base, space.pages) {
                match &mut *self.lock_settled(&block, 0, 0) {
                    BlockState::Huge(h) => self.forsake_huge(h),
                    BlockState::Table(table) => _ = self.forsake(table, 0, BLOCK_PAGES),
                    _ => {}
                }
            }
        }
        before.saturating_sub(self.stats().get(Item::NrShared))
    }

    /// Marks the next shared pages of a block from `at` on busy that may go, at most `most`.
    fn offer_shared(
        &self,
        space: &Space,
        block: &BlockRef,
        first: Vpn,
        (at, most): (u32, u32),
    ) -> Option<(Busy, Offer)> {
        let nr = first.block();
        let is_huge = match &*self.lock_settled(block, 0, 0) {
            BlockState::Huge(h) => h.shared() && !h.locked,
            _ => false,
        };
        if is_huge {
            E::Sharing::break_shared(self, space, block, nr);
        }
        let mut state = self.lock_settled(block, 0, 0);
        let BlockState::Table(table) = &mut *state else {
            return None;
        };
        let from = (at..BLOCK_PAGES).find(|&k| self.may_offer(table, k))?;
        let n = (from..BLOCK_PAGES.min(from + most))
            .take_while(|&k| self.may_offer(table, k))
            .count() as u32;
        let was: Vec<Entry> = (from..from + n).map(|k| table.get(k)).collect();
        let busy = Busy::entries(block, table, PageMask::run(from, n));
        let run = PageRun::new(space.id, nr.start().add(u64::from(from)), n);
        let kinds = vec![None; n as usize];
        Some((busy, Offer { run, was, kinds }))
    }

    fn may_offer(&self, table: &Table, k: u32) -> bool {
        let e = table.get(k);
        let refused = |p: Pfn| self.meta(self.head_of(p)).has(Flags::REJECTED);
        e.shared() && !e.locked() && !e.frame().is_some_and(refused)
    }

    /// Stores what is offered as far as it goes, drops it, and says what became of all of it.
    fn store_shared(&self, space: &Space, busy: Busy, mut offer: Offer, done: &mut GivenUp) {
        let (run, n) = (offer.run, offer.run.pages);
        let bytes = n as usize * PAGE_SIZE;
        let mut buffer = self.swap.scratch.take(self.machine(), bytes);
        let read = self.read_mapped(run, &mut buffer[..bytes]);
        let read = &buffer[..read as usize * PAGE_SIZE];
        let kept = self.kept_before(&offer.was, read, &mut offer.kinds);
        let refused = self.store_bytes(!space.forbids_zero(), read, &mut offer.kinds);
        self.swap.scratch.give_back(self.machine(), buffer);
        let stored: PageMask = (0..n)
            .filter(|&k| offer.kinds[k as usize].is_some())
            .collect();
        let mut gone = PageMask::EMPTY;
        for (k, len) in stored.runs(n) {
            let dropped = self.drop_stored(run.part(k, len));
            (k..k + dropped).for_each(|k| gone.set(k));
        }
        let zeros = |k: &u32| offer.kinds[*k as usize] == Some(Kind::DROPPED);
        let zeros = gone.pages().filter(zeros).count() as u64;
        let swapped = u64::from(gone.count()) - zeros;
        let kept = gone.pages().filter(|k| kept.get(*k)).count() as u64;
        busy.end_by(self, |state| {
            let Some(table) = state.table() else { return };
            let first = run.start.index();
            self.stats().add(Item::NrZero, zeros);
            self.stats().add(Item::NrSwapped, swapped);
            (0..n).for_each(|k| table.set(first + k, offer.was[k as usize]));
            for (k, len) in gone.runs(n) {
                self.drop_entries(run.part(k, len), table);
            }
            for k in 0..n {
                let (was, kind) = (offer.was[k as usize], offer.kinds[k as usize]);
                match kind {
                    Some(kind) if gone.get(k) => {
                        table.set(first + k, was.with(kind));
                    }
                    None if refused.get(k) => {
                        let frame = was.frame().map(|p| self.head_of(p));
                        frame.map(|head| self.meta(head).set(Flags::REJECTED));
                    }
                    _ => {}
                }
            }
            // Who wrote to a neighbour meanwhile did not see these.
            self.sort_lists(table, first, n);
        });
        // The program has discarded these meanwhile.
        for k in stored.without(&gone).pages() {
            if let Some(Kind::Swapped(slot)) = offer.kinds[k as usize] {
                self.drop_swapped(slot, 1);
            }
        }
        self.stats().add(Item::SwpoutZero, zeros);
        self.stats().add(Item::Pswpout, swapped - kept);
        self.stats().add(Item::SwpoutUnchanged, kept);
        done.zeros += zeros;
        done.stored += swapped - kept;
        done.kept += kept;
        done.refused += u64::from(refused.count());
    }

    /// Which of the pages that are shared were stored before the fork, byte for byte as they are:
    /// says in which slots.
    fn kept_before(&self, was: &[Entry], bytes: &[u8], kinds: &mut [Option<Kind>]) -> PageMask {
        let mut kept = PageMask::EMPTY;
        for (k, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            let slot = was[k].frame().and_then(|p| self.take_copy(p));
            let Some(slot) = slot else { continue };
            match self.holds(slot, page) {
                true => {
                    kinds[k] = Some(Kind::Swapped(slot));
                    kept.set(k as u32);
                }
                false => self.drop_swapped(slot, 1),
            }
        }
        kept
    }

    /// Stores pages as far as they go, and says what each of these is then; zeros need no slot
    /// where they may be dropped. Returns the pages that do not compress.
    pub(super) fn store_bytes(
        &self,
        drops: bool,
        bytes: &[u8],
        kinds: &mut [Option<Kind>],
    ) -> PageMask {
        let drops = drops && self.tunables().zero_drop;
        let (mut filled, mut refused) = (PageMask::EMPTY, PageMask::EMPTY);
        for (k, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            match drops && page == ZEROS {
                _ if kinds[k].is_some() => {}
                true => kinds[k] = Some(Kind::DROPPED),
                false => filled.set(k as u32),
            }
        }
        for (start, len) in filled.runs(kinds.len() as u32) {
            let Ok(first) = self.alloc_slots(len) else {
                return refused;
            };
            let mut at = 0;
            while at < len {
                let from = |k: u32| (start + k) as usize * PAGE_SIZE;
                let put = self.store().put(first.add(at), &bytes[from(at)..from(len)]);
                let done = put.map_or_else(|e| e.done, |()| len - at);
                for k in at..at + done {
                    kinds[(start + k) as usize] = Some(Kind::Swapped(first.add(k)));
                }
                at += done;
                let Err(e) = put else { continue };
                if e.why != StoreStop::Incompressible {
                    self.free_slots(first.add(at), len - at);
                    return refused;
                }
                self.stats().add(Item::StoreReject, 1);
                self.store().refused(&bytes[from(at)..from(at + 1)]);
                self.free_slots(first.add(at), 1);
                refused.set(start + at);
                at += 1;
            }
        }
        refused
    }
}
