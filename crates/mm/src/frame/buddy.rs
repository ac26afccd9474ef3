//! The free lists: blocks of orders 0 to 10 (binary buddy, Knowlton 1965).
//!
//! Invariant: a free block is at exactly one order, the largest; its buddy of that order is
//! not free. Blocks that were used before are on a list for each type and order, linked
//! through the metadata of their heads; blocks that were never used lie beyond a bump mark and
//! cost nothing, whatever the size of the zone. A request takes a used block of the smallest
//! order that is large enough, the last one freed first, and passes the bump mark only if
//! there is none.
//!
//! Only heads are written. What a frame inside of a block is, its head says; a head that
//! becomes part of a larger block is made a tail. So the cost of a block does not grow with
//! its order.

use super::FrameLookup;
use super::meta::{FrameMeta, Head, Kind, link_get, link_set};
use super::scarce::capture::{Captures, FreedBy};
use super::scarce::fallback::{self, Orders, Steal};
use super::scarce::mobility::{Mobility, TYPES};
use super::zone::Zone;
use crate::atomic::AtomicU64;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Pfn, order_pages};
use core::sync::atomic::Ordering::{Relaxed, Release};

/// The right to change the free lists, and what belongs to it: exists only inside the zone's
/// lock.
pub(super) struct Held {
    /// For each type, the orders whose list has a block.
    orders: Orders,
    pub(super) captures: Captures,
}

impl Held {
    pub(super) fn new(capture_lists: usize) -> Held {
        Held {
            orders: [0; TYPES],
            captures: Captures::new(capture_lists),
        }
    }
}

