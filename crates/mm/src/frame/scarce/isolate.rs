//! Free blocks in the hands of one caller: what compaction moves pages to.
//!
//! They are on no list and in no counter of free pages meanwhile, like a folio's.

use super::mobility::Mobility;
use super::watermark::Mark;
use crate::frame::buddy::Held;
use crate::frame::error::ORDERS;
use crate::frame::meta::{FrameMeta, Head, Kind};
use crate::frame::zone::Zone;
use crate::machine::Machine;
use crate::units::{Pfn, order_pages};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Acquire;

/// Free blocks that one caller has taken out of a zone, to cut folios from. They go back by
/// [`Zone::give_back`].
#[derive(Debug, Default)]
#[must_use = "free blocks must be given back"]
pub struct FreePool {
    blocks: Vec<(Pfn, u8)>,
    pages: u64,
}

impl FreePool {
    /// Pages in it.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}

/// What lies at a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The first frame of a free block of this order.
    Free(u8),
    /// The first frame of a folio of this order.
    Folio(u8),
    /// Something else: a block between lists, or the inside of one.
    Other,
}

/// Free pages that must be left when a block of an order is to be formed (of Linux: twice the
/// block, since both what is moved and where it is moved to are in use for a while).
fn gap(order: u8) -> u64 {
    2 * u64::from(order_pages(order))
}

/// Of a thousand: above this an allocation fails for want of a large block, below for want of
/// memory (extfrag_threshold of Linux).
const FRAGMENTED: u64 = 500;

impl Zone {
    /// First frame that was never part of a block: what lies above it is free in one piece.
    pub fn reached(&self) -> Pfn {
        Pfn(self.counts.bump.load(Acquire).min(self.end) as u32)
    }

    /// What lies at a frame, and the frame to look at next. Takes no lock: what is seen may
    /// have changed when the caller acts on it.
    pub fn look_at(&self, pfn: Pfn) -> (Seen, Pfn) {
        match self.table.at(pfn).and_then(FrameMeta::head) {
            Some(Head::Free(order)) => (Seen::Free(order), pfn.add(order_pages(order))),
            Some(Head::Folio(order)) => (Seen::Folio(order), pfn.add(order_pages(order))),
            Some(other) => (Seen::Other, pfn.add(order_pages(other.order()))),
            None => (Seen::Other, pfn.add(1)),
        }
    }

    /// Whether there is enough free memory to form a block of `order` by moving pages, and too
    /// little of it in large blocks: else it takes reclaim, or nothing at all.
    pub fn compaction_suits(&self, order: u8) -> bool {
        let min = self.watermarks().min;
        let free = self.free_pages() + self.cached_pages();
        if self.watermark_ok(order, Mark::Min) || free < min + gap(order) {
            return false;
        }
        self.fragmentation(order) > FRAGMENTED
    }

    /// How far an allocation of `order` fails for want of a large block rather than of memory,
    /// of a thousand (Gorman and Whitcroft, 2006).
    pub fn fragmentation(&self, order: u8) -> u64 {
        let by_order: [u64; ORDERS] = self.free_by_order();
        let blocks: u64 = by_order.iter().sum();
        if blocks == 0 {
            return 0;
        }
        let pages: u64 = by_order.iter().zip(0..).map(|(n, o)| n << o).sum();
        let wanted = u64::from(order_pages(order));
        1000u64.saturating_sub((1000 + pages * 1000 / wanted) / blocks)
    }

    /// Takes the free blocks below order `below` of the frames `from..from + pages` into a
    /// pool, of movable pageblocks only; returns the pages taken.
    pub fn take_free<M: Machine>(
        &self,
        m: &M,
        from: Pfn,
        pages: u32,
        below: u8,
        pool: &mut FreePool,
    ) -> u64 {
        if self.pageblock(from) != Mobility::Movable {
            return 0;
        }
        let mut held = self.lock.lock(m);
        let end = self.reached().min(from.add(pages));
        let (mut at, mut taken) = (from, 0);
        while at < end {
            let (seen, next) = self.look_at(at);
            if let Seen::Free(order) = seen
                && order < below
                && pool.blocks.try_reserve(1).is_ok()
                && self.unlink(&mut held, at, order).is_some()
            {
                if let Some(meta) = self.table.at(at) {
                    meta.set_kind(Kind::Cached, order);
                }
                pool.blocks.push((at, order));
                taken += u64::from(order_pages(order));
            }
            at = next;
        }
        pool.pages += taken;
        taken
    }

    /// Cuts a movable folio from a pool: head with one reference, no flags, no owner.
    pub fn folio_from<M: Machine>(&self, m: &M, pool: &mut FreePool, order: u8) -> Option<Pfn> {
        let fits = |(i, (_, o)): (usize, &(Pfn, u8))| (*o >= order).then_some((*o, i));
        let (_, i) = pool.blocks.iter().enumerate().filter_map(fits).min()?;
        if pool.blocks.try_reserve(ORDERS).is_err() {
            return None;
        }
        let (pfn, mut from) = pool.blocks.swap_remove(i);
        while from > order {
            from -= 1;
            let rest = pfn.add(order_pages(from));
            if let Some(meta) = self.table.at(rest) {
                meta.set_kind(Kind::Cached, from);
            }
            pool.blocks.push((rest, from));
        }
        let pages = u64::from(order_pages(order));
        pool.pages -= pages;
        let held = self.lock.lock(m);
        self.count(m.this_cpu(), pages, 0);
        drop(held);
        self.prepare(pfn, order, Mobility::Movable);
        Some(pfn)
    }

    /// Gives all blocks of a pool back to the free lists.
    pub fn give_back<M: Machine>(&self, m: &M, pool: &mut FreePool) {
        if pool.blocks.is_empty() {
            return;
        }
        let mut held = self.lock.lock(m);
        pool.pages = 0;
        for (pfn, order) in pool.blocks.drain(..) {
            let held: &mut Held = &mut held;
            self.give(held, pfn, order);
        }
    }
}
