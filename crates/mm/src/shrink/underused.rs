//! The underused test and the shrinker (S003).
//!
//! A huge page is underused if more than `max_ptes_none` of its 512 subpages hold only zeros.
//! Every huge page is queued at birth; when memory runs short the shrinker takes them from
//! the old end, unmaps each, looks, and shatters the underused ones. The others leave the
//! queue: they are in use, and are not looked at again. In profile `deckle` it ends when it has
//! what it was asked for, and young pages sit out a pass while nobody waits.

use crate::beyond::Beyond;
use crate::engine::busy::Busy;
use crate::engine::folio::order_of;
use crate::engine::pressure::Who;
use crate::engine::space::{BlockRef, Space};
use crate::engine::split::{Split, SplitFlags, next_lower};
use crate::env::Env;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap};
use crate::units::{BLOCK_PAGES, BlockNr, PageMask, Pfn};

/// Huge pages that one pass in profile `deckle` looks at.
const SHRINK_BATCH: u64 = 64;

/// The test itself: whether a huge page with so many zero-filled subpages is underused.
pub const fn is_underused(zeros: u32, max_ptes_none: u32) -> bool {
    zeros > max_ptes_none
}

/// What the test found.
enum Verdict {
    /// Not underused; the scan may have stopped early.
    Used,
    /// Underused: which subpages are zero.
    Underused(PageMask),
}

/// A huge page that was unmapped to be looked at; its block is busy.
pub(crate) struct TakenHuge {
    pub busy: Busy,
    /// Unmapped.
    pub h: HugeMap,
    pub was_mapped: bool,
}

impl<E: Env> Mm<E> {
    /// Runs the shrinker over at most `scan` queued folios, the oldest first, until `target` pages
    /// were freed; returns how many were. Partially mapped ones are split without a look at their
    /// bytes, huge pages if they are underused.
    pub fn shrink_underused(&self, scan: u64, target: u64) -> u64 {
        self.shrink_pass_over(scan, target, true)
    }

    /// The shrinker's part of a round of reclaim.
    ///
    /// In profile `deckle` it ends with what was asked for, and only who waits for the memory
    /// gets it of young folios, too. In profile `linux` it is the whole queue, whoever asks: Linux
    /// knows no young folios, and what the shrinker frees does not count as reclaimed there, so
    /// the priority falls to 0 where nothing else goes. That decides who survives: if blocks were
    /// split one by one, the small pages that take their place could not be dropped.
    pub(crate) fn shrink_for(&self, who: Who, target: u64) -> u64 {
        if !self.tunables().beyond(Beyond::ShrinkGoal) {
            return self.shrink_pass_over(u64::MAX, u64::MAX, true);
        }
        match who {
            Who::Request => self.shrink_pass_over(u64::MAX, target, false),
            Who::Direct => self.shrink_pass_over(SHRINK_BATCH, target, true),
            Who::Kswapd => self.shrink_pass_over(SHRINK_BATCH, target, false),
        }
    }

    fn shrink_pass_over(&self, scan: u64, target: u64, young: bool) -> u64 {
        let shrinks = self.tunables().shrinks();
        let mut freed = 0;
        self.shrink_pass();
        for _ in 0..scan.min(self.queued()) {
            if freed >= target {
                break;
            }
            let Some(pfn) = self.dequeue(young) else {
                break;
            };
            freed += if self.meta(pfn).has(Flags::PARTIAL) {
                self.shrink_partial(pfn)
            } else if shrinks {
                self.shrink_one(pfn)
            } else {
                self.put_folio(pfn, 1);
                0
            };
        }
        self.grow_old();
        freed
    }

    /// Splits a partially mapped folio, so that what is not mapped is free; drops the reference
    /// of `dequeue`. What cannot be split now is queued again.
    fn shrink_partial(&self, pfn: Pfn) -> u64 {
        let split = self.split_queued(pfn);
        match split {
            Some(split) => u64::from(split.freed),
            None => {
                if self.meta(pfn).has(Flags::PARTIAL) {
                    self.requeue(pfn);
                }
                self.put_folio(pfn, 1);
                0
            }
        }
    }

    /// The split itself, which takes the reference over. `None`: not now.
    fn split_queued(&self, pfn: Pfn) -> Option<Split> {
        let (id, first) = self.meta(pfn).owner()?;
        let space = self.space(id).ok()?;
        let block = space.block(self, first.block());
        let mut state = block.try_lock(self)?;
        if self.meta(pfn).owner() != Some((id, first)) {
            return None;
        }
        // Linux splits into pages, and drops those of zeros (C2).
        let (cap, flags) = match self.tunables().beyond(Beyond::KeepParts) {
            true => (next_lower(order_of(self.meta(pfn))), SplitFlags::HELD),
            false => (0, SplitFlags::HELD | SplitFlags::DROP_ZERO),
        };
        self.split_in_block(&space, &mut state, pfn, cap, flags, None)
            .ok()
    }

