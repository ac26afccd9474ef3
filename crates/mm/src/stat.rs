//! Event counters and gauges, under the kernel's names where the kernel has the thing.

use crate::units::BLOCK_ORDER;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! items {
    ($(#[$doc:meta])* $vis:vis enum $t:ident { $($(#[$d:meta])* $v:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        $vis enum $t { $($(#[$d])* $v,)* }
        impl $t {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$t] = &[$($t::$v,)*];
            /// How many there are.
            pub const COUNT: usize = $t::ALL.len();
            /// The name users see.
            pub const fn name(self) -> &'static str {
                match self { $($t::$v => $name,)* }
            }
        }
    };
}

items! {
    /// Things that are counted, and never go down, or (gauges, named `nr_`) both ways.
    pub enum Item {
        /// Faults served.
        Pgfault = "pgfault",
        /// Pages made writable again without a copy, since nobody shares them any more.
        Pgreuse = "pgreuse",
        /// Pages copied because a write met what a fork had shared.
        Pgcopy = "pgcopy",
        /// Faults that had to read from the store.
        Pgmajfault = "pgmajfault",
        /// Huge pages allocated by faults.
        ThpFaultAlloc = "thp_fault_alloc",
        /// Faults that wanted a huge page and got less.
        ThpFaultFallback = "thp_fault_fallback",
        /// ... because the group's limit refused the charge.
        ThpFaultFallbackCharge = "thp_fault_fallback_charge",
        /// Huge pages made of small ones.
        ThpCollapseAlloc = "thp_collapse_alloc",
        /// Times that there was no huge page for that.
        ThpCollapseAllocFailed = "thp_collapse_alloc_failed",
        /// Blocks that khugepaged left alone: too many holes and zero pages,
        ThpScanExceedNonePte = "thp_scan_exceed_none_pte",
        /// ... too many pages in the store,
        ThpScanExceedSwapPte = "thp_scan_exceed_swap_pte",
        /// ... pages that are shared since a fork.
        ThpScanExceedSharePte = "thp_scan_exceed_share_pte",
        /// Huge pages split.
        ThpSplitPage = "thp_split_page",
        /// Huge pages put on the deferred split queue because a part was unmapped.
        ThpDeferredSplitPage = "thp_deferred_split_page",
        /// Huge pages split because they were underused.
        ThpUnderusedSplitPage = "thp_underused_split_page",
        /// Huge pages split as the last step before an out-of-memory kill.
        ThpOomSplitPage = "thp_oom_split_page",
        /// Frames freed because a split found them empty.
        ThpSplitFree = "thp_split_free",
        /// Mappings of zero-filled subpages dropped by a split that is not reclaim's (which counts
        /// them in `swpout_zero`).
        ThpSplitUnmap = "thp_split_unmap",
        /// Subpages looked at by the underused test.
        ThpUnderusedScan = "thp_underused_scan",
        /// Pages dropped by the shrinker that were written again soon after; what such a write
        /// brings back besides is not counted.
        ThpUnderusedRetouch = "thp_underused_retouch",
        /// Subpages looked at to estimate what huge pages waste.
        ThpWasteScan = "thp_waste_scan",
        /// Huge pages swapped out whole.
        ThpSwpout = "thp_swpout",
        /// Folios below the huge size allocated by faults (order 2 and up).
        AnonFaultAlloc = "anon_fault_alloc",
        /// Faults that wanted such a folio and got less.
        AnonFaultFallback = "anon_fault_fallback",
        /// Pages read back from the store.
        Pswpin = "pswpin",
        /// Pages written to the store.
        Pswpout = "pswpout",
        /// Pages that the store has written on to the file behind it.
        Zswpwb = "zswpwb",
        /// Pages read back from that file.
        SwpinFile = "swpin_file",
        /// Pages evicted without being stored again: their copy in the store was good still.
        SwpoutUnchanged = "swpout_unchanged",
        /// Pages evicted whose copy in the store was of no use any more.
        SwpoutStale = "swpout_stale",
        /// Pages read back from the store ahead of need.
        SwapRa = "swap_ra",
        /// Of those, pages that a walk has gone through.
        SwapRaHit = "swap_ra_hit",
        /// Zero entries filled by a fault after they had been dropped by reclaim.
        SwpinZero = "swpin_zero",
        /// Zero-filled pages dropped by reclaim instead of being stored.
        SwpoutZero = "swpout_zero",
        /// Pages looked at by direct reclaim.
        PgscanDirect = "pgscan_direct",
        /// Pages reclaimed by direct reclaim.
        PgstealDirect = "pgsteal_direct",
        /// Pages looked at by background reclaim.
        PgscanKswapd = "pgscan_kswapd",
        /// Pages reclaimed by background reclaim.
        PgstealKswapd = "pgsteal_kswapd",
        /// Times that somebody had to wait for direct reclaim.
        Allocstall = "allocstall",
        /// Time in which somebody waited for memory (PSI's some): microseconds, on the model steps.
        PressureSome = "memory_pressure_some_us",
        /// The part of it in which the program did nothing else (PSI's full).
        PressureFull = "memory_pressure_full_us",
        /// Faults that had to wait since the group was far above `memory.high`.
        ThrottleHigh = "throttle_high",
        /// Pages moved to the inactive list (unmapped, still resident).
        Pgdeactivate = "pgdeactivate",
        /// Inactive pages taken back by a fault.
        Pgactivate = "pgactivate",
        /// Times that somebody waited for pages to be moved to form a block.
        CompactStall = "compact_stall",
        /// ... and got the block,
        CompactSuccess = "compact_success",
        /// ... or not.
        CompactFail = "compact_fail",
        /// Passes of direct reclaim that kept what they freed together (page capture),
        CaptureBegin = "capture_begin",
        /// ... and the blocks that they got by it.
        CaptureSuccess = "capture_success",
        /// Pages captured: freed by who reclaims, by others beside them, or free before.
        CapturePages = "capture_pages",
        /// Pages that the scanner for pages to move has looked at.
        CompactMigrateScanned = "compact_migrate_scanned",
        /// Pages that the scanner for free pages has looked at.
        CompactFreeScanned = "compact_free_scanned",
        /// Pages isolated by either.
        CompactIsolated = "compact_isolated",
        /// Pages moved to other frames.
        PgmigrateSuccess = "pgmigrate_success",
        /// Pages that could not be moved.
        PgmigrateFail = "pgmigrate_fail",
        /// Pages of zeros that became zero entries instead of being moved.
        PgmigrateZero = "pgmigrate_zero",
        /// Pages found pinned by reclaim.
        NrPinned = "nr_pinned",
        /// Pages that did not compress enough to be stored.
        StoreReject = "store_reject",
        /// Lazily freed pages discarded by reclaim.
        Pglazyfreed = "pglazyfreed",
        /// Out-of-memory conditions.
        OomKill = "oom_kill",
        /// Pages mapped into the program now.
        NrAnon = "nr_anon",
        /// Pages resident but unmapped now.
        NrInactive = "nr_inactive_anon",
        /// Pages that somebody has taken off the lists now, to reclaim or to move them.
        NrIsolated = "nr_isolated_anon",
        /// Pages that who reclaims has kept together, as of its last round.
        NrCaptured = "nr_captured",
        /// Huge pages now, mapped or inactive.
        NrThp = "nr_anon_transparent_hugepages",
        /// Zero entries now that reclaim or a split made.
        NrZero = "nr_zero_dropped",
        /// Pages that programs see as theirs but that are in the store now.
        NrSwapped = "nr_swapped",
        /// Resident pages now that kept their slot in the store when they were read back.
        NrSwapcached = "nr_swapcached",
        /// Pages mapped now that another manager may hold too, since a fork.
        NrShared = "nr_shared",
        /// Pages now that the system makes at their first touch, charged whether or not they are
        /// there.
        NrOpen = "nr_open",
        /// Folios of which only a part is mapped now.
        NrAnonPartiallyMapped = "nr_anon_partially_mapped",
        /// Zero-filled subpages of huge pages now, by the estimate that `thp_waste_max` is
        /// compared with; 0 without such a budget, since nobody looks then.
        NrThpWaste = "nr_thp_waste",
    }
}

