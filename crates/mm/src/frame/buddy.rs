//! The zone: free blocks of orders 0 to 10 (binary buddy, Knowlton 1965).
//!
//! Blocks that were used before are on a list for each order, linked through the metadata of
//! their heads; blocks that were never used lie beyond a bump mark and cost nothing, whatever
//! the size of the zone. A request takes a used block of the smallest order that is large
//! enough, the last one freed first, and passes the bump mark only if there is none.

use super::meta::{Flags, FrameMeta, link_get, link_set};
use super::{FrameTable, Frames, Kind};
use crate::machine::{LockClass, Machine};
use crate::platform::FrameSpan;
use crate::sync::Lock;
use crate::units::{MAX_ORDER, Pfn, order_pages};
use core::fmt;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// No free block of the order, or a larger one, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoFrame {
    /// The order asked for; above 10 there never is one.
    pub order: u8,
    /// Free blocks of each order at that moment.
    pub free: [u64; ORDERS],
}

impl fmt::Display for NoFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no free block of order {}", self.order)?;
        if self.order > MAX_ORDER {
            return write!(f, " (the largest is {MAX_ORDER})");
        }
        write!(f, "; free by order: {:?}", self.free)
    }
}

impl core::error::Error for NoFrame {}

/// Why a block was not taken back; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// Order above 10.
    BadOrder(u8),
    /// The zone has no such frames.
    Outside(Pfn),
    /// A block of that order cannot start at this frame.
    Misaligned(Pfn, u8),
    /// The zone never gave this frame out.
    NeverAllocated(Pfn),
    /// The frame is free already.
    DoubleFree(Pfn),
    /// The frame is inside of a folio, not its first.
    NotHead(Pfn),
    /// The folio has another order: frame, order given, order it has.
    WrongOrder(Pfn, u8, u8),
    /// Flags say that somebody still counts on the folio.
    InUse(Pfn, Flags),
    /// The folio has more than one reference.
    Referenced(Pfn, u32),
    /// A frame of the block is not part of the folio (R2).
    BadTail(Pfn),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeError::BadOrder(o) => write!(f, "order {o}, but the largest is {MAX_ORDER}"),
            FreeError::Outside(p) => write!(f, "{p} is outside of the zone"),
            FreeError::Misaligned(p, o) => write!(f, "{p} cannot start a block of order {o}"),
            FreeError::NeverAllocated(p) => write!(f, "{p} was never allocated"),
            FreeError::DoubleFree(p) => write!(f, "{p} is free already"),
            FreeError::NotHead(p) => write!(f, "{p} is not the first frame of its folio"),
            FreeError::WrongOrder(p, o, is) => {
                write!(f, "{p} freed as order {o}, but has order {is}")
            }
            FreeError::InUse(p, flags) => write!(f, "{p} is still in use ({flags:?})"),
            FreeError::Referenced(p, n) => write!(f, "{p} still has {n} references"),
            FreeError::BadTail(p) => write!(f, "{p} is not part of the folio it lies in"),
        }
    }
}

impl core::error::Error for FreeError {}

/// A bulk free that stopped: the frames before are free, this one and those after are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BulkFreeError {
    /// Frames freed.
    pub done: usize,
    /// Why the next one was not.
    pub why: FreeError,
}

impl fmt::Display for BulkFreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} frames: {}", self.done, self.why)
    }
}

impl core::error::Error for BulkFreeError {}

/// The right to change the free lists: exists only inside the zone's lock.
struct Held(());

/// Frames of one span and which of them are free.
pub struct Zone {
    name: &'static str,
    pub(super) table: FrameTable,
    lock: Lock<Held>,
    /// First free block of each order, `u32::MAX` for none; changed under the lock.
    pub(super) heads: [AtomicU32; ORDERS],
    /// Blocks on each list; changed under the lock, read by anybody.
    pub(super) blocks: [AtomicU64; ORDERS],
    /// First frame that was never part of a block; changed under the lock.
    pub(super) bump: AtomicU64,
    end: u64,
}

impl Zone {
    /// A zone of the frames of `span`, all free. Costs the same for any size.
    pub fn new(span: FrameSpan) -> Zone {
        let table = FrameTable::new(span);
        let span = table.span();
        Zone {
            name: "zone",
            table,
            lock: Lock::new(LockClass::Zone, span.first.0 as u64, Held(())),
            heads: [const { AtomicU32::new(u32::MAX) }; ORDERS],
            blocks: [const { AtomicU64::new(0) }; ORDERS],
            bump: AtomicU64::new(span.first.0 as u64),
            end: span.first.0 as u64 + span.frames as u64,
        }
    }