    /// Tests one huge page and takes it apart if underused; drops the reference of `dequeue`.
    fn shrink_one(&self, pfn: Pfn) -> u64 {
        let place = self.meta(pfn).owner().or_else(|| self.only_place(pfn));
        let place = place.and_then(|(id, first)| Some((self.space(id).ok()?, first.block())));
        let Some((space, nr)) = place else {
            if self.is_forked(pfn) {
                self.requeue(pfn);
            }
            self.put_folio(pfn, 1);
            return 0;
        };
        let block = space.block(self, nr);
        let taken = self.take_huge(&space, &block, nr, Some(pfn));
        if matches!(taken, Err(true)) {
            self.requeue(pfn);
        }
        // From here on the busy mark keeps the folio; a split must find no other reference.
        self.put_folio(pfn, 1);
        match taken {
            Ok(taken) => self.end_if_underused(&space, &block, nr, taken),
            Err(_) => 0,
        }
    }

    /// Unmaps a huge page that reclaim may take and marks its block busy: the page, and whether
    /// it was mapped. Whoever has it ends that with the block's new state. `pfn`: this one, to
    /// which the caller holds a reference, or none. `Err(true)`: not now.
    pub(crate) fn take_huge(
        &self,
        space: &Space,
        block: &BlockRef,
        nr: BlockNr,
        pfn: Option<Pfn>,
    ) -> Result<TakenHuge, bool> {
        let mut state = block.try_lock(self).ok_or(true)?;
        let h = match &mut *state {
            BlockState::Busy => return Err(true),
            BlockState::Huge(h) if pfn.is_none_or(|pfn| pfn == h.pfn) => h,
            _ => return Err(false),
        };
        // Locked pages stay (R139), and so do bad ones, which must not be read.
        let bad = self.zone_of(h.pfn).has_bad(h.pfn, BLOCK_PAGES);
        if h.locked || space.forbids_zero() || bad {
            return Err(false);
        }
        // One that spaces share is not taken apart: its zero pages go when reclaim takes it.
        if !self.claim_huge(space, nr, h, pfn.is_some()) {
            return Err(true);
        }
        let was_mapped = h.mapped();
        self.unmap_huge(space, nr, h).map_err(|_| false)?;
        let h = *h;
        let (busy, _) = Busy::block(block, state);
        Ok(TakenHuge {
            busy,
            h,
            was_mapped,
        })
    }

    /// Ends what [`Mm::take_huge`] began: takes the page apart if it is underused, else gives
    /// it back. Returns the pages freed.
    pub(crate) fn end_if_underused(
        &self,
        space: &Space,
        block: &BlockRef,
        nr: BlockNr,
        taken: TakenHuge,
    ) -> u64 {
        let h = taken.h;
        let max_none = self.underused_threshold(&self.tunables());
        let Verdict::Underused(zero) = self.test_underused(h.pfn, max_none) else {
            self.give_huge_back(space, nr, taken);
            return 0;
        };
        self.stats().add(Item::ThpUnderusedSplitPage, 1);
        let table = self.shatter(space, nr, h, zero, PageMask::EMPTY, None);
        self.shrunk(block, zero.count());
        taken.busy.end(self, BlockState::Table(table));
        u64::from(zero.count())
    }

    /// The test, on a parked huge page: stops as soon as the outcome is certain, after
    /// `max_none + 1` zero or `512 - max_none` filled subpages.
    fn test_underused(&self, pfn: Pfn, max_none: u32) -> Verdict {
        let (mut zeros, mut filled) = (0, 0);
        let mut mask = PageMask::EMPTY;
        for i in 0..BLOCK_PAGES {
            if self.is_zero(pfn.add(i)) {
                zeros += 1;
                mask.set(i);
            } else {
                filled += 1;
            }
            let underused = is_underused(zeros, max_none);
            if underused || filled >= BLOCK_PAGES - max_none {
                self.stats().add(Item::ThpUnderusedScan, (i + 1) as u64);
                if !underused {
                    return Verdict::Used;
                }
                let rest = PageMask::run(i + 1, BLOCK_PAGES);
                mask = mask.with(&self.zeros_among(pfn, &rest));
                return Verdict::Underused(mask);
            }
        }
        Verdict::Used
    }
}
