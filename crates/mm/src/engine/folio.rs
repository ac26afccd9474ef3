//! Folios: allocation with its charge, references, and the way back to the zone.
//!
//! A folio holds one reference for each page of it that is mapped, inactive or owned by a
//! busy mark (a huge mapping or record: one in all), plus one for each isolation, pin and copy
//! in progress. Whoever
//! takes a page away from the program disposes of its bytes (`discard` or `release`); the
//! frames go back to the zone, and the charge is returned, with the last reference.

use crate::charge::{Charge, OverLimit};
use crate::engine::Engine;
use crate::engine::sharing::Sharing;
use crate::env::Env;
use crate::frame::{Flags, FrameMeta, FreeError};
use crate::machine::{Machine, Work};
use crate::sizes::HUGE_PAGES;
use crate::stat::{Item, SizeItem};
use crate::units::{BLOCK_ORDER, FrameRun, PageMask, Pfn, SpaceId, Vpn, order_pages};
use core::ops::Range;
use core::sync::atomic::Ordering;

/// Why there is no folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// The group's limit refused the charge.
    Charge(OverLimit),
    /// The zone has no block of this order.
    NoFrame {
        /// The order that was asked for.
        order: u8,
    },
}

/// The order of a folio; 0 for a frame that is no folio's head (a defect; `verify` finds it).
pub(crate) fn order_of(meta: &FrameMeta) -> u8 {
    debug_assert!(meta.folio_order().is_some(), "{meta:?} is no folio");
    meta.folio_order().unwrap_or(0)
}

impl<E: Env> Engine<E> {
    /// A folio of `order`, charged, with `refs` references, on no list. Its frames hold
    /// nothing.
    pub(crate) fn alloc_folio(
        &self,
        order: u8,
        refs: u32,
        owner: (SpaceId, Vpn),
    ) -> Result<Pfn, AllocError> {
        let pages = order_pages(order) as u64;
        self.charge()
            .try_charge(pages)
            .map_err(AllocError::Charge)?;
        let pfn = self.alloc_charged(order, refs, owner);
        if pfn.is_err() {
            self.charge().uncharge(pages);
        }
        if self.charge().usage() > self.charge().high() {
            self.machine().kick(Work::Reclaim);
        }
        pfn
    }

    /// A folio whose charge the caller has made already.
    pub(crate) fn alloc_charged(
        &self,
        order: u8,
        refs: u32,
        owner: (SpaceId, Vpn),
    ) -> Result<Pfn, AllocError> {
        if order > 0 && !HUGE_PAGES {
            return Err(AllocError::NoFrame { order });
        }
        let zone = self.zone_for(order);
        let pfn = zone
            .alloc(self.machine(), order)
            .map_err(|_| AllocError::NoFrame { order })?;
        let meta = self.meta(pfn);
        meta.set_refs(refs);
        meta.set_owner(owner.0, owner.1);
        self.count_folio(order);
        Ok(pfn)
    }

    /// A folio of `order` begins to exist.
    pub(crate) fn count_folio(&self, order: u8) {
        if order > 0 {
            self.stats().add_size(order, SizeItem::NrAnon, 1);
        }
        if order == BLOCK_ORDER {
            self.stats().add(Item::NrThp, 1);
        }
    }

    /// A folio of `order` exists no longer.
    pub(crate) fn uncount_folio(&self, order: u8) {
        if order > 0 {
            self.stats().sub_size(order, SizeItem::NrAnon, 1);
        }
        if order == BLOCK_ORDER {
            self.stats().sub(Item::NrThp, 1);
        }
    }

    /// Gives a folio back that was never mapped.
    pub(crate) fn free_unused(&self, pfn: Pfn) {
        let n = self.meta(pfn).refs();
        self.put_folio(pfn, n);
    }

    /// Drops `n` of the references that a folio was given for pages that were then not mapped:
    /// it is partially mapped from the start. Block locked.
    pub(crate) fn part_of_folio(&self, pfn: Pfn, n: u32) {
        if n > 0 {
            self.partially_mapped(pfn);
            self.put_folio(pfn, n);
        }
    }