items! {
    /// What is counted for each size of folio, as `hugepages-<size>/stats/<name>`.
    pub enum SizeItem {
        /// Folios allocated by faults.
        AnonFaultAlloc = "anon_fault_alloc",
        /// Faults that wanted a folio of this size and got less.
        AnonFaultFallback = "anon_fault_fallback",
        /// ... because the group's limit refused the charge.
        AnonFaultFallbackCharge = "anon_fault_fallback_charge",
        /// Folios that became several smaller ones, or single pages.
        Split = "split",
        /// Folios queued for a split because a part of them was unmapped.
        SplitDeferred = "split_deferred",
        /// Folios now.
        NrAnon = "nr_anon",
        /// Folios of which only a part is mapped now.
        NrAnonPartiallyMapped = "nr_anon_partially_mapped",
    }
}

/// Orders of the sizes that users see: those that a folio of more than one page may have.
pub const SIZE_ORDERS: RangeInclusive<u8> = 2..=BLOCK_ORDER;

/// Orders that are counted apart: every one up to the huge one.
const SIZES: usize = BLOCK_ORDER as usize + 1;

/// The counters of one manager. Relaxed atomics: each is exact, a set of them is not a
/// snapshot.
pub struct Stats {
    items: [AtomicU64; Item::COUNT],
    sizes: [[AtomicU64; SIZES]; SizeItem::COUNT],
}