    /// The same zone with a name for reports.
    pub fn named(self, name: &'static str) -> Zone {
        Zone { name, ..self }
    }
    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// The frames of the zone.
    pub fn span(&self) -> FrameSpan {
        self.table.span()
    }
    /// Whether a frame belongs to the zone.
    pub fn contains(&self, pfn: Pfn) -> bool {
        (self.span().first.0 as u64..self.end).contains(&(pfn.0 as u64))
    }
    /// Bytes of memory used for metadata.
    pub fn metadata_bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Allocates a folio of `order`: head with one reference, no flags, no owner.
    pub fn alloc<M: Machine>(&self, m: &M, order: u8) -> Result<Pfn, NoFrame> {
        let mut held = self.lock.lock(m);
        self.take(&mut held, order).ok_or_else(|| NoFrame {
            order,
            free: self.free_by_order(),
        })
    }

    /// Allocates folios of order 0 into `out`, under one lock; returns how many there were.
    pub fn alloc_bulk<M: Machine>(&self, m: &M, out: &mut [Pfn]) -> usize {
        let mut held = self.lock.lock(m);
        for (n, slot) in out.iter_mut().enumerate() {
            match self.take(&mut held, 0) {
                Some(pfn) => *slot = pfn,
                None => return n,
            }
        }
        out.len()
    }

    /// Takes a folio back. The caller holds the only reference, or has frozen the folio.
    pub fn free<M: Machine>(&self, m: &M, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        let mut held = self.lock.lock(m);
        self.check(pfn, order)?;
        self.give(&mut held, pfn, order);
        Ok(())
    }

    /// Takes folios of order 0 back, under one lock (R8).
    pub fn free_bulk<M: Machine>(&self, m: &M, pfns: &[Pfn]) -> Result<(), BulkFreeError> {
        let mut held = self.lock.lock(m);
        for (done, &pfn) in pfns.iter().enumerate() {
            self.check(pfn, 0)
                .map_err(|why| BulkFreeError { done, why })?;
            self.give(&mut held, pfn, 0);
        }
        Ok(())
    }

    /// Makes an allocated folio of `order` 2^order folios of order 0, each with one reference
    /// and no flags; an owner is passed on, page by page. Changes metadata only and takes no
    /// lock: the caller is the folio's only user.
    pub fn split_allocated(&self, pfn: Pfn, order: u8) -> Result<(), FreeError> {
        self.check(pfn, order)?;
        let owner = self.table.get(pfn).and_then(|m| m.owner());
        for i in 0..order_pages(order) {
            if let Some(meta) = self.table.get(pfn.add(i)) {
                meta.set_folio_head(0);
                if let Some((space, page)) = owner {
                    meta.set_owner(space, page.add(i as u64));
                }
            }
        }
        Ok(())
    }

    /// Free pages, never used ones included.
    pub fn free_pages(&self) -> u64 {
        let listed: u64 = (0..ORDERS).map(|o| self.blocks[o].load(Relaxed) << o).sum();
        listed + self.end.saturating_sub(self.bump.load(Acquire))
    }

    /// Free blocks of each order, never used ones included.
    pub fn free_by_order(&self) -> [u64; ORDERS] {
        let mut free = [0; ORDERS];
        for (n, blocks) in free.iter_mut().zip(&self.blocks) {
            *n = blocks.load(Relaxed);
        }
        let mut at = self.bump.load(Acquire);
        while let Some(order) = self.untouched(at) {
            let n = if order == MAX_ORDER {
                (self.end - at) >> MAX_ORDER
            } else {
                1
            };
            free[order as usize] += n;
            at += n << order;
        }
        free
    }

    /// Order of the never used block at `at`: the largest that is aligned and fits.
    fn untouched(&self, at: u64) -> Option<u8> {
        let left = self.end.checked_sub(at).filter(|n| *n > 0)?;
        Some((left.ilog2().min(at.trailing_zeros()) as u8).min(MAX_ORDER))
    }

    /// A folio of `order`, from the lists or from beyond the bump mark.
    fn take(&self, held: &mut Held, order: u8) -> Option<Pfn> {
        if order > MAX_ORDER {
            return None;
        }
        let mut from = loop {
            let listed = (order..=MAX_ORDER).find(|o| self.blocks[*o as usize].load(Relaxed) > 0);
            match listed {
                Some(o) => break o,
                None => self.pass_bump(held)?,
            }
        };
        let pfn = link_get(&self.heads[from as usize])?;
        self.unlink(held, pfn, from)?;
        while from > order {
            from -= 1;
            self.link(held, pfn.add(order_pages(from)), from);
        }
        self.set_tails(pfn, order, Kind::FolioTail);
        self.table.get(pfn)?.set_folio_head(order);
        Some(pfn)
    }

    /// Puts the next never used block on its list; `None` if there is none, or no memory for
    /// its metadata.
    fn pass_bump(&self, held: &mut Held) -> Option<()> {
        let at = self.bump.load(Relaxed);
        let order = self.untouched(at)?;
        let pfn = Pfn(at as u32);
        for i in 0..order_pages(order) {
            self.table.touch(pfn.add(i))?;
        }
        for i in 0..order_pages(order) {
            if let Some(meta) = self.table.touch(pfn.add(i)) {
                meta.set_kind(Kind::FreeTail, 0);
            }
        }
        self.link(held, pfn, order);
        self.bump.store(at + order_pages(order) as u64, Release);
        Some(())
    }

