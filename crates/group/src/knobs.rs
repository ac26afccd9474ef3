//! Limits, knobs and the self-test's result: written once by `deckle run`, read by all.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use deckle_mm::{FaultOrder, Profile, Sizes, ThpMode, TunableError, Tunables};

use crate::attach::Group;
use crate::layout::CAPS;

/// The group's limits, pages; `u64::MAX` for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `memory.max`.
    pub max: u64,
    /// `memory.high`.
    pub high: u64,
    /// `memory.swap.max`.
    pub swap_max: u64,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Limits = Limits {
        max: u64::MAX,
        high: u64::MAX,
        swap_max: u64::MAX,
    };
}

/// Where swapped pages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum SwapKind {
    /// Nowhere: pages that are not zero cannot be reclaimed.
    None = 0,
    /// Compressed RAM, lz4.
    #[default]
    Lz4 = 1,
    /// Compressed RAM, zstd.
    Zstd = 2,
}

impl Group {
    /// Sets the limits; takes effect with the next charge.
    pub fn set_limits(&self, limits: Limits) {
        let page = self.page();
        page.max.store(limits.max, Relaxed);
        page.high.store(limits.high, Relaxed);
        page.swap_max.store(limits.swap_max, Relaxed);
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        let page = self.page();
        Limits {
            max: page.max.load(Relaxed),
            high: page.high.load(Relaxed),
            swap_max: page.swap_max.load(Relaxed),
        }
    }

    /// Sets the knobs that processes start with.
    pub fn set_knobs(&self, t: &Tunables, swap: SwapKind) {
        let page = self.page();
        page.profile
            .store(matches!(t.profile, Profile::Linux) as u32, Relaxed);
        let thp = match t.thp {
            ThpMode::Always => 0,
            ThpMode::Madvise => 1,
            ThpMode::Never => 2,
        };
        page.thp.store(thp, Relaxed);
        page.max_ptes_none
            .store(u32::from(t.max_ptes_none), Relaxed);
        page.max_ptes_swap
            .store(u32::from(t.max_ptes_swap), Relaxed);
        page.max_ptes_shared
            .store(u32::from(t.max_ptes_shared), Relaxed);
        page.khugepaged_pages_to_scan
            .store(t.khugepaged_pages_to_scan, Relaxed);
        page.khugepaged_scan_sleep
            .store(t.khugepaged_scan_sleep, Relaxed);
        page.khugepaged_alloc_sleep
            .store(t.khugepaged_alloc_sleep, Relaxed);
        page.khugepaged_defrag
            .store(u32::from(t.khugepaged_defrag), Relaxed);
        page.thp_waste_max.store(!t.thp_waste_max, Relaxed);
        page.shrink_underused
            .store(u32::from(t.shrink_underused), Relaxed);
        page.oom_zero_drop
            .store(u32::from(t.oom_zero_drop), Relaxed);
        page.fault_max.store(t.fault_max, Relaxed);
        page.fault_max_advised.store(t.fault_max_advised, Relaxed);
        page.sizes.store(t.sizes.bits(), Relaxed);
        page.fault_order
            .store(u32::from(t.fault_order == FaultOrder::Auto), Relaxed);
        page.fault_attempts
            .store(u32::from(t.fault_attempts), Relaxed);
        page.page_cluster.store(u32::from(t.page_cluster), Relaxed);
        page.swap_cache.store(u32::from(t.swap_cache), Relaxed);
        page.swap_kind.store(swap as u32, Relaxed);
    }

    /// The knobs. Fails if the page holds what no `deckle run` wrote.
    pub fn knobs(&self) -> Result<Tunables, TunableError> {
        let page = self.page();
        let narrow = |n: u32| n.min(u32::from(u16::MAX)) as u16;
        let profile = if page.profile.load(Relaxed) == 1 {
            Profile::Linux
        } else {
            Profile::Deckle
        };
        let t = Tunables {
            thp: match page.thp.load(Relaxed) {
                0 => ThpMode::Always,
                1 => ThpMode::Madvise,
                _ => ThpMode::Never,
            },
            max_ptes_none: narrow(page.max_ptes_none.load(Relaxed)),
            max_ptes_swap: narrow(page.max_ptes_swap.load(Relaxed)),
            max_ptes_shared: narrow(page.max_ptes_shared.load(Relaxed)),
            khugepaged_pages_to_scan: page.khugepaged_pages_to_scan.load(Relaxed),
            khugepaged_scan_sleep: page.khugepaged_scan_sleep.load(Relaxed),
            khugepaged_alloc_sleep: page.khugepaged_alloc_sleep.load(Relaxed),
            khugepaged_defrag: page.khugepaged_defrag.load(Relaxed) != 0,
            thp_waste_max: !page.thp_waste_max.load(Relaxed),
            shrink_underused: page.shrink_underused.load(Relaxed) != 0,
            oom_zero_drop: page.oom_zero_drop.load(Relaxed) != 0,
            fault_max: page.fault_max.load(Relaxed),
            fault_max_advised: page.fault_max_advised.load(Relaxed),
            sizes: Sizes::from_bits(page.sizes.load(Relaxed)),
            fault_order: match page.fault_order.load(Relaxed) {
                1 => FaultOrder::Auto,
                _ => FaultOrder::Fixed,
            },
            fault_attempts: page.fault_attempts.load(Relaxed).min(255) as u8,
            page_cluster: page.page_cluster.load(Relaxed).min(255) as u8,
            swap_cache: page.swap_cache.load(Relaxed) != 0,
            ..Tunables::of_profile(profile)
        };
        t.validate().map(|()| t)
    }

    /// Where swapped pages go.
    pub fn swap_kind(&self) -> SwapKind {
        match self.page().swap_kind.load(Relaxed) {
            1 => SwapKind::Lz4,
            2 => SwapKind::Zstd,
            _ => SwapKind::None,
        }
    }

    /// Whether every large mapping begins at a block, also one that is not a multiple of it.
    pub fn set_align_mappings(&self, on: bool) {
        self.page().align_mappings.store(u32::from(on), Relaxed);
    }

    /// See [`set_align_mappings`](Group::set_align_mappings).
    pub fn align_mappings(&self) -> bool {
        self.page().align_mappings.load(Relaxed) != 0
    }

    /// `--strict`: programs that cannot be managed are refused.
    pub fn set_strict(&self, strict: bool) {
        self.page().strict.store(u32::from(strict), Relaxed);
    }

    /// See [`set_strict`](Group::set_strict).
    pub fn strict(&self) -> bool {
        self.page().strict.load(Relaxed) != 0
    }

    /// Records what the start-up self-test found, so that it runs once per group.
    pub fn set_capabilities(&self, words: &[u64; CAPS]) {
        let page = self.page();
        for (to, from) in page.caps.iter().zip(words) {
            to.store(*from, Relaxed);
        }
        page.caps_valid.store(1, Release);
    }

    /// What the self-test found; `None` if nobody recorded it.
    pub fn capabilities(&self) -> Option<[u64; CAPS]> {
        let page = self.page();
        if page.caps_valid.load(Acquire) == 0 {
            return None;
        }
        Some(core::array::from_fn(|i| page.caps[i].load(Relaxed)))
    }

    /// Counts a program of the tree that runs without management.
    pub fn count_unmanaged_program(&self) {
        self.page().unmanaged_programs.fetch_add(1, Relaxed);
    }

    /// Programs of the tree that ran without management.
    pub fn unmanaged_programs(&self) -> u32 {
        self.page().unmanaged_programs.load(Relaxed)
    }
}
