//! Holes that are left to the system while memory is far from short.
//!
//! A fault that the manager serves costs many times what one costs that the kernel serves by
//! itself, and where memory is not short nobody needs to know which pages are there. So where a
//! fault is not part of a stream that deserves a large folio, the holes around it become *open*:
//! charged as if they were all touched, so that the limit holds whatever the program does, and
//! the system makes each of them when it is touched. Once memory is wanted they are closed: what
//! was made is booked as mapped, the charge of the others is returned. Nobody but who closes
//! them, or drops them, looks into open pages.

use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine::lru::Which;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::order::Window;
use crate::platform::{Made, Platform, PlatformError, Prot, Stop};
use crate::sizes::HUGE_PAGES;
use crate::stat::Item;
use crate::table::block::{BlockState, Table};
use crate::table::entry::{Entry, Kind};
use crate::tunables::Tunables;
use crate::units::{BLOCK_PAGES, PageMask, PageRun, Vpn, order_pages};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A fault that would get a smaller folio opens holes instead: 64 KiB of them, the size from which
/// on the fault costs little more than the zeros that it brings.
pub(crate) const OPEN_ORDER: u8 = 4;
/// Where so many pages of a block are open, a fault opens all that is left of it.
const MANY: u32 = 4 << OPEN_ORDER;
/// Pages that one round of reclaim closes at most, so that who waits does not wait for all.
const ROUND: u64 = 64 * BLOCK_PAGES as u64;

/// How many runs of open pages there are, and which are closed next.
#[derive(Debug, Default)]
pub(crate) struct OpenRuns {
    /// In all blocks.
    pub runs: AtomicU32,
    /// Where the next round of reclaim goes on to close what is open: a page's number.
    closed_to: AtomicU64,
}

impl<E: Env> Engine<E> {
    /// Makes open entries of a run. Block locked.
    pub(crate) fn note_open(&self, table: &mut Table, run: PageRun, prot: Prot) {
        let first = run.start.index();
        for k in first..first + run.pages {
            table.set(k, Entry::new(Kind::Open, prot, false));
        }
        let more = 1_u32.wrapping_sub(beside(table, first, run.pages));
        self.open.runs.fetch_add(more, Relaxed);
        self.stats().add(Item::NrOpen, u64::from(run.pages));
    }

    /// Opens a run of holes if the charge and the system allow. Block locked.
    pub(crate) fn open_run(
        &self,
        table: &mut Table,
        run: PageRun,
        prot: Prot,
        t: &Tunables,
    ) -> bool {
        let pages = u64::from(run.pages);
        if !self.charge_open(t, pages) {
            return false;
        }
        let opened = self.memory().open(run).is_ok();
        match opened {
            true => self.note_open(table, run, prot),
            false => self.charge().uncharge(pages),
        }
        opened
    }

    /// Charges open pages if there may be more of them.
    pub(crate) fn charge_open(&self, t: &Tunables, pages: u64) -> bool {
        self.open.runs.load(Relaxed) < self.memory().most_open()
            && self.is_far_below_high(t, pages)
            && self.charge().try_charge(pages).is_ok()
    }

    /// Pages that can be charged before usage reaches the share of `memory.high` below which the
    /// system fills holes (`fault_open_ratio`); 0: usage is above it.
    pub fn room_for_holes(&self) -> u64 {
        self.room(&self.tunables())
    }

    fn room(&self, t: &Tunables) -> u64 {
        let high = self.charge().high().min(self.charge().max());
        let most = high / 100 * u64::from(t.fault_open_ratio);
        most.saturating_sub(self.charge().usage())
    }

    /// Whether usage is so far below `memory.high` that `pages` may be charged before they are
    /// there.
    pub(crate) fn is_far_below_high(&self, t: &Tunables, pages: u64) -> bool {
        pages <= self.room(t)
    }

    /// Ends the openness of what is open among the pages `first..first + n` of a block. Block
    /// locked.
    ///
    /// # Errors
    /// The system refuses; what it refuses stays open.
    pub(crate) fn close_entries(
        &self,
        space: &Space,
        block: Vpn,
        table: &mut Table,
        first: u32,
        n: u32,
    ) -> Result<u64, PlatformError> {
        let mut freed = 0;
        for (k, n) in alike_in(table, first, n) {
            let run = PageRun::new(space.id, block.add(u64::from(k)), n);
            freed += match self.close_run(table, run) {
                // Something else is in the place of some of them.
                Err(e) if e.why == Stop::Gone => (0..n).try_fold(0, |freed, k| {
                    let page = run.part(k, 1);
                    match self.close_run(table, page) {
                        Err(e) if e.why == Stop::Gone => {
                            self.forget_open(table, page.start.index(), 1);
                            Ok(freed + 1)
                        }
                        closed => closed.map(|n| freed + n),
                    }
                }),
                closed => closed,
            }?;
        }
        Ok(freed)
    }

