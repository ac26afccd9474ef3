//! Swap-in: pages come back from the store.
//!
//! The pages are marked busy while they are read, so that nobody frees their slots or reads
//! them twice. How many a fault brings back is `fault/readahead.rs`; a page that nobody asked for
//! and that cannot be read is no error.

use crate::engine::busy::Busy;
use crate::engine::copies::slot_runs;
use crate::engine::lru::Which;
use crate::engine::space::BlockRef;
use crate::engine::step::{Access, FaultMode, Served};
use crate::env::Env;
use crate::fault::{Fault, FaultError};
use crate::mm::Mm;
use crate::platform::{Content, Prot, Stop};
use crate::scratch::PORTION;
use crate::stat::Item;
use crate::store::Store;
use crate::table::block::Table;
use crate::table::entry::{Entry, Kind};
use crate::table::vma::Vma;
use crate::table::walk::{fitting, less};
use crate::units::{PAGE_SIZE, PageRun, Pfn, Slot, Vpn, order_pages};
use alloc::vec::Vec;

/// The largest window of swapped pages with equal rights around `page`, of order `cap` at most;
/// `None` if the page is not swapped.
fn window(table: &Table, page: Vpn, cap: u8) -> Option<(u32, u8)> {
    let e = table.get(page.index());
    let swapped = |e: Entry| matches!(e.kind(), Kind::Swapped(_));
    let there = |k| swapped(table.get(k)) && table.get(k).prot() == e.prot();
    swapped(e).then(|| fitting(page.index(), cap, there))
}

/// The pages of a window, by index from its first, with their slots; they are busy afterwards.
/// Whether any has marks, so that they must be mapped guarded.
fn take(
    block: &BlockRef,
    table: &mut Table,
    first: u32,
    pages: u32,
) -> (Busy, Vec<(u32, Slot)>, bool) {
    let (mut slots, mut marked) = (Vec::new(), false);
    for k in 0..pages {
        let e = table.get(first + k);
        if let Kind::Swapped(slot) = e.kind() {
            slots.push((k, slot));
            marked |= e.marks().any();
        }
    }
    let taken = slots.iter().map(|(k, _)| first + k).collect();
    (Busy::entries(block, table, taken), slots, marked)
}

/// A window on its way from the store into a folio.
struct Coming {
    busy: Busy,
    run: PageRun,
    pfn: Pfn,
    /// By index in the window.
    slots: Vec<(u32, Slot)>,
    prot: Prot,
    /// Some page is tracked.
    guarded: bool,
}

impl<E: Env> Mm<E> {
    /// Serves a fault on a swapped page. `None`: the world changed, start over.
    pub(super) fn swap_in(
        &self,
        f: Fault<'_>,
        vma: &Vma,
        seq: u64,
    ) -> Result<Option<Served>, FaultError> {
        let Fault {
            space, block, page, ..
        } = f;
        let _stall = self.stall();
        let plan = self.plan_readahead(space, block, page);
        let mut cap = plan.order;
        loop {
            let order = match block.lock(self).table().and_then(|t| window(t, page, cap)) {
                Some((_, order)) => order,
                None => return Ok(None),
            };
            let n = order_pages(order);
            let start = Vpn(page.0 & !(n as u64 - 1));
            let pfn = match self.alloc_folio(order, n, (space.id, start)) {
                Ok(pfn) => pfn,
                Err(_) if order > 0 => {
                    cap = less(order);
                    continue;
                }
                Err(_) if f.mode == FaultMode::NoWait => return Err(FaultError::NeedReclaim),
                Err(e) => {
                    self.make_room(e).map_err(FaultError::Oom)?;
                    return Ok(None);
                }
            };
            let run = PageRun::new(space.id, start, n);
            let Some(coming) = self.take_window(f, run, order, pfn, seq) else {
                self.free_unused(pfn);
                return Ok(None);
            };
            let (got, read) = self.read_in(&coming);
            self.end_window(coming, got, vma, f.access);
            if got > 0 {
                self.stats().add(Item::Pswpin, got as u64);
                self.note_readahead(space, block, plan, (start.index(), got));
            }
            match read {
                Err(_) if page.index() - start.index() < got => {}
                // Perhaps it is another page of the window that cannot be read, or whose place is
                // not ours any more.
                Err(FaultError::Store(_)) if order > 0 => {
                    cap = 0;
                    continue;
                }
                Err(FaultError::Platform(e)) if order > 0 && e.why == Stop::Gone => {
                    cap = 0;
                    continue;
                }
                other => other?,
            }
            return Ok(Some(Served::Mapped(got)));
        }
    }

