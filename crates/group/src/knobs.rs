//! Limits and knobs, which may change while the tree runs; kind of swap and the self-test's result,
//! written once by `deckle run`.
//!
//! There are two sets of limits and knobs, of which one is in force: who changes them writes the
//! other one, and then says so in one word. So whoever reads them gets all of a change or nothing,
//! also where who makes it is killed at any instruction. Changes are made one at a time, by who has
//! the lock of the page's file.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

use deckle_mm::{TunableError, Tunables};

use crate::attach::Group;
use crate::layout::{Settings, load, store};

/// How often settings are read that change meanwhile.
const LOOKS: u32 = 1000;

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
    /// How often limits and knobs were changed: another number, other settings.
    pub fn changes(&self) -> u32 {
        self.page.changes.load(Acquire)
    }

    /// Those in force. Of what is read there each word is right, and several of one change only
    /// where [`together`](Group::together) reads them.
    pub(crate) fn settings(&self) -> &Settings {
        &self.page.settings[self.changes() as usize % 2]
    }

    /// What `read` finds in one set.
    fn together<T>(&self, read: impl Fn(&Settings) -> T) -> T {
        for _ in 0..LOOKS {
            let changes = self.changes();
            let found = read(&self.page.settings[changes as usize % 2]);
            fence(Acquire);
            // This set is written after the next change at the earliest.
            if self.page.changes.load(Relaxed) == changes {
                return found;
            }
        }
        // Nobody changes them so often but who wants to disturb: each word is looked at.
        read(self.settings())
    }

    fn put(&self, limits: Limits, knobs: [u64; Tunables::WORDS]) {
        let next = self.changes().wrapping_add(1);
        let is_lowered = limits.max < self.settings().max.load(Relaxed);
        let to = &self.page.settings[next as usize % 2];
        fence(Release);
        to.max.store(limits.max, Relaxed);
        to.high.store(limits.high, Relaxed);
        to.swap_max.store(limits.swap_max, Relaxed);
        store(&to.knobs, knobs);
        self.page.largest_max.fetch_max(limits.max, Relaxed);
        self.page.changes.store(next, Release);
        if is_lowered {
            // Not 0, which no change of a group has that runs.
            self.page.lowered.store(u64::from(next.max(1)), Release);
        }
        self.tell_all();
    }

    /// Whether more is charged than `memory.max` since that was lowered: then every process has to
    /// give back, also one that has joined since.
    pub fn is_lowered(&self) -> bool {
        let change = self.page.lowered.load(Acquire);
        if change == 0 {
            return false;
        }
        let is_over = self.usage() > self.limits().max;
        if !is_over {
            // Unless it was lowered once more.
            let lowered = &self.page.lowered;
            let _ = lowered.compare_exchange(change, 0, AcqRel, Relaxed);
        }
        is_over
    }

    /// Puts limits and knobs in force. Limits hold from the next charge on, and processes follow
    /// what else can change at run time a few times a second.
    pub fn change(&self, limits: Limits, knobs: &Tunables) {
        self.put(limits, knobs.to_words());
    }

    /// Changes the limits alone.
    pub fn set_limits(&self, limits: Limits) {
        self.put(limits, load(&self.settings().knobs));
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        self.together(|now| Limits {
            max: now.max.load(Relaxed),
            high: now.high.load(Relaxed),
            swap_max: now.swap_max.load(Relaxed),
        })
    }

    /// The largest `memory.max` that was ever in force, pages.
    pub fn largest_max(&self) -> u64 {
        self.page.largest_max.load(Relaxed)
    }

    /// Changes the knobs alone, and says where swapped pages go: for who makes the group.
    pub fn set_knobs(&self, t: &Tunables, swap: SwapKind) {
        self.put(self.limits(), t.to_words());
        self.page.swap_kind.store(swap as u32, Relaxed);
    }

    /// The knobs. Fails if the page holds what no `deckle` wrote.
    pub fn knobs(&self) -> Result<Tunables, TunableError> {
        Tunables::from_words(&self.together(|now| load(&now.knobs)))
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
