//! Page capture: what a direct reclaimer frees stays with it until it has looked whether the
//! block it wants is among it (Whitcroft 2008).
//!
//! Without it, whatever reclaim frees is on the free lists at once, and others take it before
//! it can merge. With it, a frame that the reclaimer frees goes to a list of its own, merges
//! there with captured and with free buddies, and frames that others free next to it join.
//! After each round the reclaimer looks at its list: a block large enough is taken, the rest
//! goes back.
//!
//! **Who captures.** A list belongs to a CPU, not to a handle that every release would have to
//! be given: frames are released deep inside of reclaim (by the splitter, with the last
//! reference, by a batch), and a release that did not know the list would lose what it frees
//! (C14, R144). So the one function through which blocks come back under the zone's lock asks
//! whether this CPU captures. The CPU is a hint, as everywhere: if the reclaimer is moved, it
//! frees past its list and gains less; if somebody else runs on its CPU, his frames join,
//! which is what frames of others are meant to do anyway. Correctness does not depend on it.
//!
//! A list lives for one pass of one reclaimer over one zone: [`Capture`] is that pass, and
//! when it is dropped, nothing stays captured.

use super::mobility::Mobility;
use crate::frame::FrameLookup;
use crate::frame::buddy::Held;
use crate::frame::meta::{FrameMeta, Head, Kind, link_get, link_set};
use crate::frame::zone::Zone;
use crate::machine::Machine;
use crate::units::{MAX_ORDER, Pfn, order_pages};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// How capture works; the defaults are the design's, the rest is for experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturePolicy {
    /// The switch (R27).
    pub enabled: bool,
    /// Capture serves requests above this order; those up to it appear in numbers anyway
    /// (R10, C13). 3: the kernel's costly order.
    pub above: u8,
    /// Captured frames merge with free buddies (R14).
    pub absorb_free: bool,
    /// Frames that others free next to a captured buddy join it (R15).
    pub from_others: bool,
}

impl CapturePolicy {
    /// No capture.
    pub const OFF: CapturePolicy = CapturePolicy {
        enabled: false,
        ..CapturePolicy::ON
    };
    /// Capture as designed.
    pub const ON: CapturePolicy = CapturePolicy {
        enabled: true,
        above: 3,
        absorb_free: true,
        from_others: true,
    };
}

impl Default for CapturePolicy {
    fn default() -> CapturePolicy {
        CapturePolicy::ON
    }
}

/// What capture has done in a zone. `own + absorbed + joined = now + taken + returned`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptureStats {
    /// Passes begun.
    pub begun: u64,
    /// Pages captured now.
    pub now: u64,
    /// The most pages ever captured at a time.
    pub peak: u64,
    /// Pages that reclaimers freed into their own lists.
    pub own: u64,
    /// Free pages pulled in from the free lists.
    pub absorbed: u64,
    /// Pages freed by others, or given back by another reclaimer, that joined.
    pub joined: u64,
    /// Pages that changed from one reclaimer's list to another's.
    pub handed_over: u64,
    /// Blocks taken.
    pub successes: u64,
    /// Blocks found large enough, but refused by a watermark or a cpuset (R22).
    pub refused: u64,
    /// Pages taken.
    pub taken: u64,
    /// Pages returned.
    pub returned: u64,
}

/// Who freed a block that is captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::frame) enum FreedBy {
    /// The owner of the list.
    Reclaimer,
    /// Somebody else, next to a captured buddy.
    Others,
}

/// One reclaimer's list.
#[derive(Default)]
struct List {
    /// A reclaimer owns it.
    active: bool,
    /// It takes blocks: not while it is being emptied, nor after a success (R23).
    open: bool,
    /// A block of the wanted order is on it: no more is needed (C19).
    satisfied: bool,
    wanted: u8,
    head: Option<Pfn>,
    tail: Option<Pfn>,
    pages: u64,
}

impl List {
    fn captures(&self) -> bool {
        self.active && self.open && !self.satisfied
    }
}

/// All lists of a zone, and what they have done; inside the zone's lock.
pub(in crate::frame) struct Captures {
    lists: Vec<List>,
    policy: CapturePolicy,
    stats: CaptureStats,
}

impl Captures {
    pub(in crate::frame) fn new(lists: usize) -> Captures {
        let mut all = Vec::new();
        if all.try_reserve_exact(lists).is_ok() {
            all.resize_with(lists, List::default);
        }
        Captures {
            lists: all,
            policy: CapturePolicy::ON,
            stats: CaptureStats::default(),
        }
    }

    /// Whether a block given back next to a block of this list joins it.
    pub(in crate::frame) fn joins(&self, list: usize) -> bool {
        self.policy.from_others && self.lists.get(list).is_some_and(List::captures)
    }

    /// Whether a list may take a block of `order` from another one: not the block that its
    /// owner waits for.
    fn yields(&self, list: usize, order: u8) -> bool {
        self.lists.get(list).is_some_and(|l| order < l.wanted)
    }

