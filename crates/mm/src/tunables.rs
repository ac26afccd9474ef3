//! The knobs, with the kernel's names, and the two policy profiles.

use crate::env::Env;
use crate::frames::Frames;
use crate::sizes::{SizeMode, Sizes};
use crate::units::{BLOCK_ORDER, PAGE_SIZE};
use core::fmt;

/// Which decisions the manager makes where the kernel's and our own differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// The decisions of Linux 6.18: order at fault and its fallback, queueing, the underused
    /// rule (511 means off), zero-drop, when a charge fails.
    Linux,
    /// The default: goes beyond where that is better (see the fields of [`Tunables`]).
    #[default]
    Deckle,
}

/// `transparent_hugepage/enabled`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThpMode {
    /// Everywhere, unless the VMA is advised against.
    #[default]
    Always,
    /// Where the VMA is advised `MADV_HUGEPAGE`.
    Madvise,
    /// Nowhere.
    Never,
}

/// How the order of a fault is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultOrder {
    /// The largest that the knobs allow.
    #[default]
    Fixed,
    /// What the faults of the VMA have shown, up to what the knobs allow; where huge pages are
    /// allowed, up to these. VMAs advised `MADV_HUGEPAGE` get what they ask for.
    Auto,
}

/// How a huge page is taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitMode {
    /// By what it costs. Where frames are slots of a large range, copying a page is cheap and
    /// splitting the machine's huge page is not: it is shattered. Where frames are memory, a
    /// part that goes is cut off without a copy, and an underused page is shattered as long as
    /// there are frames for what is in use, since that keeps a block whole. Both ways were
    /// measured: docs/underused-experiment.md.
    #[default]
    Auto,
    /// What is in use moves to small frames and the block is given back whole, if there are any.
    Shatter,
    /// The frames stay where they are.
    InPlace,
}

/// The knobs of one manager. Plain values: a change of a knob makes a new set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunables {
    /// Policy profile.
    pub profile: Profile,
    /// `enabled`: where faults get huge pages.
    pub thp: ThpMode,
    /// `khugepaged/max_ptes_none`, 0..=511: a huge page with more zero-filled subpages than
    /// this is underused.
    pub max_ptes_none: u16,
    /// `khugepaged/max_ptes_swap`, 0..=511: pages that are read back for a huge page.
    pub max_ptes_swap: u16,
    /// `khugepaged/max_ptes_shared`, 0..=511: pages that others hold too, since a fork, and that
    /// are copied for a huge page. Where the kernel copies on write none are.
    pub max_ptes_shared: u16,
    /// `khugepaged/pages_to_scan`: pages that khugepaged looks at in one go.
    pub khugepaged_pages_to_scan: u32,
    /// `khugepaged/scan_sleep_millisecs`, in ticks: calls of [`Mm::khugepaged`](crate::Mm) of
    /// which one looks.
    pub khugepaged_scan_sleep: u32,
    /// `vm.page-cluster`, 0..=8: order of the largest window that is read back from the store.
    pub page_cluster: u8,
    /// `vma_ra_enabled`: whether that window follows what faults show; else it is always that
    /// large.
    pub vma_ra_enabled: bool,
    /// Whether a page that is read back from the store keeps its slot, so that it is not stored
    /// again if it is evicted unchanged. On in profile `linux`; off in profile `deckle`, where
    /// comparing with what lz4 has stored costs nearly as much as storing, and the copies take
    /// memory: of 200 MiB that wait beside 160 MiB in use, in 256 MiB, 830 MiB were evicted with
    /// it and 315 without, in 3.0 and 1.2 seconds.
    pub swap_cache: bool,
    /// `khugepaged/alloc_sleep_millisecs`, in ticks: for so long it rests when there was no
    /// huge page.
    pub khugepaged_alloc_sleep: u32,
    /// `khugepaged/defrag`: whether it reclaims for a huge page.
    pub khugepaged_defrag: bool,
    /// `shrink_underused`: whether underused huge pages are split under pressure.
    pub shrink_underused: bool,
    /// Bytes of zeros that huge pages may hold before [`Mm::trim`](crate::Mm::trim) takes
    /// underused ones apart; `u64::MAX` for no limit, 0 for all that are underused.
    pub thp_waste_max: u64,
    /// How a huge page is taken apart.
    pub split_mode: SplitMode,
    /// Before an out-of-memory kill, look at every huge folio for droppable zero pages,
    /// whatever the other knobs say.
    pub oom_zero_drop: bool,
    /// Whether eviction looks for pages of zeros and drops them. Off, they are stored like any
    /// other: to tell what the look costs where there are none. No setting of `deckle run`.
    pub zero_drop: bool,
    /// Largest folio below the huge size that a fault may allocate, bytes; less than four
    /// pages for none.
    pub fault_max: u32,
    /// The same where the VMA is advised `MADV_HUGEPAGE`.
    pub fault_max_advised: u32,
    /// `hugepages-<size>/enabled` of each size.
    pub sizes: Sizes,
    /// How the order of a fault is found.
    pub fault_order: FaultOrder,
    /// Large orders that a fault tries before it takes one page.
    pub fault_attempts: u8,
    /// Percent of `memory.high`, 0..=100, below which a fault that gets no large folio leaves the
    /// holes around it to the system (`engine/open.rs`), while `fault_order` is `Auto`; 0: never.
    pub fault_open_ratio: u8,
}