    fn close_run(&self, table: &mut Table, run: PageRun) -> Result<u64, PlatformError> {
        let made = self.memory().close(run)?;
        Ok(self.book(table, run, &made))
    }

    /// Ends the openness of a run of which that was made; how many of its pages were not. Block
    /// locked.
    pub(crate) fn book(&self, table: &mut Table, run: PageRun, made: &Made) -> u64 {
        let before = runs(table);
        let freed = self.book_made(table, run, made);
        let more = runs(table).wrapping_sub(before);
        self.open.runs.fetch_add(more, Relaxed);
        freed
    }

    /// Books what the system has made of a run that is closed. The pages that were not made are
    /// holes, and their charge is returned; how many they are. Block locked.
    fn book_made(&self, table: &mut Table, run: PageRun, made: &Made) -> u64 {
        let (first, mut left) = (run.start.index(), PageMask::EMPTY);
        let mut k = 0;
        while k < run.pages {
            let at = run.start.add(u64::from(k));
            let w = Window::around(at, OPEN_ORDER);
            let pages = order_pages(OPEN_ORDER);
            let whole = HUGE_PAGES
                && w.start == at
                && k + pages <= run.pages
                && (k..k + pages).all(|k| made.pages.get(k));
            let order = if whole { OPEN_ORDER } else { 0 };
            let pages = order_pages(order);
            if made.pages.get(k) {
                match self.alloc_charged(order, pages, (run.space, at)) {
                    Ok(pfn) => {
                        for i in 0..pages {
                            let e = table.get(first + k + i);
                            table.set(first + k + i, e.with(Kind::Mapped(pfn.add(i))));
                        }
                        self.stats().add(Item::NrAnon, u64::from(pages));
                        self.lru_add(pfn, Which::Active);
                    }
                    // Nothing to book them with: the system's, as they were.
                    Err(_) => (k..k + pages).for_each(|k| left.set(k)),
                }
            } else {
                let (mapped, dropped) = (true, false);
                let kind = match made.zeros.get(k) {
                    true => Kind::Zero { mapped, dropped },
                    false => Kind::None,
                };
                let e = table.get(first + k);
                table.set(first + k, e.with(kind));
            }
            k += pages;
        }
        for (k, n) in left.runs(run.pages) {
            let _ = self.memory().open(run.part(k, n));
        }
        let holes = u64::from(run.pages - made.pages.count());
        self.charge().uncharge(holes);
        self.stats()
            .sub(Item::NrOpen, u64::from(run.pages - left.count()));
        holes
    }

