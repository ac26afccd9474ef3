//! The deferred split queue: every huge page from its birth, so that the shrinker can look
//! for underused ones when memory runs short.

use crate::env::Env;
use crate::frame::{Flags, Link, List};
use crate::mm::Mm;
use crate::units::Pfn;

/// The queue, oldest at the tail.
pub struct SplitQueue(List);

impl SplitQueue {
    /// An empty queue.
    pub const fn new() -> SplitQueue {
        SplitQueue(List::new(Link::Queue))
    }
    /// Folios on it.
    pub fn len(&self) -> u64 {
        self.0.folios()
    }
    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The list, for checks.
    pub fn list(&self) -> &List {
        &self.0
    }
}

impl Default for SplitQueue {
    fn default() -> SplitQueue {
        SplitQueue::new()
    }
}

impl<E: Env> Mm<E> {
    /// Puts a new huge page on the queue, unless `shrink_underused` is off.
    pub(crate) fn queue_new(&self, pfn: Pfn) {
        if self.tunables().shrink_underused {
            self.requeue(pfn);
        }
    }

    /// Puts a huge page on the queue, if it is not there.
    pub(crate) fn requeue(&self, pfn: Pfn) {
        let mut queue = self.queue.lock(self.machine());
        let meta = self.meta(pfn);
        if !meta.has(Flags::QUEUED) {
            queue.0.push_head(self, pfn);
        }
    }

    /// Takes a folio off the queue, if it is there.
    pub(crate) fn unqueue(&self, pfn: Pfn) {
        // The flag is only set for huge folios, and only by who holds a reference: a folio
        // that is being freed without it can skip the lock (R88).
        let meta = self.meta(pfn);
        if !meta.has(Flags::QUEUED) {
            return;
        }
        let mut queue = self.queue.lock(self.machine());
        if meta.has(Flags::QUEUED) {
            queue.0.remove(self, pfn);
        }
    }

    /// Takes the oldest folio off the queue, with one more reference.
    pub(crate) fn dequeue(&self) -> Option<Pfn> {
        let mut queue = self.queue.lock(self.machine());
        loop {
            let pfn = queue.0.pop_tail(self)?;
            let meta = self.meta(pfn);
            if meta.try_get() {
                return Some(pfn);
            }
        }
    }

    /// Huge pages on the queue now.
    pub fn queued(&self) -> u64 {
        self.queue.lock(self.machine()).len()
    }
}
