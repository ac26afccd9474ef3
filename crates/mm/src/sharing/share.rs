//! Pages that several managers hold since a fork, where the kernel copies on write (`cow.rs` is
//! the other road).
//!
//! The kernel copies such a page on the first write, so a write takes memory: it is delivered
//! (the pages are write-protected before the fork), the writer is charged, and the page is its
//! own. Who takes a shared page away gives nothing back: the others hold it still.
//!
//! Two marks of a mapped page: *guarded* says that it is write-protected, *shared* that others
//! may hold it too. A page that is no longer shared may stay guarded: its first write lifts the
//! protection of the whole run around it, and the next fork need not protect it anew.

use crate::charge::{Charge, OverLimit};
use crate::engine::Engine;
use crate::engine::lru::Which;
use crate::engine::open::ahead;
use crate::engine::space::{MapError, Space};
use crate::engine::step::{Served, Step};
use crate::env::Env;
use crate::machine::{Machine, Work};
use crate::platform::PlatformError;
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap, Presence, Table, around};
use crate::table::entry::{Entry, Kind};
use crate::units::{BLOCK_PAGES, BlockNr, PageMask, PageRun, Pfn, SpaceId, Vpn};

/// Most pages that become the writer's own with a written one.
const WINDOW: u32 = 64;
impl<E: Env> Engine<E> {
    /// Before a fork on live memory, after [`Engine::activate_all`]: what is mapped will be shared.
    /// The caller keeps faults, reclaim and mapping calls away. What cannot be protected is not
    /// shared: it must be charged to both sides.
    ///
    /// # Errors
    /// [`MapError::NoSpace`].
    pub fn share_all(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let mut state = block.lock(self);
            let was = state.shared_pages();
            match &mut *state {
                BlockState::Huge(h) if h.mapped() => {
                    let run = PageRun::new(id, first.block().start(), BLOCK_PAGES);
                    if h.guarded() || self.guard(run) {
                        h.has = Presence::Shared;
                    }
                    if h.shared() && was == 0 {
                        self.relist(h.pfn, Which::Unevictable);
                    }
                }
                BlockState::Table(table) => {
                    self.guard_table(id, first.block(), table, |_, _| true);
                    for k in 0..BLOCK_PAGES {
                        let e = table.get(k);
                        if e.guarded() {
                            table.set(k, e.guard(true));
                        }
                    }
                    self.sort_lists(table, 0, BLOCK_PAGES);
                }
                _ => {}
            }
            let now = state.shared_pages();
            self.stats().add(Item::NrShared, u64::from(now - was));
        }
        Ok(())
    }

    /// Protects what of `which` is mapped and not protected yet, run by run.
    pub(crate) fn guard_table(
        &self,
        id: SpaceId,
        nr: BlockNr,
        table: &mut Table,
        which: impl Fn(u32, &Table) -> bool,
    ) {
        let bare = |k: u32, table: &Table| {
            let e = table.get(k);
            matches!(e.kind(), Kind::Mapped(_)) && !e.guarded() && which(k, table)
        };
        let mut k = 0;
        while k < BLOCK_PAGES {
            if !bare(k, table) {
                k += 1;
                continue;
            }
            let first = k;
            while k < BLOCK_PAGES && bare(k, table) {
                k += 1;
            }
            let run = PageRun::new(id, nr.start().add(u64::from(first)), k - first);
            if self.guard(run) {
                for i in first..k {
                    table.set(i, table.get(i).guard(false));
                }
            }
        }
    }

    /// Whether others may hold a page too, so that a write to it will be charged.
    pub fn is_shared(&self, id: SpaceId, page: Vpn) -> bool {
        let Ok(space) = self.space(id) else {
            return false;
        };
        space
            .block_if_any(self, page.block())
            .is_some_and(|block| block.lock(self).entry(page.index()).shared())
    }

    /// Nobody else holds anything any more that a fork has shared, or all of it has been
    /// charged here: nothing is charged.
    pub fn unshare_all(&self) {
        self.leave_family();
        self.settle_store();
        if self.stats().get(Item::NrShared) == 0 {
            return;
        }
        for space in self.all_spaces() {
            for (block, _, _) in space.parts(self, space.base, space.pages) {
                // Who has marked the block busy puts its pages back as they were.
                let mut state = self.lock_settled(&block, 0, 0);
                let was = state.shared_pages();
                match &mut *state {
                    BlockState::Huge(h) if h.shared() => {
                        h.has = Presence::Guarded;
                        self.relist(h.pfn, Which::Active);
                    }
                    BlockState::Table(table) if was > 0 => {
                        for k in 0..BLOCK_PAGES {
                            if table.get(k).shared() {
                                table.set(k, table.get(k).guard(false));
                            }
                        }
                        self.sort_lists(table, 0, BLOCK_PAGES);
                    }
                    _ => {}
                }
                self.stats().sub(Item::NrShared, u64::from(was));
            }
        }
    }

    /// A fault on a page of a mapped huge one. Block locked.
    pub(crate) fn write_to_huge(
        &self,
        space: &Space,
        page: Vpn,
        write: bool,
        h: &mut HugeMap,
    ) -> Result<Step, PlatformError> {
        if !write {
            return Ok(Step::Done(Served::Spurious));
        }
        if h.shared() {
            // The kernel copies page by page, so they part ways here too.
            return Ok(Step::Break);
        }
        self.unguard(PageRun::new(space.id, page.block().start(), BLOCK_PAGES))?;
        h.has = Presence::Mapped;
        h.marks = h.marks.dirtied();
        Ok(Step::Done(Served::Spurious))
    }

    /// A fault on a mapped page of a table: the access is possible already, or was a write to a
    /// protected page. Block locked.
    pub(crate) fn write_to_present(
        &self,
        space: &Space,
        page: Vpn,
        write: bool,
        table: &mut Table,
    ) -> Result<Step, PlatformError> {
        if !write {
            return Ok(Step::Done(Served::Spurious));
        }
        let i = page.index();
        if table.get(i).shared()
            && let Err(over) = self.unshare_around(table, i)
        {
            return Ok(Step::Over(over));
        }
        let mut run = i..i + 1;
        if table.get(i).guarded() {
            table.set(i, table.get(i).dirtied());
            let free = |k: u32| {
                let e = table.get(k);
                e.guarded() && !e.shared() && !e.marks().any()
            };
            run = around(i, 0..BLOCK_PAGES, free);
        }
        let start = page.block().start().add(u64::from(run.start));
        self.unguard(PageRun::new(space.id, start, run.len() as u32))?;
        for k in run {
            table.set(k, table.get(k).unguarded());
        }
        Ok(Step::Done(Served::Spurious))
    }

    /// Whether `pages` more would pass `memory.high`.
    fn is_tight(&self, pages: u64) -> bool {
        self.charge().usage().saturating_add(pages) > self.charge().high()
    }

    /// Charges for the page `i` and, as far as those before it were written one after the other,
    /// for as many after it, which are then this manager's own; for it alone where `memory.high`
    /// has no room for more. Block locked.
    fn unshare_around(&self, table: &mut Table, i: u32) -> Result<(), OverLimit> {
        let prot = table.get(i).prot();
        let alike = |k: u32, shared| {
            let e = table.get(k);
            matches!(e.kind(), Kind::Mapped(_)) && e.shared() == shared && e.prot() == prot
        };
        if let Some((first, n)) = self.ahead_of_writes(table, i) {
            self.take_over_written(table, first, n);
            return Ok(());
        }
        let most = WINDOW.min(BLOCK_PAGES - i);
        let before = (1..=most.min(i))
            .take_while(|&k| alike(i - k, false))
            .count();
        let mut n = (1..(before as u32).max(1))
            .take_while(|&k| alike(i + k, true))
            .count() as u32
            + 1;
        let pages = u64::from(n);
        if self.is_tight(pages) || self.charge().try_unshare(pages).is_err() {
            self.charge().try_unshare(1)?;
            n = 1;
        }
        if self.is_tight(0) {
            self.machine().kick(Work::Reclaim);
        }
        self.take_over_written(table, i, n);
        Ok(())
    }

    /// Far below `memory.high`, as where holes are left to the system: charges for the shared
    /// pages without a gap around the page `i` in its window of 64 KiB, or where much of the block
    /// is this manager's own already, in all of it. Which they are. Block locked.
    fn ahead_of_writes(&self, table: &Table, i: u32) -> Option<(u32, u32)> {
        let t = &self.tunables();
        if !self.is_far_below_high(t, 1) {
            return None;
        }
        let own = |e: &Entry| matches!(e.kind(), Kind::Mapped(_)) && !e.shared();
        let alike = |k| table.get(k).shared() && table.get(k).prot() == table.get(i).prot();
        let run = around(i, ahead(table, i, own), alike);
        let pages = run.len() as u64;
        let charged = self.is_far_below_high(t, pages) && self.charge().try_unshare(pages).is_ok();
        charged.then_some((run.start, run.len() as u32))
    }

    /// The same as [`take_over`](Self::take_over) where they are written. A folio of which others
    /// share the rest is split: it is kept aside as a whole, and with it would be what is charged
    /// here now, which reclaim could not find. Block locked.
    fn take_over_written(&self, table: &mut Table, first: u32, n: u32) {
        self.take_over(table, first, n);
        for k in [first, first + n - 1] {
            if let Some(p) = table.get(k).frame() {
                self.split_if_mixed(table, k, p);
            }
        }
    }

    /// Splits the folio of the entry `k`, if any of its pages is shared.
    fn split_if_mixed(&self, table: &Table, k: u32, pfn: Pfn) {
        let folio = self.folio_of(pfn);
        let (head, pages) = (folio.start, folio.end.0 - folio.start.0);
        let start = k.wrapping_sub(pfn.0 - head.0);
        let (mut live, mut shared) = (PageMask::EMPTY, false);
        for i in 0..pages {
            let e = table.get(start.wrapping_add(i));
            if e.frame() == Some(head.add(i)) {
                live.set(i);
                shared |= e.shared();
            }
        }
        let can_split = pages > 1 && !self.zone_of(head).has_bad(head, pages);
        if shared && can_split {
            // Who holds it otherwise has it busy, or has a look at it: it stays whole then.
            if let Some(folio) = self.freeze_folio(head, live.count()) {
                self.split_frozen(folio, &live, 0, None);
                let first = k.saturating_sub(pfn.0 - head.0);
                self.sort_lists(table, first, pages.min(BLOCK_PAGES - first));
            }
        }
    }

    /// Ends the sharing of the shared entries among `first..first + n`; their charge is the
    /// caller's. Returns how many there were. Block locked.
    pub(super) fn take_over(&self, table: &mut Table, first: u32, n: u32) -> u32 {
        let mut taken = 0;
        for k in first..first + n {
            if table.get(k).shared() {
                table.set(k, table.get(k).guard(false));
                taken += 1;
            }
        }
        if taken > 0 {
            self.stats().sub(Item::NrShared, u64::from(taken));
            self.sort_lists(table, first, n);
        }
        taken
    }
}

impl BlockState {
    /// Pages that others may hold too.
    pub(crate) fn shared_pages(&self) -> u32 {
        match self {
            BlockState::Huge(h) if h.shared() => BLOCK_PAGES,
            BlockState::Table(table) => table.present().filter(|e| e.shared()).count() as u32,
            _ => 0,
        }
    }
}
