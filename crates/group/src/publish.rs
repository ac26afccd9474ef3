//! What a service tells about its process: gauges, and the counters of its manager.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use deckle_mm::{Item, SIZE_ORDERS, SizeItem, Stats};

use crate::attach::Group;
use crate::layout::{Line, Words, load, store};
use crate::line::LineId;

macro_rules! gauges {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a service publishes about its process from time to time.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Gauges { $($(#[$doc])* pub $name: u64,)* }

        impl Gauges {
            /// How many there are.
            pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();

            /// In the order of the page.
            fn words(&self) -> [u64; Gauges::COUNT] {
                [$(self.$name),*]
            }

            fn of([$($name),*]: [u64; Gauges::COUNT]) -> Gauges {
                Gauges { $($name),* }
            }

            /// Those that the page holds.
            pub(crate) fn read(words: &Words<{ Gauges::COUNT }>) -> Gauges {
                Gauges::of(load(words))
            }
        }
    };
}

gauges! {
    /// Pages mapped.
    resident,
    /// Pages resident but unmapped.
    inactive,
    /// Zero-filled subpages that a split would free, as far as known.
    droppable,
    /// Pages that the program sees as its own but that are in the store (logical swap).
    swapped,
    /// RAM that the store uses, pages.
    stored_pages,
    /// Bytes of compressed data in the store.
    stored_bytes,
    /// Pages that are in a file.
    filed,
    /// What they take there, pages.
    file_pages,
    /// Age of the oldest inactive folio, in reclaim rounds.
    oldest_inactive,
    /// Pages that come back for each hundred that are evicted (see `Mm::refault_percent`).
    refaults,
    /// Anonymous memory of the process that is not managed (stacks, .bss, shared), pages.
    unmanaged_anon,
}

/// Whether `item` is a gauge, which ends with its process, and not a counter, which stays.
pub fn is_gauge(item: Item) -> bool {
    item.name().starts_with("nr_")
}

impl Group {
    /// Publishes gauges and counters of a process. Called by its service a few times a second
    /// and at its end; what was published survives the process.
    pub fn publish(&self, id: LineId, g: &Gauges, stats: &Stats) {
        let Some(line) = self.line(id) else { return };
        store(&line.gauges, g.words().map(level));
        for item in Item::ALL {
            line.counters[*item as usize].store(level(stats.get(*item)), Relaxed);
        }
        for (item, of) in SizeItem::ALL.iter().zip(&line.sizes) {
            for (order, to) in SIZE_ORDERS.zip(of) {
                to.store(level(stats.size(order, *item)), Relaxed);
            }
        }
        self.raise_peaks(&self.gauges());
    }

    fn raise_peaks(&self, sums: &Gauges) {
        for (peak, sum) in self.page.peaks.iter().zip(sums.words()) {
            peak.fetch_max(sum, Relaxed);
        }
    }

    /// A counter (dead and live processes) or a gauge (live ones) of the whole group.
    pub fn counter(&self, item: Item) -> u64 {
        let i = item as usize;
        self.total(&self.page.dead[i], |l| &l.counters[i])
    }

    /// The same of the folios of `order`; 0 for an order that is not counted apart.
    pub fn size_counter(&self, order: u8, item: SizeItem) -> u64 {
        let (i, mut orders) = (item as usize, SIZE_ORDERS.clone());
        orders.position(|o| o == order).map_or(0, |of| {
            self.total(&self.page.dead_sizes[i][of], |l| &l.sizes[i][of])
        })
    }

    fn total(&self, dead: &AtomicU64, of: impl Fn(&Line) -> &AtomicU64) -> u64 {
        let live = self.lines().iter().map(|line| of(line).load(Relaxed));
        live.fold(dead.load(Relaxed), u64::saturating_add)
    }

    /// Moves the counters of a line whose process is gone to the totals of the dead.
    pub(crate) fn count_as_dead(&self, line: &Line) {
        let page = self.page;
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
                if !item.name().starts_with("nr_") {
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

    /// Peaks of the sums.
    pub fn peak_gauges(&self) -> Gauges {
        Gauges::read(&self.page.peaks)
    }

    /// Raises the peak of unmanaged anonymous memory, pages: for a supervisor that measures it.
    pub fn note_unmanaged_anon(&self, pages: u64) {
        let of = Gauges {
            unmanaged_anon: pages,
            ..Gauges::default()
        };
        self.raise_peaks(&of);
    }
}

/// A gauge without its passing dips below zero: it is read while others change it, and what
/// one takes off may be seen before what another put on.
fn level(n: u64) -> u64 {
    if n > i64::MAX as u64 { 0 } else { n }
}

impl Gauges {
    fn plus(&self, o: &Gauges) -> Gauges {
        let (a, b) = (self.words(), o.words());
        Gauges {
            oldest_inactive: self.oldest_inactive.max(o.oldest_inactive),
            refaults: self.refaults.max(o.refaults),
            ..Gauges::of(core::array::from_fn(|i| a[i].saturating_add(b[i])))
        }
    }
}