    fn changed(&mut self, more: u64, fewer: u64) {
        self.stats.now = self.stats.now + more - fewer.min(self.stats.now + more);
        self.stats.peak = self.stats.peak.max(self.stats.now);
    }
}

impl Held {
    /// Whether what this CPU frees goes to its list.
    pub(in crate::frame) fn captures_own(&self, cpu: usize) -> bool {
        self.captures.lists.get(cpu).is_some_and(List::captures)
    }
}

impl Zone {
    /// Sets how capture works from now on; passes that have begun go on as they are.
    pub fn set_capture<M: Machine>(&self, m: &M, policy: CapturePolicy) {
        self.lock.lock(m).captures.policy = policy;
    }
    /// How capture works.
    pub fn capture_policy<M: Machine>(&self, m: &M) -> CapturePolicy {
        self.lock.lock(m).captures.policy
    }
    /// What capture has done.
    pub fn capture_stats<M: Machine>(&self, m: &M) -> CaptureStats {
        self.lock.lock(m).captures.stats
    }

    /// Begins a pass of direct reclaim for a block of `order`: what this CPU frees from now on
    /// is captured. `None`: no capture for this order, it is switched off, or this CPU
    /// captures already. Only for who reclaims because it waits for the block (R11).
    pub fn begin_capture<'a, M: Machine>(&'a self, m: &'a M, order: u8) -> Option<Capture<'a, M>> {
        let mut held = self.lock.lock(m);
        let cpu = m.this_cpu();
        let policy = held.captures.policy;
        if !policy.enabled || order <= policy.above || order > MAX_ORDER {
            return None;
        }
        let list = held.captures.lists.get_mut(cpu).filter(|l| !l.active)?;
        *list = List {
            active: true,
            open: true,
            wanted: order,
            ..List::default()
        };
        held.captures.stats.begun += 1;
        self.capturing.fetch_add(1, Release);
        Some(Capture {
            zone: self,
            machine: m,
            list: cpu,
            order,
        })
    }

    /// Puts a block that the allocator owns on a capture list, merged with what it can be
    /// merged with. Its pages are in no counter of free pages (R18).
    pub(in crate::frame) fn capture(
        &self,
        held: &mut Held,
        list: usize,
        mut pfn: Pfn,
        mut order: u8,
        by: FreedBy,
    ) {
        let brought = order_pages(order) as u64;
        let mut absorbed = 0;
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ order_pages(order));
            let pages = order_pages(order) as u64;
            match self.table.get(buddy).and_then(FrameMeta::head) {
                Some(Head::Free(o)) if o == order && held.captures.policy.absorb_free => {
                    if self.unlink(held, buddy, order).is_none() {
                        break;
                    }
                    absorbed += pages;
                }
                Some(Head::Captured(o, from)) if o == order => {
                    if from != list && !held.captures.yields(from, order) {
                        break;
                    }
                    self.uncapture(held, from, buddy, order);
                    if from != list {
                        held.captures.stats.handed_over += pages;
                    }
                }
                _ => break,
            }
            pfn = self.merge(pfn, buddy);
            order += 1;
        }
        let captures = &mut held.captures;
        match by {
            FreedBy::Reclaimer => captures.stats.own += brought,
            FreedBy::Others => captures.stats.joined += brought,
        }
        captures.stats.absorbed += absorbed;
        self.push(held, list, pfn, order);
    }

    /// Adds a block to the head of a list.
    fn push(&self, held: &mut Held, list: usize, pfn: Pfn, order: u8) {
        let captures = &mut held.captures;
        let (Some(l), Some(meta)) = (captures.lists.get_mut(list), self.table.get(pfn)) else {
            debug_assert!(false, "{pfn} captured by nobody");
            return;
        };
        let pages = order_pages(order) as u64;
        meta.set_captured(order, list);
        let (prev, next) = meta.links(false);
        link_set(prev, None);
        link_set(next, l.head);
        match l.head.and_then(|p| self.table.get(p)) {
            Some(after) => link_set(after.links(false).0, Some(pfn)),
            None => l.tail = Some(pfn),
        }
        l.head = Some(pfn);
        l.pages += pages;
        l.satisfied |= order >= l.wanted;
        captures.changed(pages, 0);
        self.counts.captured.store(captures.stats.now, Relaxed);
    }

    /// Takes a block off a list; it belongs to nobody after (R17).
    fn uncapture(&self, held: &mut Held, list: usize, pfn: Pfn, order: u8) {
        let captures = &mut held.captures;
        let (Some(l), Some(meta)) = (captures.lists.get_mut(list), self.table.get(pfn)) else {
            debug_assert!(false, "{pfn} captured by nobody");
            return;
        };
        let pages = order_pages(order) as u64;
        let (prev, next) = meta.links(false);
        let (before, after) = (link_get(prev), link_get(next));
        match before.and_then(|p| self.table.get(p)) {
            Some(b) => link_set(b.links(false).1, after),
            None => l.head = after,
        }
        match after.and_then(|p| self.table.get(p)) {
            Some(a) => link_set(a.links(false).0, before),
            None => l.tail = before,
        }
        link_set(prev, None);
        link_set(next, None);
        meta.set_kind(Kind::Cached, order);
        l.pages -= pages;
        captures.changed(0, pages);
        self.counts.captured.store(captures.stats.now, Relaxed);
    }

    /// Empties a list, oldest block first: keeps the first part of a block that is large
    /// enough, and gives all else back (R19, R20, R21). Blocks of the same list do not merge
    /// as captured ones meanwhile, but as free ones, as they come back.
    fn empty(&self, held: &mut Held, list: usize, wanted: Option<u8>) -> Option<Pfn> {
        held.captures.lists.get_mut(list)?.open = false;
        let mut prize = None;
        while let Some(pfn) = held.captures.lists.get(list)?.tail {
            let order = match self.table.get(pfn).and_then(FrameMeta::head) {
                Some(Head::Captured(order, of)) if of == list => order,
                other => {
                    debug_assert!(false, "{pfn} on capture list {list}: {other:?}");
                    break;
                }
            };
            self.uncapture(held, list, pfn, order);
            let pages = order_pages(order) as u64;
            match wanted.filter(|&w| prize.is_none() && order >= w) {
                Some(wanted) => {
                    let mut from = order;
                    while from > wanted {
                        from -= 1;
                        let rest = pfn.add(order_pages(from));
                        if let Some(meta) = self.table.get(rest) {
                            meta.set_kind(Kind::Cached, from);
                        }
                        self.give(held, rest, from);
                    }
                    if let Some(meta) = self.table.get(pfn) {
                        meta.set_kind(Kind::Cached, wanted);
                    }
                    held.captures.stats.returned += pages - order_pages(wanted) as u64;
                    prize = Some(pfn);
                }
                None => {
                    held.captures.stats.returned += pages;
                    self.give(held, pfn, order);
                }
            }
        }
        let l = held.captures.lists.get_mut(list)?;
        l.satisfied = false;
        prize
    }
}

