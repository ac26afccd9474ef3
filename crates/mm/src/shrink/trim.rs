//! A budget for what huge pages waste, kept before memory is short.
//!
//! Each call looks at a few huge pages, of each at every sixteenth subpage: its cost is bounded
//! whatever there is, and the next call goes on where it stopped. Zeros among what was looked
//! at lately, times the huge pages there are, is the estimate. Above the budget those that look
//! underused are tested in full and taken apart as the shrinker does it.

use crate::beyond::Beyond;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::shrink::underused::TakenHuge;
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap};
use crate::tunables::Tunables;
use crate::units::{BLOCK_PAGES, BlockNr, PAGE_SIZE, Vpn};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Huge pages that one call looks at.
const LOOKS: u32 = 8;
/// Blocks that one call walks past to find them.
const WALK: u32 = 4096;
/// One subpage of so many is looked at.
const STRIDE: u32 = 16;
/// Subpages after which what was seen counts half.
const MEMORY: u64 = 4096;

/// Where the walk is, and what it has seen lately.
#[derive(Debug, Default)]
pub(crate) struct Trim {
    /// Space in the top 16 bits, block below.
    at: AtomicU64,
    seen: AtomicU64,
    zeros: AtomicU64,
}

/// What one call of [`Mm::trim`] came to. Amounts are pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Huge pages looked at.
    pub looked: u32,
    /// Zero-filled subpages that all huge pages together have, by estimate.
    pub waste: u64,
    /// Pages freed.
    pub freed: u64,
}

impl<E: Env> Mm<E> {
    /// Zero-filled subpages of all huge pages, in pages, by what [`Mm::trim`] has seen lately.
    pub fn waste_estimate(&self) -> u64 {
        let (seen, zeros) = (self.trim.seen.load(Relaxed), self.trim.zeros.load(Relaxed));
        let huge = self.stats().get(Item::NrThp) * u64::from(BLOCK_PAGES);
        (huge.saturating_mul(zeros)).checked_div(seen).unwrap_or(0)
    }

    /// Looks at a few huge pages, and takes underused ones apart while more than
    /// `thp_waste_max` bytes are wasted. To be called now and then, by who may take its time;
    /// without a budget, and in profile `linux`, it does nothing. One caller at a time learns
    /// most; several do no harm.
    pub fn trim(&self) -> Trimmed {
        let t = self.tunables();
        let mut done = Trimmed::default();
        if t.thp_waste_max == u64::MAX || !t.beyond(Beyond::WasteBudget) {
            self.stats().set(Item::NrThpWaste, 0);
            return done;
        }
        if self.over_budget(&t) {
            // What regretted splits have taught fades here, too.
            self.shrink_pass();
        }
        let (at, mut walked) = (self.trim.at.load(Relaxed), 0);
        // Where the walk ends before its bounds, the next one starts over.
        self.trim.at.store(0, Relaxed);
        'walk: for space in self.all_spaces() {
            let here = u64::from(space.id.0) << 48;
            if here >> 48 < at >> 48 {
                continue;
            }
            let start = BlockNr(at.saturating_sub(here)).start().max(space.base);
            let pages = (space.base.0 + space.pages).saturating_sub(start.0);
            for (block, first, _) in space.parts(self, start, pages) {
                walked += 1;
                self.look_at(&space, &block, first, &mut done);
                if done.looked == LOOKS || walked == WALK {
                    self.trim.at.store(here | (first.block().0 + 1), Relaxed);
                    break 'walk;
                }
            }
        }
        done.waste = self.waste_estimate();
        self.stats().set(Item::NrThpWaste, done.waste);
        done
    }

    fn over_budget(&self, t: &Tunables) -> bool {
        self.waste_estimate().saturating_mul(PAGE_SIZE as u64) > t.thp_waste_max
    }

    fn look_at(&self, space: &Space, block: &BlockRef, first: Vpn, done: &mut Trimmed) {
        let nr = first.block();
        let Ok(taken) = self.take_huge(space, block, nr, None) else {
            return;
        };
        done.looked += 1;
        let zeros = self.sample(&taken.h);
        let t = self.tunables();
        let likely = zeros * STRIDE > u32::from(t.max_ptes_none);
        if likely && self.over_budget(&t) {
            done.freed += self.end_if_underused(space, block, nr, taken);
        } else {
            self.give_huge_back(space, nr, taken);
        }
    }

    /// Looks at some subpages of a parked huge page; how many are zeros.
    fn sample(&self, h: &HugeMap) -> u32 {
        let seen = self.trim.seen.load(Relaxed);
        // Others each time, so that no layout hides.
        let from = (seen as u32 / (BLOCK_PAGES / STRIDE)).wrapping_mul(7) % STRIDE;
        let zero = |i: &u32| self.is_zero(h.pfn.add(*i));
        let looked = (from..BLOCK_PAGES).step_by(STRIDE as usize);
        let zeros = looked.filter(zero).count() as u32;
        let n = u64::from(BLOCK_PAGES / STRIDE);
        self.stats().add(Item::ThpWasteScan, n);
        let old = if seen + n > MEMORY { 2 } else { 1 };
        self.trim.seen.store((seen + n) / old, Relaxed);
        let sum = self.trim.zeros.load(Relaxed) + u64::from(zeros);
        self.trim.zeros.store(sum / old, Relaxed);
        zeros
    }

    /// Ends what [`Mm::take_huge`] began without a change: a page that was mapped is again.
    pub(crate) fn give_huge_back(&self, space: &Space, nr: BlockNr, mut taken: TakenHuge) {
        if taken.was_mapped {
            self.map_huge_again(space, nr, &mut taken.h);
        }
        taken.busy.end(self, BlockState::Huge(taken.h));
    }
}
