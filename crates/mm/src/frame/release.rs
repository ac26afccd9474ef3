//! The way back into the zone: the release check, and the one point at which blocks come back.

use super::FrameLookup;
use super::buddy::Held;
use super::error::{BulkFreeError, FreeError};
use super::meta::{Flags, FrameMeta, Head, Kind};
use super::scarce::capture::FreedBy;
use super::zone::Zone;
use crate::machine::Machine;
use crate::units::{MAX_ORDER, Pfn, order_pages};
use core::sync::atomic::Ordering::{Acquire, Release};

impl Zone {
    /// Takes a folio back. The caller holds the only reference, or has frozen the folio, and
    /// has cleared its owner.
    #[inline]
    pub fn free<M: Machine>(&self, m: &M, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        self.claim(pfn, order)?;
        if !self.pcp_free(m, pfn, order) {
            self.free_locked(m, pfn, order);
        }
        Ok(())
    }

    /// Gives a claimed block to the capture or the free lists.
    fn free_locked<M: Machine>(&self, m: &M, pfn: Pfn, order: u8) {
        let mut held = self.lock.lock(m);
        let cpu = m.this_cpu();
        self.count(cpu, 0, order_pages(order) as u64);
        self.release(&mut held, cpu, pfn, order);
    }

    /// Takes folios of order 0 back, under one lock (R8).
    pub fn free_bulk<M: Machine>(&self, m: &M, pfns: &[Pfn]) -> Result<(), BulkFreeError> {
        let mut held = self.lock.lock(m);
        let cpu = m.this_cpu();
        for (done, &pfn) in pfns.iter().enumerate() {
            if let Err(why) = self.claim(pfn, 0) {
                self.count(cpu, 0, done as u64);
                return Err(BulkFreeError { done, why });
            }
            self.release(&mut held, cpu, pfn, 0);
        }
        self.count(cpu, 0, pfns.len() as u64);
        Ok(())
    }

    /// The single point at which a block comes back to the zone under its lock: to the capture
    /// list of this CPU, if it captures (R144), else to the free lists.
    pub(super) fn release(&self, held: &mut Held, cpu: usize, pfn: Pfn, order: u8) {
        if held.captures_own(cpu) {
            self.capture(held, cpu, pfn, order, FreedBy::Reclaimer);
        } else {
            self.give(held, pfn, order);
        }
    }

    /// Makes an allocated folio of `order` 2^order folios of order 0, each with one reference
    /// and no flags; an owner is passed on, page by page. Changes metadata only and takes no
    /// lock: the caller is the folio's only user.
    pub fn split_allocated(&self, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        self.split_allocated_into(pfn, order, |_| 0)
    }

    /// The same into folios of the orders that `part` names for the offset of each one's first
    /// page; an order that does not fit there is made one that does.
    pub fn split_allocated_into(
        &self,
        pfn: Pfn,
        order: u8,
        part: impl Fn(u32) -> u8,
    ) -> Result<(), FreeError> {
        let meta = self.check(pfn, order)?.0;
        let (owner, mobility) = (meta.owner(), meta.mobility());
        meta.clear_owner();
        let mut i = 0;
        while i < order_pages(order) {
            let fits = i.trailing_zeros().min(order as u32) as u8;
            let order = part(i).min(fits);
            if let Some(meta) = self.table.get(pfn.add(i)) {
                meta.set_folio_head(order, mobility);
                if let Some((space, page)) = owner {
                    meta.set_owner(space, page.add(i as u64));
                }
            }
            i += order_pages(order);
        }
        Ok(())
    }

    /// Says that a frame of an allocated folio must never be used again: the folio is not
    /// taken back any more, and not split.
    pub fn mark_bad(&self, pfn: Pfn) -> Result<(), FreeError> {
        if !self.contains(pfn) {
            return Err(FreeError::Outside(pfn));
        }
        let head = self.head_of(pfn);
        match self.table.get(head).and_then(FrameMeta::head) {
            Some(Head::Folio(_)) => {}
            Some(_) => return Err(FreeError::DoubleFree(pfn)),
            None => return Err(FreeError::NeverAllocated(pfn)),
        }
        let before = self.table.get(pfn).map(|meta| meta.set(Flags::BAD));
        if before.is_some_and(|f| !f.has(Flags::BAD)) {
            self.bad.fetch_add(1, Release);
        }
        Ok(())
    }