    /// Marks a window around `page` busy that is to be read into a folio. `None`: it is not what it
    /// was when that was chosen.
    fn take_window(
        &self,
        f: Fault<'_>,
        run: PageRun,
        order: u8,
        pfn: Pfn,
        seq: u64,
    ) -> Option<Coming> {
        let mut state = f.block.lock(self);
        let table = state.table()?;
        let (_, found) = window(table, f.page, order)?;
        if f.space.changed(seq) || found != order {
            return None;
        }
        let prot = table.get(f.page.index()).prot();
        let (busy, slots, guarded) = take(f.block, table, run.start.index(), run.pages);
        Some(Coming {
            busy,
            run,
            pfn,
            slots,
            prot,
            guarded,
        })
    }

    /// Books that the first `got` pages of a window are there; the others are stored as before.
    fn end_window(&self, coming: Coming, got: u32, vma: &Vma, access: Access) {
        let Coming {
            run, pfn, guarded, ..
        } = coming;
        let mapped = &coming.slots[..got as usize];
        // What is freed takes its copies along.
        let read = got > 0 && access == Access::Read;
        let whose = read.then(|| self.wants_copies(mapped)).flatten();
        let mut keeps = false;
        coming.busy.end_by(self, |state| {
            let Some(table) = state.table() else { return };
            for &(k, slot) in &coming.slots {
                let i = run.start.index() + k;
                let old = table.get(i).with_attrs(coming.prot, vma.locked);
                let e = match k < got {
                    true => old.shown(pfn.add(k), guarded),
                    false => old.with(Kind::Swapped(slot)),
                };
                table.set(i, e);
            }
            if got > 0 {
                self.stats().sub(Item::NrSwapped, got as u64);
                self.stats().add(Item::NrAnon, got as u64);
                // With the block locked: from then on anybody may unmap the folio and free it.
                self.lru_add(pfn, Which::Active);
            }
            keeps = whose.is_some_and(|whose| self.keep_copies(pfn, mapped, whose));
        });
        if got == 0 {
            return self.free_unused(pfn);
        }
        self.part_of_folio(pfn, run.pages - got);
        if !keeps {
            for (_, slot, pages) in slot_runs(mapped) {
                self.drop_swapped(slot, pages);
            }
            self.settle_store();
        }
    }

    /// Reads the slots of a window and maps the bytes; the number of pages mapped.
    fn read_in(&self, coming: &Coming) -> (u32, Result<(), FaultError>) {
        let pages = coming.run.pages;
        let bytes = pages.min(PORTION) as usize * PAGE_SIZE;
        let mut buffer = self.swap.scratch.take(self.machine(), bytes);
        let (mut got, mut result) = (0, Ok(()));
        while got < pages && result.is_ok() {
            let part;
            (part, result) = self.read_part(coming, got, &mut buffer);
            got += part;
        }
        self.swap.scratch.give_back(self.machine(), buffer);
        (got, result)
    }

    /// The same of a portion of it, from the page `from` on.
    fn read_part(
        &self,
        coming: &Coming,
        from: u32,
        buffer: &mut [u8],
    ) -> (u32, Result<(), FaultError>) {
        let &Coming {
            run,
            pfn,
            prot,
            guarded,
            ..
        } = coming;
        let pages = PORTION.min(run.pages - from);
        let slots = &coming.slots[from as usize..(from + pages) as usize];
        for (k, slot, n) in slot_runs(slots) {
            let at = |k: u32| (k - from) as usize * PAGE_SIZE;
            if let Err(e) = self.store().get(slot, &mut buffer[at(k)..at(k + n)]) {
                return (0, Err(FaultError::Store(e)));
            }
        }
        let content = Content::Bytes(&buffer[..pages as usize * PAGE_SIZE]);
        match self.map_as(run.part(from, pages), pfn.add(from), content, prot, guarded) {
            Ok(()) => (pages, Ok(())),
            Err(e) => (e.at, Err(FaultError::Platform(e))),
        }
    }
}
