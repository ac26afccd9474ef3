//! The zone's invariants, checked from outside: lists, metadata and counters must agree.

use super::meta::{Head, link_get};
use super::scarce::mobility::TYPES;
use super::{FrameLookup, Kind, ORDERS, Zone};
use crate::units::{MAX_ORDER, Pfn, order_pages};
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering::Relaxed;

impl Zone {
    /// Walks all frames and lists and says the first thing that is wrong. Quiescent only.
    ///
    /// Checks that blocks lie aligned, whole and without overlap from the first frame to the
    /// bump mark, that no two free buddies of one order stay apart, that each free block is
    /// on the list of its order and nothing else is, and that the counters are exact.
    pub fn verify(&self) -> Result<(), String> {
        let name = self.name();
        let span = self.span();
        let (first, end) = (
            span.first.0 as u64,
            span.first.0 as u64 + span.frames as u64,
        );
        let bump = self.counts.bump.load(Relaxed);
        if !(first..=end).contains(&bump) {
            return Err(format!("{name}: bump mark {bump:#x} outside"));
        }
        let mut heads = [[0u64; ORDERS]; TYPES];
        let (mut at, mut allocated, mut cached, mut captured) = (first, 0, 0, 0);
        while at < bump {
            let pfn = Pfn(at as u32);
            let Some(meta) = self.get(pfn) else {
                return Err(format!("{name}: {pfn} below the bump mark was never used"));
            };
            let Some(head) = meta.head() else {
                return Err(format!("{name}: {pfn} should start a block: {meta:?}"));
            };
            let order = head.order();
            let pages = order_pages(order.min(MAX_ORDER)) as u64;
            if order > MAX_ORDER || !pfn.is_aligned(order) || at + pages > bump {
                return Err(format!("{name}: bad block {pfn}: {meta:?}"));
            }
            for i in 1..pages as u32 {
                let kind = self.get(pfn.add(i)).map(|m| m.kind());
                if kind != Some(Kind::Tail) {
                    return Err(format!("{name}: {} in {pfn} is {kind:?}", pfn.add(i)));
                }
            }
            let idle = !matches!(head, Head::Folio(_));
            if idle && (meta.refs() != 0 || meta.owner().is_some()) {
                return Err(format!("{name}: {pfn} is free but {meta:?}"));
            }
            match head {
                Head::Free(_) => {
                    heads[meta.mobility() as usize][order as usize] += 1;
                    self.verify_free(pfn, order)?;
                }
                Head::Folio(_) => allocated += pages,
                Head::Cached(_) => cached += pages,
                Head::Captured(..) => captured += pages,
            }
            at += pages;
        }
        for (t, heads) in heads.iter().enumerate() {
            for (order, &heads) in heads.iter().enumerate() {
                self.verify_list(t, order, heads)?;
            }
        }
        let counted = (self.cached_pages(), self.captured_pages());
        if counted != (cached, captured) {
            return Err(format!(
                "{name}: {cached} pages cached and {captured} captured, but counted {counted:?}"
            ));
        }
        if self.free_pages() + cached + captured + allocated != span.frames as u64 {
            return Err(format!(
                "{name}: {} pages free, {cached} cached, {captured} captured and {allocated} \
                 allocated of {}",
                self.free_pages(),
                span.frames
            ));
        }
        Ok(())
    }

    /// A free block is in its pageblock's lists, and could not be a larger one.
    fn verify_free(&self, pfn: Pfn, order: u8) -> Result<(), String> {
        let name = self.name();
        let buddy = Pfn(pfn.0 ^ order_pages(order));
        let apart = self.get(buddy).and_then(|m| m.free_order()) == Some(order);
        if apart && order < MAX_ORDER {
            return Err(format!("{name}: {pfn} and {buddy} should be merged"));
        }
        let (right, meta) = (self.pageblock(pfn), self.get(pfn));
        if meta.is_none_or(|meta| meta.mobility() != right) {
            return Err(format!("{name}: {pfn} is in a {right:?} block: {meta:?}"));
        }
        Ok(())
    }

    fn verify_list(&self, t: usize, order: usize, heads: u64) -> Result<(), String> {
        let name = self.name();
        let (mut at, mut last, mut n) = (link_get(&self.counts.heads[t][order]), None, 0);
        while let Some(pfn) = at.filter(|_| n <= heads) {
            let Some(meta) = self.get(pfn) else {
                return Err(format!("{name}: {pfn} is on a free list but no frame"));
            };
            let (prev, next) = meta.links(false);
            let right = meta.free_order() == Some(order as u8) && meta.mobility() as usize == t;
            if !right || link_get(prev) != last {
                return Err(format!(
                    "{name}: {pfn} on the list of order {order} after {last:?}: {meta:?}"
                ));
            }
            last = Some(pfn);
            n += 1;
            at = link_get(next);
        }
        let counted = self.counts.blocks[t][order].load(Relaxed);
        if n != heads || counted != heads {
            return Err(format!(
                "{name}: order {order} has {heads} free blocks, {n} listed, {counted} counted"
            ));
        }
        Ok(())
    }
}
