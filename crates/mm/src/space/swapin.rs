//! Swap-in: pages come back from the store.
//!
//! The pages are marked busy while they are read, so that nobody frees their slots or reads
//! them twice. A fault brings back a naturally aligned window of up to 64 KiB, as far as the
//! slots follow each other (which they do for what was swapped out together).

use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{Content, Prot};
use crate::reclaim::lru::Which;
use crate::space::block::Table;
use crate::space::entry::{Entry, Kind};
use crate::space::fault::{Access, FaultError, FaultMode, Served};
use crate::space::vma::Vma;
use crate::space::{BlockRef, Space};
use crate::stat::Item;
use crate::store::Store;
use crate::units::{PAGE_SIZE, PageRun, Slot, Vpn, order_pages};
use alloc::vec::Vec;

/// Largest order of a swap-in: 64 KiB, the size of a sub-huge folio.
const SWAPIN_ORDER: u8 = 4;

/// The aligned window around `page` whose slots follow each other, and its first slot.
fn window(table: &Table, page: Vpn, cap: u8) -> Option<(u32, u8, Slot)> {
    let i = page.index();
    let Kind::Swapped(slot) = table.get(i).kind() else {
        return None;
    };
    let prot = table.get(i).prot();
    for order in (2..=cap).rev() {
        let n = order_pages(order);
        let first = i & !(n - 1);
        let follows = |k: u32| {
            let want = (slot.0 as i64) + (k as i64) - (i as i64);
            let e = table.get(k);
            e.prot() == prot && e.kind() == Kind::Swapped(Slot(want as u32)) && want >= 0
        };
        if (first..first + n).all(follows) {
            return Some((first, order, Slot(slot.0 - (i - first))));
        }
    }
    Some((i, 0, slot))
}

impl<E: Env> Mm<E> {
    /// Serves a fault on a swapped page. `None`: the world changed, start over.
    pub(crate) fn swap_in(
        &self,
        space: &Space,
        block: &BlockRef,
        page: Vpn,
        vma: &Vma,
        seq: u64,
        (access, mode): (Access, FaultMode),
    ) -> Result<Option<Served>, FaultError> {
        let mut cap = SWAPIN_ORDER;
        loop {
            let order = match block.lock(self).table().and_then(|t| window(t, page, cap)) {
                Some((_, order, _)) => order,
                None => return Ok(None),
            };
            let n = order_pages(order);
            let start = Vpn(page.0 & !(n as u64 - 1));
            let pfn = match self.alloc_folio(order, n, (space.id, start)) {
                Ok(pfn) => pfn,
                Err(_) if order > 0 => {
                    cap = if order > 2 { 2 } else { 0 };
                    continue;
                }
                Err(_) if mode == FaultMode::NoWait => return Err(FaultError::NeedReclaim),
                Err(e) => {
                    self.make_room(e).map_err(FaultError::Oom)?;
                    return Ok(None);
                }
            };
            let mut state = block.lock(self);
            let found = state.table().and_then(|t| window(t, page, order));
            let slot = match found {
                Some((_, o, slot)) if o == order && !space.changed(seq) => slot,
                _ => {
                    drop(state);
                    self.free_unused(pfn);
                    return Ok(None);
                }
            };
            let run = PageRun::new(space.id, start, n);
            let saved = state.entry(page.index());
            if let Some(table) = state.table() {
                for k in 0..n {
                    let e = table.get(start.index() + k);
                    table.set(start.index() + k, e.with(Kind::Busy));
                }
            }
            drop(state);
            let (got, read) = self.read_in(run, pfn, slot, saved.prot());
            let mut state = block.lock(self);
            if let Some(table) = state.table() {
                for k in 0..n {
                    let kind = if k < got {
                        Kind::Mapped(pfn.add(k))
                    } else {
                        Kind::Swapped(slot.add(k))
                    };
                    let e = Entry::new(kind, saved.prot(), vma.locked);
                    table.set(start.index() + k, e);
                }
            }
            if got > 0 {
                self.stats().sub(Item::NrSwapped, got as u64);
                self.stats().add(Item::NrAnon, got as u64);
                // With the block locked: from then on anybody may unmap the folio and free it.
                self.lru_add(pfn, Which::Active);
            }
            // Likewise: what is freed takes its copies along.
            let keeps = got > 0 && access == Access::Read && self.wants_copies(got);
            if keeps {
                let slots: Vec<Slot> = (0..got).map(|k| slot.add(k)).collect();
                self.keep_copies(pfn, &slots);
            }
            block.settled(self);
            drop(state);
            if got == 0 {
                self.free_unused(pfn);
            } else {
                self.part_of_folio(pfn, n - got);
                if !keeps {
                    self.drop_swapped(slot, got);
                    self.settle_store();
                }
                self.stats().add(Item::Pswpin, got as u64);
            }
            read?;
            return Ok(Some(Served::Mapped(n)));
        }
    }

    /// Reads slots and maps the bytes; the number of pages mapped. The run is marked busy.
    fn read_in(
        &self,
        run: PageRun,
        pfn: crate::units::Pfn,
        slot: Slot,
        prot: Prot,
    ) -> (u32, Result<(), FaultError>) {
        let bytes = run.pages as usize * PAGE_SIZE;
        let mut buffer = self.scratch.take(self.machine(), bytes);
        let result = match self.store().get(slot, &mut buffer[..bytes]) {
            Ok(()) => match self.map_all(run, pfn, Content::Bytes(&buffer[..bytes]), prot) {
                Ok(()) => (run.pages, Ok(())),
                Err(e) => (e.at, Err(FaultError::Platform(e))),
            },
            Err(e) => (0, Err(FaultError::Store(e))),
        };
        self.scratch.give_back(self.machine(), buffer);
        result
    }
}