    /// The same for a range, in whose pages somebody is about to look.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn close_range(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
    ) -> Result<(), MapError> {
        if self.stats().get(Item::NrOpen) == 0 {
            return Ok(());
        }
        for (block, first, n) in space.parts(self, start, pages) {
            self.close_part(space, &block, first, n)
                .map_err(MapError::Platform)?;
        }
        Ok(())
    }

    fn close_part(
        &self,
        space: &Space,
        block: &BlockRef,
        first: Vpn,
        n: u32,
    ) -> Result<u64, PlatformError> {
        let mut state = block.lock(self);
        let BlockState::Table(table) = &mut *state else {
            return Ok(0);
        };
        let start = first.block().start();
        let freed = self.close_entries(space, start, table, first.index(), n)?;
        state.tidy();
        Ok(freed)
    }

    /// Closes blocks until about `target` pages were never touched, or so many are closed that it
    /// is enough for one round; returns how many pages went.
    pub(crate) fn close_some(&self, target: u64) -> u64 {
        let before = self.stats().get(Item::NrOpen);
        if before == 0 {
            return 0;
        }
        let mut freed = 0;
        let is_done = |freed| {
            let left = self.stats().get(Item::NrOpen);
            left == 0 || freed >= target || before.saturating_sub(left) >= ROUND
        };
        for space in self.all_spaces() {
            let from = self.open.closed_to.load(Relaxed);
            let (base, pages) = (space.base.0, space.pages);
            let from = from.clamp(base, base + pages) - base;
            let after = space.parts(self, Vpn(base + from), pages - from);
            for (block, first, n) in after.chain(space.parts(self, Vpn(base), from)) {
                if is_done(freed) {
                    return freed;
                }
                // A refusal is for one block; the rest may do.
                freed += self.close_part(&space, &block, first, n).unwrap_or(0);
                self.open.closed_to.store(first.0 + u64::from(n), Relaxed);
            }
        }
        freed
    }

    /// Drops what is open of a run, without a look at its pages: they are holes after. What the
    /// system refuses to close is empty, and stays open. Block locked.
    pub(crate) fn drop_open(&self, run: PageRun, table: &mut Table) {
        let first = run.start.index();
        for (k, n) in open_in(table, first, run.pages).runs(BLOCK_PAGES) {
            let part = run.part(k - first, n);
            if self.close_empty(part) {
                self.forget_open(table, k, n);
            } else if n > 1 {
                // Something else may be in the place of some of them.
                for k in k..k + n {
                    if self.close_empty(run.part(k - first, 1)) {
                        self.forget_open(table, k, 1);
                    }
                }
            }
        }
    }

    /// Whether what is open of a run is so no more; of several pages not all need be the core's.
    fn close_empty(&self, run: PageRun) -> bool {
        match self.memory().close_empty(run) {
            Ok(()) => true,
            Err(e) => run.pages == 1 && e.why == Stop::Gone,
        }
    }

    /// Discards the bytes of a part of a block all of which is open, and stays so: what is given
    /// back is often soon touched again. False: not all of it is.
    pub(crate) fn zap_open(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) -> bool {
        let state = block.lock(self);
        let BlockState::Table(table) = &*state else {
            return false;
        };
        if open_in(table, first.index(), n).count() < n {
            return false;
        }
        self.discard_run(PageRun::new(space.id, first, n));
        true
    }

    /// What is open of a part of a block is free to drop.
    pub(crate) fn free_open(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) {
        let state = block.lock(self);
        if let BlockState::Table(table) = &*state {
            for (k, n) in open_in(table, first.index(), n).runs(BLOCK_PAGES) {
                let at = first.block().start().add(u64::from(k));
                self.memory().free_open(PageRun::new(space.id, at, n));
            }
        }
    }

    /// The open entries among `first..first + n` become holes here; what the program sees is
    /// the caller's. Block locked.
    pub(crate) fn forget_open(&self, table: &mut Table, first: u32, n: u32) {
        let open = open_in(table, first, n);
        if open == PageMask::EMPTY {
            return;
        }
        let pages = u64::from(open.count());
        for (k, n) in open.runs(BLOCK_PAGES) {
            (k..k + n).for_each(|k| table.set(k, Entry::NONE));
            let more = beside(table, k, n).wrapping_sub(1);
            self.open.runs.fetch_add(more, Relaxed);
        }
        self.stats().sub(Item::NrOpen, pages);
        self.charge().uncharge(pages);
    }
}

/// How many of the two entries beside `first..first + n` are open.
fn beside(table: &Table, first: u32, n: u32) -> u32 {
    let below = first.checked_sub(1).is_some_and(|k| table.get(k).is_open());
    u32::from(below) + u32::from(table.get(first + n).is_open())
}

/// Runs of open entries.
pub(crate) fn runs(table: &Table) -> u32 {
    let begins = |k: &u32| table.get(*k).is_open() && (*k == 0 || !table.get(*k - 1).is_open());
    (0..BLOCK_PAGES).filter(begins).count() as u32
}

/// The runs of open entries among `first..first + n`, each of the same rights and so, as a rule,
/// one mapping.
fn alike_in(table: &Table, first: u32, n: u32) -> Vec<(u32, u32)> {
    let mut runs = Vec::new();
    for (k, n) in open_in(table, first, n).runs(BLOCK_PAGES) {
        let mut from = k;
        for at in k + 1..=k + n {
            if at == k + n || table.get(at).prot() != table.get(from).prot() {
                runs.push((from, at - from));
                from = at;
            }
        }
    }
    runs
}

/// The open entries among `first..first + n`.
fn open_in(table: &Table, first: u32, n: u32) -> PageMask {
    those(table, first, n, |e| e.is_open())
}

/// The entries among `first..first + n` that are so.
pub(crate) fn those(table: &Table, first: u32, n: u32, is: impl Fn(&Entry) -> bool) -> PageMask {
    (first..first + n).filter(|&k| is(&table.get(k))).collect()
}

/// How far around page `i` what has no gap is served ahead of need: in its window of 64 KiB, or
/// where many of the block's pages are `served` already, in all of it.
pub(crate) fn ahead(table: &Table, i: u32, served: impl Fn(&Entry) -> bool) -> Range<u32> {
    let many = table.present().filter(|e| served(e)).count() as u32 >= MANY;
    let pages = match many {
        true => BLOCK_PAGES,
        false => order_pages(OPEN_ORDER),
    };
    let first = i / pages * pages;
    first..first + pages
}