impl Stats {
    /// All zero.
    pub const fn new() -> Stats {
        Stats {
            items: [const { AtomicU64::new(0) }; Item::COUNT],
            sizes: [const { [const { AtomicU64::new(0) }; SIZES] }; SizeItem::COUNT],
        }
    }
    /// Adds `n`.
    pub fn add(&self, item: Item, n: u64) {
        self.items[item as usize].fetch_add(n, Relaxed);
    }
    /// Takes `n` from a gauge.
    pub fn sub(&self, item: Item, n: u64) {
        self.items[item as usize].fetch_sub(n, Relaxed);
    }
    /// Sets a gauge that one place alone knows.
    pub fn set(&self, item: Item, n: u64) {
        self.items[item as usize].store(n, Relaxed);
    }
    /// Sets the items that `which` names to zero: those that a copy of a manager must not
    /// count a second time.
    pub fn forget(&self, which: impl Fn(Item) -> bool) {
        for &item in Item::ALL.iter().filter(|&&item| which(item)) {
            self.items[item as usize].store(0, Relaxed);
        }
        // Folios that exist go on existing in the copy.
        let gauge = |item: SizeItem| item.name().starts_with("nr_");
        for &item in SizeItem::ALL.iter().filter(|&&item| !gauge(item)) {
            for size in &self.sizes[item as usize] {
                size.store(0, Relaxed);
            }
        }
    }
    /// Adds `n` for folios of `order`; one that is not counted is ignored.
    pub fn add_size(&self, order: u8, item: SizeItem, n: u64) {
        if let Some(size) = self.sizes[item as usize].get(order as usize) {
            size.fetch_add(n, Relaxed);
        }
    }
    /// Takes `n` from a gauge for folios of `order`.
    pub fn sub_size(&self, order: u8, item: SizeItem, n: u64) {
        if let Some(size) = self.sizes[item as usize].get(order as usize) {
            size.fetch_sub(n, Relaxed);
        }
    }
    /// The value for folios of `order` now.
    pub fn size(&self, order: u8, item: SizeItem) -> u64 {
        let size = self.sizes[item as usize].get(order as usize);
        size.map_or(0, |v| v.load(Relaxed))
    }
    /// The value now.
    pub fn get(&self, item: Item) -> u64 {
        self.items[item as usize].load(Relaxed)
    }
}

impl Default for Stats {
    fn default() -> Stats {
        Stats::new()
    }
}
