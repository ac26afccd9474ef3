//! Splitting what advice has cut: Linux splits a large folio of which MADV_COLD, FREE or PAGEOUT
//! get a part into pages before it follows them, and every split drops pages of zeros.

use crate::engine::Engine;
use crate::engine::busy::Busy;
use crate::engine::space::{BlockRef, Space};
use crate::engine::split::SplitFlags;
use crate::env::Env;
use crate::table::block::{BlockState, HugeMap, Presence};
use crate::table::entry::Entry;
use crate::units::{BLOCK_PAGES, BlockNr, PageMask, Pfn, Vpn};
use core::ops::Range;

/// Which large folios of a range are split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// Those of which the range has a part and not all.
    Parts,
    /// Those that are wholly in the range, too, unless the program gave their contents up.
    Whole,
}

impl<E: Env> Engine<E> {
    /// Splits large folios of a part of a block into pages and drops those of zeros; what others
    /// hold, too, and what is locked or bad stays as it is. No lock but the mmap lock is held.
    pub(crate) fn split_cut(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32, cut: Cut) {
        let nr = first.block();
        let mut state = self.lock_settled(block, 0, BLOCK_PAGES);
        if let BlockState::Huge(h) = &mut *state {
            let stays = h.locked || h.shared() || self.is_held(h.pfn);
            let whole = n == BLOCK_PAGES && (cut == Cut::Parts || h.has == Presence::Lazy);
            if stays || whole || self.zone_of(h.pfn).has_bad(h.pfn, BLOCK_PAGES) {
                return;
            }
            if !self.tunables().shatters::<E>(0, u64::MAX) {
                let head = h.pfn;
                self.split_to_pages(space, &mut state, head);
            } else if self.unmap_huge(space, nr, h).is_ok() {
                let h = *h;
                let (busy, _) = Busy::block(block, state);
                busy.end(self, self.shattered(space, nr, h));
            }
            return;
        }
        let mut i = first.index();
        let end = i + n;
        while i < end && matches!(&*state, BlockState::Table(_)) {
            let Some(p) = state.entry(i).frame() else {
                i += 1;
                continue;
            };
            let folio = self.folio_of(p);
            let at = i.wrapping_sub(p.0 - folio.start.0);
            let (inside, lazy) = is_inside(&state, first.index()..end, at, &folio);
            let stays = inside && (cut == Cut::Parts || lazy) || self.is_frame_held(p);
            if !stays && folio.end.0 - folio.start.0 > 1 {
                self.split_to_pages(space, &mut state, folio.start);
            }
            i = if inside {
                at + (folio.end.0 - folio.start.0)
            } else {
                i + 1
            };
        }
    }

    /// Splits a folio where it is, if it can be. Its block is locked.
    fn split_to_pages(&self, space: &Space, state: &mut BlockState, head: Pfn) {
        let _ = self.split_in_block(space, state, head, 0, SplitFlags::DROP_ZERO, None);
    }

    /// What a block is whose huge page, which is unmapped, is taken apart. The block is busy.
    fn shattered(&self, space: &Space, nr: BlockNr, h: HugeMap) -> BlockState {
        let zero = match space.forbids_zero() {
            true => PageMask::EMPTY,
            false => self.zeros_among(h.pfn, &PageMask::FULL),
        };
        BlockState::Table(self.shatter(space, nr, h, zero, PageMask::EMPTY, None))
    }
}

/// Whether all pages of a folio, the first of which would be entry `at`, are in use in a range of
/// entries; and whether the contents of all of them were given up.
fn is_inside(state: &BlockState, range: Range<u32>, at: u32, folio: &Range<Pfn>) -> (bool, bool) {
    let entries = || {
        (0..folio.end.0 - folio.start.0).map(|k| {
            let here = at.wrapping_add(k);
            let e = if range.contains(&here) {
                state.entry(here)
            } else {
                Entry::NONE
            };
            (e, e.frame() == Some(folio.start.add(k)))
        })
    };
    (
        entries().all(|(_, ours)| ours),
        entries().all(|(e, _)| e.lazy()),
    )
}