    /// The release check (R2, R3): every frame of the block is looked at before any changes.
    fn check(&self, pfn: Pfn, order: u8) -> Result<(), FreeError> {
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
        match (meta.kind(), meta.folio_order()) {
            (Kind::FolioHead, Some(is)) if is == order => {}
            (Kind::FolioHead, is) => {
                return Err(FreeError::WrongOrder(pfn, order, is.unwrap_or(0)));
            }
            (Kind::FolioTail, _) => return Err(FreeError::NotHead(pfn)),
            (Kind::FreeHead | Kind::FreeTail, _) => return Err(FreeError::DoubleFree(pfn)),
            (Kind::Untouched, _) => return Err(FreeError::NeverAllocated(pfn)),
        }
        let in_use = meta.flags().and(Flags::IN_USE);
        if !in_use.is_empty() {
            return Err(FreeError::InUse(pfn, in_use));
        }
        if meta.refs() > 1 {
            return Err(FreeError::Referenced(pfn, meta.refs()));
        }
        for i in 1..order_pages(order) {
            let tail = pfn.add(i);
            if self.table.get(tail).map(FrameMeta::kind) != Some(Kind::FolioTail) {
                return Err(FreeError::BadTail(tail));
            }
        }
        Ok(())
    }

    /// Takes a checked block back and merges it with its free buddies.
    fn give(&self, held: &mut Held, mut pfn: Pfn, mut order: u8) {
        self.set_tails(pfn, order, Kind::FreeTail);
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ order_pages(order));
            let free = self.table.get(buddy).and_then(|m| m.free_order()) == Some(order);
            if !free || self.unlink(held, buddy, order).is_none() {
                break;
            }
            let upper = Pfn(pfn.0.max(buddy.0));
            if let Some(meta) = self.table.get(upper) {
                meta.set_kind(Kind::FreeTail, 0);
            }
            pfn = Pfn(pfn.0.min(buddy.0));
            order += 1;
        }
        self.link(held, pfn, order);
    }

    fn set_tails(&self, pfn: Pfn, order: u8, kind: Kind) {
        for i in 1..order_pages(order) {
            if let Some(meta) = self.table.get(pfn.add(i)) {
                // A tail says its folio's order, so that its head can be found from it.
                meta.set_kind(kind, if kind == Kind::FolioTail { order } else { 0 });
            }
        }
    }

    /// The head of the folio that a frame belongs to; the frame itself if it is a head or
    /// belongs to none.
    pub fn head_of(&self, pfn: Pfn) -> Pfn {
        match self.table.get(pfn).and_then(FrameMeta::tail_order) {
            Some(order) => Pfn(pfn.0 & !(order_pages(order) - 1)),
            None => pfn,
        }
    }

    /// Puts a block at the head of its list.
    fn link(&self, _held: &mut Held, pfn: Pfn, order: u8) {
        let head = &self.heads[order as usize];
        let after = link_get(head);
        let Some(meta) = self.table.get(pfn) else {
            debug_assert!(false, "{pfn} has no metadata");
            return;
        };
        meta.set_free_head(order);
        meta.clear_links();
        link_set(meta.links(false).1, after);
        if let Some(next) = after.and_then(|p| self.table.get(p)) {
            link_set(next.links(false).0, Some(pfn));
        }
        link_set(head, Some(pfn));
        self.blocks[order as usize].fetch_add(1, Relaxed);
    }

    /// Takes a block off its list; `None` if it is not the head of a free block of `order`.
    fn unlink(&self, _held: &mut Held, pfn: Pfn, order: u8) -> Option<()> {
        let meta = self.table.get(pfn)?;
        if meta.free_order() != Some(order) {
            debug_assert!(false, "{pfn} is on the list of order {order}: {meta:?}");
            return None;
        }
        let (prev, next) = meta.links(false);
        let (before, after) = (link_get(prev), link_get(next));
        match before.and_then(|p| self.table.get(p)) {
            Some(b) => link_set(b.links(false).1, after),
            None => link_set(&self.heads[order as usize], after),
        }
        if let Some(a) = after.and_then(|p| self.table.get(p)) {
            link_set(a.links(false).0, before);
        }
        meta.clear_links();
        self.blocks[order as usize].fetch_sub(1, Relaxed);
        Some(())
    }
}

impl Frames for Zone {
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        self.table.get(pfn)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, span, free) = (self.name, self.span(), self.free_pages());
        write!(f, "Zone {name}: {free} of {} pages free, ", span.frames)?;
        write!(
            f,
            "from {}; by order {:?}",
            span.first,
            self.free_by_order()
        )
    }
}