/// Adds to a counter that only the holder of the lock changes.
fn add(word: &AtomicU64, n: u64) {
    word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Takes from a counter that only the holder of the lock changes.
fn sub(word: &AtomicU64, n: u64) {
    word.store(word.load(Relaxed).wrapping_sub(n), Relaxed);
}

impl Zone {
    /// Order of the never used block at `at`: the largest that is aligned and fits.
    pub(super) fn untouched(&self, at: u64) -> Option<u8> {
        let left = self.end.checked_sub(at).filter(|n| *n > 0)?;
        Some((left.ilog2().min(at.trailing_zeros()) as u8).min(MAX_ORDER))
    }

    /// A block of `order`, for the allocator itself as yet.
    pub(super) fn take(&self, held: &mut Held, order: u8, mobility: Mobility) -> Option<Pfn> {
        if order > MAX_ORDER {
            return None;
        }
        loop {
            let fit = held.orders[mobility as usize] >> order;
            if fit != 0 {
                let from = order + fit.trailing_zeros() as u8;
                let pfn = self.first(from, mobility)?;
                return self.carve(held, pfn, from, order, mobility);
            }
            if let Some(steal) = fallback::whole(&held.orders, order, mobility) {
                return self.steal(held, steal, order, mobility);
            }
            if self.pass_bump(held).is_none() {
                let steal = fallback::part(&held.orders, order, mobility)?;
                return self.steal(held, steal, order, mobility);
            }
        }
    }

    /// One block that is worth at most `most` blocks of `order`, and its order: a whole small
    /// block before a part of a larger one, so that refills use up what is left over.
    pub(super) fn take_some(
        &self,
        held: &mut Held,
        order: u8,
        most: u32,
        mobility: Mobility,
    ) -> Option<(Pfn, u8)> {
        let most = (order + most.checked_ilog2()? as u8).min(MAX_ORDER);
        let fit = held.orders[mobility as usize] >> order;
        let smallest = order
            + fit
                .checked_ilog2()
                .map_or(0, |_| fit.trailing_zeros() as u8);
        let order = smallest.min(most);
        Some((self.take(held, order, mobility)?, order))
    }

    /// First block of a list.
    fn first(&self, order: u8, mobility: Mobility) -> Option<Pfn> {
        link_get(&self.counts.heads[mobility as usize][order as usize])
    }

    fn steal(&self, held: &mut Held, s: Steal, order: u8, mobility: Mobility) -> Option<Pfn> {
        let pfn = self.first(s.order, s.from)?;
        if s.claim && s.order < BLOCK_ORDER {
            self.claim_pageblock(held, pfn, mobility);
        }
        self.carve(held, pfn, s.order, order, mobility)
    }

    /// Gives a pageblock another type, with all that is free in it.
    fn claim_pageblock(&self, held: &mut Held, pfn: Pfn, mobility: Mobility) {
        let first = pfn.0 & !(order_pages(BLOCK_ORDER) - 1);
        let end =
            (first as u64 + order_pages(BLOCK_ORDER) as u64).min(self.counts.bump.load(Relaxed));
        self.pageblocks.set(pfn, mobility);
        let mut at = first.max(self.span().first.0);
        while (at as u64) < end {
            let Some(head) = self.table.get(Pfn(at)).and_then(FrameMeta::head) else {
                // A CPU is cutting a block for its list, which needs no lock. What lies behind
                // keeps its type: one more fallback some day, and no more.
                return;
            };
            if let Head::Free(order) = head
                && self.unlink(held, Pfn(at), order).is_some()
            {
                self.link(held, Pfn(at), order);
            }
            at += order_pages(head.order());
        }
    }

    /// Takes free block `pfn` of order `from` off its list and keeps its first part of
    /// `order`; the rest goes back.
    fn carve(
        &self,
        held: &mut Held,
        pfn: Pfn,
        mut from: u8,
        order: u8,
        mobility: Mobility,
    ) -> Option<Pfn> {
        self.unlink(held, pfn, from)?;
        if from >= BLOCK_ORDER {
            self.set_pageblocks(pfn, order, mobility);
        }
        while from > order {
            from -= 1;
            self.link(held, pfn.add(order_pages(from)), from);
        }
        self.table.get(pfn)?.set_kind(Kind::Cached, order);
        Some(pfn)
    }

    /// The type of what was a free pageblock, and of the next one for the top order.
    fn set_pageblocks(&self, pfn: Pfn, order: u8, mobility: Mobility) {
        self.pageblocks.set(pfn, mobility);
        if order > BLOCK_ORDER {
            self.pageblocks
                .set(pfn.add(order_pages(BLOCK_ORDER)), mobility);
        }
    }

    /// As [`Zone::set_pageblocks`], if the block fills one.
    pub(super) fn set_pageblocks_of(&self, pfn: Pfn, order: u8, mobility: Mobility) {
        if order >= BLOCK_ORDER {
            self.set_pageblocks(pfn, order, mobility);
        }
    }

    /// Puts the next never used block on its list; `None` if there is none, or no memory for
    /// its metadata.
    fn pass_bump(&self, held: &mut Held) -> Option<()> {
        let at = self.counts.bump.load(Relaxed);
        let order = self.untouched(at)?;
        let pfn = Pfn(at as u32);
        for i in 0..order_pages(order) {
            self.table.touch(pfn.add(i))?;
        }
        for i in 0..order_pages(order) {
            if let Some(meta) = self.table.touch(pfn.add(i)) {
                meta.set_kind(Kind::Tail, 0);
            }
        }
        self.link(held, pfn, order);
        self.counts
            .bump
            .store(at + order_pages(order) as u64, Release);
        Some(())
    }

    /// Takes back a block that the allocator owns and merges it with its free buddies. Where
    /// it meets a captured buddy, it joins that capture list (R15).
    pub(super) fn give(&self, held: &mut Held, mut pfn: Pfn, mut order: u8) {
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ order_pages(order));
            match self.table.get(buddy).and_then(FrameMeta::head) {
                Some(Head::Free(o)) if o == order => {
                    if self.unlink(held, buddy, order).is_none() {
                        break;
                    }
                }
                Some(Head::Captured(o, list)) if o == order && held.captures.joins(list) => {
                    return self.capture(held, list, pfn, order, FreedBy::Others);
                }
                _ => break,
            }
            pfn = self.merge(pfn, buddy);
            order += 1;
        }
        self.link(held, pfn, order);
    }

    /// Makes one block of two buddies that are on no list; its first frame.
    pub(super) fn merge(&self, pfn: Pfn, buddy: Pfn) -> Pfn {
        if let Some(meta) = self.table.get(pfn.max(buddy)) {
            meta.set_kind(Kind::Tail, 0);
        }
        pfn.min(buddy)
    }

    /// Puts a block at the head of its list: that of its pageblock's type; a whole pageblock
    /// has none and is movable.
    fn link(&self, held: &mut Held, pfn: Pfn, order: u8) {
        if order >= BLOCK_ORDER && self.pageblocks.kept() {
            self.set_pageblocks(pfn, order, Mobility::Movable);
        }
        let mobility = self.pageblocks.of(pfn);
        let (kind, order_at) = (mobility as usize, order as usize);
        let head = &self.counts.heads[kind][order_at];
        let after = link_get(head);
        let Some(meta) = self.table.get(pfn) else {
            debug_assert!(false, "{pfn} has no metadata");
            return;
        };
        meta.set_mobile(Kind::FreeHead, order, mobility);
        let (prev, next) = meta.links(false);
        link_set(prev, None);
        link_set(next, after);
        if let Some(next) = after.and_then(|p| self.table.get(p)) {
            link_set(next.links(false).0, Some(pfn));
        }
        link_set(head, Some(pfn));
        held.orders[kind] |= 1 << order;
        add(&self.counts.blocks[kind][order_at], 1);
        add(&self.counts.listed, order_pages(order) as u64);
    }

    /// Takes a block off its list; `None` if it is not the head of a free block of `order`.
    pub(super) fn unlink(&self, held: &mut Held, pfn: Pfn, order: u8) -> Option<()> {
        let meta = self.table.get(pfn)?;
        if meta.free_order() != Some(order) {
            debug_assert!(false, "{pfn} is on the list of order {order}: {meta:?}");
            return None;
        }
        let (kind, order_at) = (meta.mobility() as usize, order as usize);
        let (prev, next) = meta.links(false);
        let (before, after) = (link_get(prev), link_get(next));
        match before.and_then(|p| self.table.get(p)) {
            Some(b) => link_set(b.links(false).1, after),
            None => link_set(&self.counts.heads[kind][order_at], after),
        }
        if let Some(a) = after.and_then(|p| self.table.get(p)) {
            link_set(a.links(false).0, before);
        }
        link_set(prev, None);
        link_set(next, None);
        let blocks = &self.counts.blocks[kind][order_at];
        sub(blocks, 1);
        if blocks.load(Relaxed) == 0 {
            held.orders[kind] &= !(1 << order);
        }
        sub(&self.counts.listed, order_pages(order) as u64);
        Some(())
    }
}