/// Of Linux: an eighth of a block.
const MAX_PTES_SWAP: u16 = 64;
/// Linux' default: half of a huge page.
const MAX_PTES_SHARED: u16 = 256;
/// Of Linux: eight blocks.
const PAGES_TO_SCAN: u32 = 4096;
/// Of Linux: 32 KiB.
const PAGE_CLUSTER: u8 = 3;
/// 256 KiB: a fault costs as much as reading a dozen pages, so that twice as much would save
/// little more and make who waits for one page wait for a hundred.
const DECKLE_PAGE_CLUSTER: u8 = 6;
/// Of Linux: ten seconds.
const SCAN_SLEEP: u32 = 10_000 / Tunables::TICK_MILLISECS;
/// Of Linux: a minute.
const ALLOC_SLEEP: u32 = 60_000 / Tunables::TICK_MILLISECS;
/// 64 KiB.
const FAULT_MAX: u32 = 64 << 10;
/// Bytes of a huge page.
const HUGE: u32 = (PAGE_SIZE as u32) << BLOCK_ORDER;

impl Tunables {
    /// What a tick is where there is a clock.
    pub const TICK_MILLISECS: u32 = 100;

    /// Defaults of a profile. `Linux`: those of Linux 6.18, where the sizes below the PMD's
    /// are off; `Deckle`: huge pages always, 409 (80 %), folios up to 64 KiB besides.
    /// 64 KiB is the cap of the series that brought such folios: about where more stops to
    /// pay. `deckle run` adapts the order of faults in profile `Deckle`.
    pub const fn of_profile(profile: Profile) -> Tunables {
        match profile {
            Profile::Linux => Tunables {
                profile,
                thp: ThpMode::Always,
                max_ptes_none: 511,
                max_ptes_swap: MAX_PTES_SWAP,
                max_ptes_shared: MAX_PTES_SHARED,
                khugepaged_pages_to_scan: PAGES_TO_SCAN,
                khugepaged_scan_sleep: SCAN_SLEEP,
                khugepaged_alloc_sleep: ALLOC_SLEEP,
                khugepaged_defrag: true,
                page_cluster: PAGE_CLUSTER,
                vma_ra_enabled: true,
                swap_cache: true,
                shrink_underused: true,
                thp_waste_max: u64::MAX,
                split_mode: SplitMode::Auto,
                oom_zero_drop: false,
                zero_drop: true,
                fault_max: FAULT_MAX,
                fault_max_advised: HUGE,
                sizes: Sizes::NEVER.with(BLOCK_ORDER, SizeMode::Inherit),
                fault_order: FaultOrder::Fixed,
                fault_attempts: BLOCK_ORDER,
                fault_open_ratio: 0,
            },
            Profile::Deckle => Tunables {
                profile,
                thp: ThpMode::Always,
                max_ptes_none: 409,
                max_ptes_swap: MAX_PTES_SWAP,
                max_ptes_shared: MAX_PTES_SHARED,
                khugepaged_pages_to_scan: PAGES_TO_SCAN,
                khugepaged_scan_sleep: SCAN_SLEEP,
                khugepaged_alloc_sleep: ALLOC_SLEEP,
                khugepaged_defrag: false,
                page_cluster: DECKLE_PAGE_CLUSTER,
                vma_ra_enabled: true,
                swap_cache: false,
                shrink_underused: true,
                thp_waste_max: u64::MAX,
                split_mode: SplitMode::Auto,
                oom_zero_drop: true,
                zero_drop: true,
                fault_max: FAULT_MAX,
                fault_max_advised: HUGE,
                sizes: Sizes::NEVER
                    .with(2, SizeMode::Always)
                    .with(3, SizeMode::Always)
                    .with(4, SizeMode::Always)
                    .with(5, SizeMode::Inherit)
                    .with(6, SizeMode::Inherit)
                    .with(7, SizeMode::Inherit)
                    .with(8, SizeMode::Inherit)
                    .with(BLOCK_ORDER, SizeMode::Inherit),
                fault_order: FaultOrder::Fixed,
                fault_attempts: 3,
                fault_open_ratio: 0,
            },
        }
    }