/// A pass of direct reclaim over a zone, and the blocks it captures. Dropping it gives all of
/// them back.
#[must_use = "capture ends when this is dropped"]
pub struct Capture<'a, M: Machine> {
    zone: &'a Zone,
    machine: &'a M,
    list: usize,
    order: u8,
}

impl<M: Machine> Capture<'_, M> {
    /// After a round of reclaim: empties the list, and takes the block that was wanted if it
    /// was there and `permit` says yes. `permit` is asked under the zone's lock, with the rest
    /// given back; it must only read counters (R7). After a success nothing more is captured.
    pub fn consult(
        &mut self,
        mobility: Mobility,
        permit: impl FnOnce(&Zone) -> bool,
    ) -> Option<Pfn> {
        let (zone, pages) = (self.zone, order_pages(self.order) as u64);
        let mut held = zone.lock.lock(self.machine);
        let prize = zone.empty(&mut held, self.list, Some(self.order));
        let taken = match prize {
            Some(pfn) if permit(zone) => {
                held.captures.stats.successes += 1;
                held.captures.stats.taken += pages;
                zone.set_pageblocks_of(pfn, self.order, mobility);
                zone.count(self.machine.this_cpu(), pages, 0);
                Some(pfn)
            }
            Some(pfn) => {
                held.captures.stats.refused += 1;
                held.captures.stats.returned += pages;
                zone.give(&mut held, pfn, self.order);
                None
            }
            None => None,
        };
        if let (None, Some(list)) = (taken, held.captures.lists.get_mut(self.list)) {
            list.open = true;
        }
        drop(held);
        let pfn = taken?;
        zone.prepare(pfn, self.order, mobility);
        Some(pfn)
    }

    /// The order that is wanted.
    pub fn order(&self) -> u8 {
        self.order
    }

    /// The zone.
    pub fn zone(&self) -> &Zone {
        self.zone
    }

    /// Pages on this list now.
    pub fn pages(&self) -> u64 {
        let held = self.zone.lock.lock(self.machine);
        held.captures.lists.get(self.list).map_or(0, |l| l.pages)
    }
}

impl<M: Machine> Drop for Capture<'_, M> {
    fn drop(&mut self) {
        let mut held = self.zone.lock.lock(self.machine);
        self.zone.empty(&mut held, self.list, None);
        if let Some(list) = held.captures.lists.get_mut(self.list) {
            *list = List::default();
        }
        self.zone.capturing.fetch_sub(1, Release);
    }
}

impl<M: Machine> fmt::Debug for Capture<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture(order {}, list {})", self.order, self.list)
    }
}
