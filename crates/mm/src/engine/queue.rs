//! The deferred split queue: what the shrinker looks at when memory runs short.
//!
//! Every huge page is on it from its birth, as it may turn out underused; every large folio,
//! of whichever order, since a part of it was unmapped and the rest stayed. The second is a
//! state of its own: it is set also when the folio is queued already, does not revert while the
//! folio exists, and ends with its split or its end. Folios of order 1 do not exist, single
//! pages have no parts: neither is ever queued.
//!
//! *Young* is what joined since the last pass of the shrinker ended. A program is still filling
//! such a page as a rule, so what it holds now says little about what it will hold: while nobody
//! waits for memory it sits out a pass. Folios of which a part is unmapped join at the old end:
//! what they give is certain.

use crate::engine::Engine;
use crate::engine::folio::order_of;
use crate::env::Env;
use crate::frame::{Flags, FrameLookup, Link, List};
use crate::sizes::LEAST_ORDER;
use crate::stat::{Item, SizeItem};
use crate::units::{BLOCK_ORDER, Pfn};

/// The queue, oldest at the tail.
pub struct SplitQueue {
    list: List,
    /// The youngest folio that was there when the last pass ended, or the next older one.
    old: Option<Pfn>,
}

impl SplitQueue {
    /// An empty queue.
    pub const fn new() -> SplitQueue {
        SplitQueue {
            list: List::new(Link::Queue),
            old: None,
        }
    }
    /// Folios on it.
    pub fn len(&self) -> u64 {
        self.list.folios()
    }
    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The list, for checks.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// The first of the folios that are not young.
    pub fn old(&self) -> Option<Pfn> {
        self.old
    }

    fn remove<F: FrameLookup + ?Sized>(&mut self, frames: &F, pfn: Pfn) {
        if self.old == Some(pfn) {
            self.old = self.list.after(frames, pfn);
        }
        self.list.remove(frames, pfn);
    }

    fn push_old<F: FrameLookup + ?Sized>(&mut self, frames: &F, pfn: Pfn) {
        if self.list.push_tail(frames, pfn) && self.old.is_none() {
            self.old = Some(pfn);
        }
    }
}

impl Default for SplitQueue {
    fn default() -> SplitQueue {
        SplitQueue::new()
    }
}

impl<E: Env> Engine<E> {
    /// Puts a new huge page on the queue, unless `shrink_underused` is off.
    pub(crate) fn queue_new(&self, pfn: Pfn) {
        if self.tunables().shrink_underused {
            self.requeue(pfn);
        }
    }

    /// Puts a folio on the queue, if it is not there.
    pub(crate) fn requeue(&self, pfn: Pfn) {
        let mut queue = self.folios.queue.lock(self.machine());
        let meta = self.meta(pfn);
        if !meta.has(Flags::QUEUED) {
            queue.list.push_head(self, pfn);
        }
    }

    /// Says that a part of a folio was unmapped while the rest stays: marks and queues it. The
    /// caller has a reference.
    pub(crate) fn partially_mapped(&self, pfn: Pfn) {
        let meta = self.meta(pfn);
        let order = order_of(meta);
        if order < LEAST_ORDER || meta.has(Flags::PARTIAL | Flags::QUEUED) {
            return;
        }
        let mut queue = self.folios.queue.lock(self.machine());
        if !meta.set(Flags::PARTIAL).has(Flags::PARTIAL) {
            let stats = self.stats();
            stats.add(Item::NrAnonPartiallyMapped, 1);
            stats.add_size(order, SizeItem::NrAnonPartiallyMapped, 1);
            stats.add_size(order, SizeItem::SplitDeferred, 1);
            if order == BLOCK_ORDER {
                stats.add(Item::ThpDeferredSplitPage, 1);
            }
        }
        if !meta.has(Flags::QUEUED) {
            queue.push_old(self, pfn);
        }
    }

    /// Ends the state of a folio that is split, or is at its end.
    pub(crate) fn no_longer_partial(&self, pfn: Pfn) {
        let meta = self.meta(pfn);
        if meta.has(Flags::PARTIAL) {
            meta.clear(Flags::PARTIAL);
            let gauge = SizeItem::NrAnonPartiallyMapped;
            self.stats().sub(Item::NrAnonPartiallyMapped, 1);
            self.stats().sub_size(order_of(meta), gauge, 1);
        }
    }

    /// Takes a folio off the queue, if it is there.
    pub(crate) fn unqueue(&self, pfn: Pfn) {
        // The flag is only set by who holds a reference: a folio that is being freed without it
        // can skip the lock (R88).
        let meta = self.meta(pfn);
        if !meta.has(Flags::QUEUED) {
            return;
        }
        let mut queue = self.folios.queue.lock(self.machine());
        if meta.has(Flags::QUEUED) {
            queue.remove(self, pfn);
        }
    }

    /// Takes the oldest folio off the queue, with one more reference; a young one only if asked.
    pub(crate) fn dequeue(&self, young: bool) -> Option<Pfn> {
        let mut queue = self.folios.queue.lock(self.machine());
        loop {
            let oldest = queue.list.tail();
            let pfn = oldest.filter(|_| young || queue.old.is_some())?;
            queue.remove(self, pfn);
            let meta = self.meta(pfn);
            if meta.try_get() {
                return Some(pfn);
            }
        }
    }

    /// A pass of the shrinker has ended: who is on the queue is young no more.
    pub(crate) fn grow_old(&self) {
        let mut queue = self.folios.queue.lock(self.machine());
        queue.old = queue.list.head();
    }

    /// Folios on the queue now.
    pub fn queued(&self) -> u64 {
        self.folios.queue.lock(self.machine()).len()
    }
}