    /// Whether a huge page with `live` pages to keep is shattered while `free` frames are left.
    /// No live page: a part of it goes for good.
    pub(crate) fn shatters<E: Env>(&self, live: u32, free: u64) -> bool {
        match self.split_mode {
            SplitMode::InPlace => false,
            SplitMode::Shatter => true,
            SplitMode::Auto => E::Frames::may_move_out(live, free),
        }
    }

    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), TunableError> {
        if self.max_ptes_none > 511 {
            return Err(TunableError::MaxPtesNone(self.max_ptes_none));
        }
        if self.max_ptes_swap > 511 {
            return Err(TunableError::MaxPtesSwap(self.max_ptes_swap));
        }
        if self.max_ptes_shared > 511 {
            return Err(TunableError::MaxPtesShared(self.max_ptes_shared));
        }
        if self.page_cluster >= BLOCK_ORDER {
            return Err(TunableError::PageCluster(self.page_cluster));
        }
        if self.fault_open_ratio > 100 {
            return Err(TunableError::FaultOpenRatio(self.fault_open_ratio));
        }
        for bytes in [self.fault_max, self.fault_max_advised] {
            if bytes > HUGE {
                return Err(TunableError::FaultMax(bytes));
            }
        }
        Ok(())
    }

    /// Whether the shrinker runs at all: it is on, and the threshold can be passed. Linux
    /// 6.18 takes 511 as off; profile `deckle` scans then too, since 512 zeros are more.
    pub fn shrinks(&self) -> bool {
        self.shrink_underused && !(self.profile == Profile::Linux && self.max_ptes_none >= 511)
    }
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables::of_profile(Profile::Deckle)
    }
}

/// A knob out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunableError {
    /// `max_ptes_none` above 511.
    MaxPtesNone(u16),
    /// `max_ptes_swap` above 511.
    MaxPtesSwap(u16),
    /// `max_ptes_shared` above 511.
    MaxPtesShared(u16),
    /// `fault_open_ratio` above 100.
    FaultOpenRatio(u8),
    /// `page_cluster` above 8.
    PageCluster(u8),
    /// `fault_max` or `fault_max_advised` is above the huge size.
    FaultMax(u32),
}

impl fmt::Display for TunableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunableError::MaxPtesNone(n) => {
                write!(
                    f,
                    "max_ptes_none is {n}, but must be 0 to 511 (zero pages of 512)"
                )
            }
            TunableError::MaxPtesSwap(n) => write!(
                f,
                "max_ptes_swap is {n}, but must be 0 to 511 (pages of 512 in the store)"
            ),
            TunableError::MaxPtesShared(n) => write!(
                f,
                "max_ptes_shared is {n}, but must be 0 to 511 (shared pages of 512)"
            ),
            TunableError::PageCluster(n) => {
                write!(
                    f,
                    "page_cluster is {n}, but must be 0 to 8 (order of a window)"
                )
            }
            TunableError::FaultOpenRatio(n) => {
                write!(
                    f,
                    "fault_open_ratio is {n}, but must be 0 to 100 (percent of memory.high)"
                )
            }
            TunableError::FaultMax(n) => {
                write!(f, "a fault of {n} bytes at most, but must be 0 to {HUGE}")
            }
        }
    }
}

impl core::error::Error for TunableError {}
