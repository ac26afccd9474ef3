//! What a service tells about its process: gauges, and the counters of its manager.

use core::sync::atomic::Ordering::Relaxed;

use deckle_mm::{Item, SIZE_ORDERS, SizeItem, Stats};

use crate::attach::Group;
use crate::layout::Line;
use crate::line::LineId;

/// What a service publishes about its process from time to time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gauges {
    /// Pages resident: mapped and inactive.
    pub resident: u64,
    /// Of these, inactive (resident but unmapped).
    pub inactive: u64,
    /// Zero-filled subpages that a split would free, as far as known.
    pub droppable: u64,
    /// Pages that the program sees as its own but that are in the store (logical swap).
    pub swapped: u64,
    /// RAM that the store uses, pages.
    pub stored_pages: u64,
    /// Bytes of compressed data in the store.
    pub stored_bytes: u64,
    /// Age of the oldest inactive folio, in reclaim rounds.
    pub oldest_inactive: u64,
    /// Pages that come back for each hundred that are evicted (see `Mm::refault_percent`).
    pub refaults: u64,
    /// Anonymous memory of the process that is not managed (stacks, .bss, shared), pages.
    pub unmanaged_anon: u64,
}

/// Whether `item` is a gauge, which ends with its process, and not a counter, which stays.
pub fn is_gauge(item: Item) -> bool {
    matches!(
        item,
        Item::NrAnon
            | Item::NrInactive
            | Item::NrThp
            | Item::NrZero
            | Item::NrSwapped
            | Item::NrSwapcached
            | Item::NrShared
            | Item::NrAnonPartiallyMapped
            | Item::NrThpWaste
    )
}

/// The same of what is counted for each size.
fn is_size_gauge(item: SizeItem) -> bool {
    matches!(item, SizeItem::NrAnon | SizeItem::NrAnonPartiallyMapped)
}

impl Group {
    /// Publishes gauges and counters of a process. Called by its service a few times a second
    /// and at its end; what was published survives the process.
    pub fn publish(&self, id: LineId, g: &Gauges, stats: &Stats) {
        let Some(line) = self.line(id) else { return };
        line.resident.store(level(g.resident), Relaxed);
        line.inactive.store(level(g.inactive), Relaxed);
        line.droppable.store(level(g.droppable), Relaxed);
        line.swapped.store(level(g.swapped), Relaxed);
        line.stored_pages.store(level(g.stored_pages), Relaxed);
        line.stored_bytes.store(level(g.stored_bytes), Relaxed);
        line.oldest_inactive.store(g.oldest_inactive, Relaxed);
        line.refaults.store(g.refaults, Relaxed);
        line.unmanaged_anon.store(level(g.unmanaged_anon), Relaxed);
        for item in Item::ALL {
            let n = stats.get(*item);
            let n = if is_gauge(*item) { level(n) } else { n };
            line.counters[*item as usize].store(n, Relaxed);
        }
        for (item, of) in SizeItem::ALL.iter().zip(&line.sizes) {
            for (order, to) in SIZE_ORDERS.zip(of) {
                let n = stats.size(order, *item);
                let n = if is_size_gauge(*item) { level(n) } else { n };
                to.store(n, Relaxed);
            }
        }
        let sum = self.gauges();
        let page = self.page();
        page.resident_peak.fetch_max(sum.resident, Relaxed);
        page.stored_bytes_peak.fetch_max(sum.stored_bytes, Relaxed);
        page.swapped_peak.fetch_max(sum.swapped, Relaxed);
        page.unmanaged_anon_peak
            .fetch_max(sum.unmanaged_anon, Relaxed);
    }

    /// A counter (dead and live processes) or a gauge (live ones) of the whole group.
    pub fn counter(&self, item: Item) -> u64 {
        let i = item as usize;
        let live = |l: &Line| l.counters[i].load(Relaxed);
        self.lines()
            .iter()
            .map(live)
            .fold(self.page().dead[i].load(Relaxed), u64::saturating_add)
    }

    /// The same of the folios of `order`; 0 for an order that is not counted apart.
    pub fn size_counter(&self, order: u8, item: SizeItem) -> u64 {
        let Some(of) = SIZE_ORDERS.clone().position(|o| o == order) else {
            return 0;
        };
        let live = |l: &Line| l.sizes[item as usize][of].load(Relaxed);
        let dead = self.page().dead_sizes[item as usize][of].load(Relaxed);
        self.lines()
            .iter()
            .map(live)
            .fold(dead, u64::saturating_add)
    }

    /// Moves the counters of a line whose process is gone to the totals of the dead.
    pub(crate) fn count_as_dead(&self, line: &Line) {
        let page = self.page();
        for item in Item::ALL {
            let n = line.counters[*item as usize].swap(0, Relaxed);
            if !is_gauge(*item) {
                page.dead[*item as usize].fetch_add(n, Relaxed);
            }
        }
        for item in SizeItem::ALL {
            let from = &line.sizes[*item as usize];
            for (from, to) in from.iter().zip(&page.dead_sizes[*item as usize]) {
                let n = from.swap(0, Relaxed);
                if !is_size_gauge(*item) {
                    to.fetch_add(n, Relaxed);
                }
            }
        }
    }

    /// Gauges summed over the group; `oldest_inactive` and `refaults` are the largest.
    pub fn gauges(&self) -> Gauges {
        self.processes()
            .fold(Gauges::default(), |sum, p| sum.plus(&p.gauges))
    }

    /// Peaks of the sums: those of resident, swapped and stored bytes and of unmanaged memory.
    pub fn peak_gauges(&self) -> Gauges {
        let page = self.page();
        Gauges {
            resident: page.resident_peak.load(Relaxed),
            swapped: page.swapped_peak.load(Relaxed),
            stored_bytes: page.stored_bytes_peak.load(Relaxed),
            unmanaged_anon: page.unmanaged_anon_peak.load(Relaxed),
            ..Gauges::default()
        }
    }

    /// Raises the peak of unmanaged anonymous memory, pages: for a supervisor that measures it.
    pub fn note_unmanaged_anon(&self, pages: u64) {
        self.page().unmanaged_anon_peak.fetch_max(pages, Relaxed);
    }
}

/// A gauge without its passing dips below zero: it is read while others change it, and what
/// one takes off may be seen before what another put on.
fn level(n: u64) -> u64 {
    if n > i64::MAX as u64 { 0 } else { n }
}

impl Gauges {
    fn plus(&self, o: &Gauges) -> Gauges {
        Gauges {
            resident: self.resident.saturating_add(o.resident),
            inactive: self.inactive.saturating_add(o.inactive),
            droppable: self.droppable.saturating_add(o.droppable),
            swapped: self.swapped.saturating_add(o.swapped),
            stored_pages: self.stored_pages.saturating_add(o.stored_pages),
            stored_bytes: self.stored_bytes.saturating_add(o.stored_bytes),
            oldest_inactive: self.oldest_inactive.max(o.oldest_inactive),
            refaults: self.refaults.max(o.refaults),
            unmanaged_anon: self.unmanaged_anon.saturating_add(o.unmanaged_anon),
        }
    }
}
