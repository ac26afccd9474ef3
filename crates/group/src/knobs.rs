//! Limits, knobs and the self-test's result: written once by `deckle run`, read by all.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use deckle_mm::{FaultOrder, Profile, Sizes, ThpMode, TunableError, Tunables};

use crate::attach::Group;
use crate::layout::{load, store};

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
        let page = self.page;
        page.max.store(limits.max, Relaxed);
        page.high.store(limits.high, Relaxed);
        page.swap_max.store(limits.swap_max, Relaxed);
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        let page = self.page;
        Limits {
            max: page.max.load(Relaxed),
            high: page.high.load(Relaxed),
            swap_max: page.swap_max.load(Relaxed),
        }
    }

    /// Sets the knobs that processes start with.
    pub fn set_knobs(&self, t: &Tunables, swap: SwapKind) {
        let page = self.page;
        let thp = match t.thp {
            ThpMode::Always => 0,
            ThpMode::Madvise => 1,
            ThpMode::Never => 2,
        };
        let words = [
            u64::from(t.profile == Profile::Linux),
            thp,
            u64::from(t.max_ptes_none),
            u64::from(t.max_ptes_swap),
            u64::from(t.max_ptes_shared),
            u64::from(t.khugepaged_pages_to_scan),
            u64::from(t.khugepaged_scan_sleep),
            u64::from(t.khugepaged_alloc_sleep),
            u64::from(t.khugepaged_defrag),
            // The complement, so that a page that nobody wrote to has no budget.
            !t.thp_waste_max,
            u64::from(t.shrink_underused),
            u64::from(t.oom_zero_drop),
            u64::from(t.fault_max),
            u64::from(t.fault_max_advised),
            u64::from(t.sizes.bits()),
            u64::from(t.fault_order == FaultOrder::Auto),
            u64::from(t.fault_attempts),
            u64::from(t.page_cluster),
            u64::from(t.swap_cache),
            u64::from(t.fault_open_ratio),
        ];
        store(&page.knobs, words);
        page.swap_kind.store(swap as u32, Relaxed);
    }

    /// The knobs. Fails if the page holds what no `deckle run` wrote.
    pub fn knobs(&self) -> Result<Tunables, TunableError> {
        // In the order of `set_knobs`.
        let w = load(&self.page.knobs);
        // What is too large for a knob is so for `validate`, too.
        let narrow = |word| u16::try_from(word).unwrap_or(u16::MAX);
        let byte = |word| u8::try_from(word).unwrap_or(u8::MAX);
        let t = Tunables {
            thp: match w[1] {
                0 => ThpMode::Always,
                1 => ThpMode::Madvise,
                _ => ThpMode::Never,
            },
            max_ptes_none: narrow(w[2]),
            max_ptes_swap: narrow(w[3]),
            max_ptes_shared: narrow(w[4]),
            khugepaged_pages_to_scan: w[5] as u32,
            khugepaged_scan_sleep: w[6] as u32,
            khugepaged_alloc_sleep: w[7] as u32,
            khugepaged_defrag: w[8] != 0,
            thp_waste_max: !w[9],
            shrink_underused: w[10] != 0,
            oom_zero_drop: w[11] != 0,
            fault_max: w[12] as u32,
            fault_max_advised: w[13] as u32,
            sizes: Sizes::from_bits(w[14] as u32),
            fault_order: match w[15] {
                1 => FaultOrder::Auto,
                _ => FaultOrder::Fixed,
            },
            fault_attempts: byte(w[16]),
            page_cluster: byte(w[17]),
            swap_cache: w[18] != 0,
            fault_open_ratio: byte(w[19]),
            ..Tunables::of_profile(match w[0] {
                1 => Profile::Linux,
                _ => Profile::Deckle,
            })
        };
        t.validate().map(|()| t)
    }

    /// Where swapped pages go.
    pub fn swap_kind(&self) -> SwapKind {
        match self.page.swap_kind.load(Relaxed) {
            1 => SwapKind::Lz4,
            2 => SwapKind::Zstd,
            _ => SwapKind::None,
        }
    }

    /// Whether every large mapping begins at a block, also one that is not a multiple of it.
    pub fn set_align_mappings(&self, on: bool) {
        self.page.align_mappings.store(u32::from(on), Relaxed);
    }

    /// See [`set_align_mappings`](Group::set_align_mappings).
    pub fn align_mappings(&self) -> bool {
        self.page.align_mappings.load(Relaxed) != 0
    }

    /// `--strict`: programs that cannot be managed are refused.
    pub fn set_strict(&self, strict: bool) {
        self.page.strict.store(u32::from(strict), Relaxed);
    }

    /// See [`set_strict`](Group::set_strict).
    pub fn strict(&self) -> bool {
        self.page.strict.load(Relaxed) != 0
    }

    /// Records what the start-up self-test found, so that it runs once per group.
    pub fn set_capabilities(&self, bits: u64) {
        let page = self.page;
        page.caps.store(bits, Relaxed);
        page.caps_valid.store(1, Release);
    }

    /// What the self-test found; `None` if nobody recorded it.
    pub fn capabilities(&self) -> Option<u64> {
        let page = self.page;
        (page.caps_valid.load(Acquire) != 0).then(|| page.caps.load(Relaxed))
    }

    /// Counts a program of the tree that runs without management.
    pub fn count_unmanaged_program(&self) {
        self.page.unmanaged_programs.fetch_add(1, Relaxed);
    }

    /// Programs of the tree that ran without management.
    pub fn unmanaged_programs(&self) -> u32 {
        self.page.unmanaged_programs.load(Relaxed)
    }
}
