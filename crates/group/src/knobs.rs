//! Limits, knobs and the self-test's result: written once by `deckle run`, read by all.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use deckle_mm::{TunableError, Tunables};

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
        store(&self.page.knobs, t.to_words());
        self.page.swap_kind.store(swap as u32, Relaxed);
    }

    /// The knobs. Fails if the page holds what no `deckle run` wrote.
    pub fn knobs(&self) -> Result<Tunables, TunableError> {
        Tunables::from_words(&load(&self.page.knobs))
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