    /// Drops the references that `refs` entries of one place hold which have just gone: `first`
    /// is where the folio's first page would lie there. As [`Engine::put_charged`].
    #[must_use = "somebody pays for these pages"]
    pub(crate) fn put_mapped(&self, space: SpaceId, first: Vpn, head: Pfn, refs: u32) -> u64 {
        let nowhere = E::Sharing::leave(self, head, space, first, refs);
        if nowhere && self.meta(head).refs() > refs {
            self.partially_mapped(head);
        }
        self.put_charged(head, refs)
    }

    /// The head of the folio that a frame belongs to.
    pub(crate) fn head_of(&self, pfn: Pfn) -> Pfn {
        self.zone_of(pfn).head_of(pfn)
    }

    /// The frames of the folio that a frame belongs to, which is not freed meanwhile: who goes
    /// over many pages asks for the next folio only at the end of the last.
    pub(crate) fn folio_of(&self, pfn: Pfn) -> Range<Pfn> {
        let head = self.head_of(pfn);
        head..head.add(order_pages(order_of(self.meta(head))))
    }

    /// Drops `n` references. With the last one the folio leaves its lists, its frames go back
    /// to the zone and its charge is returned. Its bytes were disposed of before.
    pub(crate) fn put_folio(&self, pfn: Pfn, n: u32) {
        let pages = self.put_charged(pfn, n);
        if pages > 0 {
            self.charge().uncharge(pages);
        }
    }

    /// Drops a reference that was taken by a frame's number (`FrameMeta::try_get`), as who goes
    /// over frames does. With the last one the folio is freed.
    pub fn put_page(&self, pfn: Pfn) {
        self.put_folio(pfn, 1);
    }

    /// As [`Engine::put_folio`], for who drops many folios: returns the pages whose charge the
    /// caller has to return, in one call for all of them (R9).
    #[must_use = "somebody pays for these pages"]
    pub(crate) fn put_charged(&self, pfn: Pfn, n: u32) -> u64 {
        let meta = self.meta(pfn);
        if n == 0 || meta.put_refs(n) > 0 {
            return 0;
        }
        let order = order_of(meta);
        self.lru_del(pfn);
        self.unqueue(pfn);
        self.no_longer_partial(pfn);
        meta.clear(Flags::ACTIVE | Flags::UNEVICTABLE | Flags::REJECTED);
        self.uncount_folio(order);
        meta.clear_owner();
        self.release_discarded(pfn, order, &PageMask::EMPTY);
        self.forget_copies(pfn, order_pages(order));
        let freed = self.zone_of(pfn).free(self.machine(), pfn, order);
        if let Err(FreeError::BadFrame(_)) = freed {
            self.folios
                .lost
                .fetch_add(u64::from(order_pages(order)), Ordering::AcqRel);
        } else {
            debug_assert!(freed.is_ok(), "{pfn} order {order}: {freed:?}");
        }
        order_pages(order) as u64
    }

    /// The first of the frames that has failed.
    pub(crate) fn bad_frame(&self, frames: FrameRun) -> Option<Pfn> {
        if !self
            .zone_of(frames.start)
            .has_bad(frames.start, frames.pages)
        {
            return None;
        }
        (0..frames.pages)
            .map(|k| frames.start.add(k))
            .find(|&p| self.meta(p).has(Flags::BAD))
    }

    /// A frame has failed (memory failure): nothing is copied from it any more, its folio is
    /// neither split nor ever used again. False: it is part of no folio.
    pub fn poison(&self, pfn: Pfn) -> bool {
        self.zone_of(pfn).mark_bad(pfn).is_ok()
    }
}

/// The page where the first page of folio `head` would lie if `pfn` lies at `page`.
pub(crate) fn first_page(page: Vpn, pfn: Pfn, head: Pfn) -> Vpn {
    Vpn(page.0.wrapping_sub(u64::from(pfn.0 - head.0)))
}