    /// Whether a frame of an allocated block is bad. Free of cost while none of the zone is.
    pub fn has_bad(&self, pfn: Pfn, pages: u32) -> bool {
        let end = self.end.min(pfn.0 as u64 + pages as u64) as u32;
        let bad = |i| self.table.get(Pfn(i)).is_some_and(|m| m.has(Flags::BAD));
        self.bad.load(Acquire) > 0 && (pfn.0..end).any(bad)
    }

    /// The release check (R2, R3): every frame of the block is looked at before anything
    /// changes. That the inner frames are of the folio follows from its head (debug builds
    /// look nevertheless); so in a zone without bad frames the head is all that is read.
    #[inline]
    pub(super) fn check(&self, pfn: Pfn, order: u8) -> Result<(&FrameMeta, u32), FreeError> {
        loop {
            // A folio's head says that the block is aligned and in the zone.
            let good = self.table.at(pfn);
            if let Some(good) = good.and_then(|meta| Some((meta, meta.releasable(order)?))) {
                if order > 0 && (cfg!(debug_assertions) || self.bad.load(Acquire) > 0) {
                    self.check_tails(pfn, order)?;
                }
                return Ok(good);
            }
            // Without a reason by now, it was a flag or a reference that somebody gave up.
            self.refusal(pfn, order)?;
        }
    }

    /// Why a folio is not taken back; nothing if there is no reason.
    #[cold]
    fn refusal(&self, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        if order > MAX_ORDER {
            return Err(FreeError::BadOrder(order));
        }
        let last = pfn.0 as u64 + order_pages(order) as u64 - 1;
        if !self.contains(pfn) || last >= self.end {
            return Err(FreeError::Outside(pfn));
        }
        if !pfn.is_aligned(order) {
            return Err(FreeError::Misaligned(pfn, order));
        }
        let Some(meta) = self.table.get(pfn) else {
            return Err(FreeError::NeverAllocated(pfn));
        };
        let (kind, is, flags) = meta.look();
        match kind {
            Kind::FolioHead if is == order => {}
            Kind::FolioHead => return Err(FreeError::WrongOrder(pfn, order, is)),
            Kind::Tail => {
                let head = self.table.get(self.head_of(pfn)).map(FrameMeta::kind);
                return Err(match head {
                    Some(Kind::FolioHead) => FreeError::NotHead(pfn),
                    _ => FreeError::DoubleFree(pfn),
                });
            }
            Kind::FreeHead | Kind::Cached | Kind::Captured => {
                return Err(FreeError::DoubleFree(pfn));
            }
            Kind::Untouched => return Err(FreeError::NeverAllocated(pfn)),
        }
        if flags.has(Flags::BAD) {
            return Err(FreeError::BadFrame(pfn));
        }
        let in_use = flags.and(Flags::IN_USE);
        if !in_use.is_empty() {
            return Err(FreeError::InUse(pfn, in_use));
        }
        match meta.refs() {
            0 | 1 => Ok(()),
            refs => Err(FreeError::Referenced(pfn, refs)),
        }
    }

    fn check_tails(&self, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        for i in 1..order_pages(order) {
            let tail = pfn.add(i);
            let good = self.table.get(tail).is_some_and(|meta| {
                let (kind, _, flags) = meta.look();
                kind == Kind::Tail && !flags.has(Flags::BAD)
            });
            if !good {
                return Err(FreeError::BadFrame(tail));
            }
        }
        Ok(())
    }

    /// Checks a folio and takes it over from its owner.
    #[inline]
    pub(super) fn claim(&self, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        loop {
            let (meta, seen) = self.check(pfn, order)?;
            if let Some((space, page)) = meta.owner() {
                return Err(FreeError::Mapped(pfn, space, page));
            }
            if meta.claim(seen, order) {
                return Ok(());
            }
        }
    }
}
