//! Tables of zeros that a program has only read.
//!
//! Such a page takes no frame, but an entry, and where a program reads here and there the tables of
//! these entries are most of what it costs. A hole reads as zeros, too: so where tables are large,
//! entries that say nothing else go back to holes, and a read maps the zero page again. What stays:
//! pages that reclaim or a split has dropped (R121, R147), locked pages, tracked ones, and those
//! of mappings whose missing pages the program serves itself.

use crate::charge::Charge;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::table::block::BlockState;
use crate::table::entry::{Entry, Kind};
use crate::table::vma::Vma;
use crate::units::{PAGE_SIZE, PageMask, Vpn};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A round of reclaim looks at tables where they take more than this part of the limit.
const SHARE: u64 = 8;
/// Blocks that a round looks at, at most.
const ROUND: u64 = 512;
/// Rounds that pass after one that found nothing, at most.
const MOST_PASSED: u32 = 64;
/// Least pages that are wanted where all blocks are looked at.
const ALL: u64 = 256;

/// What the walk over the tables remembers.
pub(super) struct Zeros {
    /// The page where it goes on.
    next: AtomicU64,
    /// Rounds that pass before the next one that looks, and how many those were last.
    pass: AtomicU32,
    passed: AtomicU32,
}

impl Zeros {
    pub const fn new() -> Zeros {
        Zeros {
            next: AtomicU64::new(0),
            pass: AtomicU32::new(0),
            passed: AtomicU32::new(0),
        }
    }
}

impl<E: Env> Mm<E> {
    /// A round's share: looks at some tables if all of them are large. Returns the pages by which
    /// their charge fell.
    pub(super) fn forget_some_zeros(&self, target: u64) -> u64 {
        let zeros = &self.reclaim.zeros;
        let tick = |n: u32| n.checked_sub(1);
        if self.charge().own() < self.charge().max() / SHARE
            || zeros.pass.fetch_update(Relaxed, Relaxed, tick).is_ok()
        {
            return 0;
        }
        let freed = self.forget_zeros(target, ROUND);
        let pass = match freed {
            0 => (2 * zeros.passed.load(Relaxed)).clamp(1, MOST_PASSED),
            _ => 0,
        };
        zeros.passed.store(pass, Relaxed);
        zeros.pass.store(pass, Relaxed);
        match freed {
            0 => 0,
            _ => self.charge().settle_tables(),
        }
    }

    /// Looks at all tables, for a caller that can reclaim nothing else. True: some were freed.
    pub(super) fn forget_all_zeros(&self, target: u64) -> bool {
        let freed = self.forget_zeros(target.max(ALL), u64::MAX) > 0;
        if freed {
            self.charge().settle_tables();
        }
        freed
    }

    /// Frees tables of about `pages`, in at most `blocks` blocks from where the last walk ended.
    /// Returns the bytes that they took.
    fn forget_zeros(&self, pages: u64, blocks: u64) -> usize {
        let wanted = usize::try_from(pages).unwrap_or(usize::MAX);
        let wanted = wanted.saturating_mul(PAGE_SIZE);
        let (mut freed, mut looked) = (0, 0);
        for space in self.all_spaces() {
            let (base, pages) = (space.base.0, space.pages);
            let from = self
                .reclaim
                .zeros
                .next
                .load(Relaxed)
                .clamp(base, base + pages);
            for (start, end) in [(from, base + pages), (base, from)] {
                let mut at = start;
                for (block, first, n) in space.parts(self, Vpn(start), end - start) {
                    if freed >= wanted || looked >= blocks {
                        break;
                    }
                    freed += self.forget_zeros_of(&space, &block, first, n);
                    looked += 1;
                    at = first.0 + u64::from(n);
                }
                space.free_leaves(self, Vpn(start), at - start);
                self.reclaim.zeros.next.store(at, Relaxed);
                if freed >= wanted || looked >= blocks {
                    return freed;
                }
            }
        }
        freed
    }

    fn forget_zeros_of(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) -> usize {
        if forgettable(&block.lock(self)) == PageMask::EMPTY {
            return 0;
        }
        let (_, seq) = space.vma(self, first);
        let tells = |v: Vma| v.uffd_missing || !v.soft_dirty;
        if space.read_vmas(self, |t| t.range(first, u64::from(n)).any(tells)) {
            return 0;
        }
        let mut state = block.lock(self);
        let (before, zeros) = (state.heap_bytes(), forgettable(&state));
        let BlockState::Table(table) = &mut *state else {
            return 0;
        };
        if space.changed(seq) {
            return 0;
        }
        let is_shown = |k: &u32| matches!(table.get(*k).kind(), Kind::Zero { mapped: true, .. });
        let shown = zeros.pages().filter(is_shown).collect();
        zeros.pages().for_each(|k| table.set(k, Entry::NONE));
        self.drop_zero_pages(space.id, first.block(), &shown);
        state.tidy();
        before.saturating_sub(state.heap_bytes())
    }
}

/// The zeros of a block of which nothing else is known, where there is nothing beside them, so that
/// a part of the table goes with them.
fn forgettable(state: &BlockState) -> PageMask {
    let goes = |e: Entry| {
        let read = matches!(e.kind(), Kind::Zero { dropped: false, .. });
        read && !e.locked() && !e.marks().any()
    };
    match state {
        BlockState::Table(table) => table.alone(goes),
        _ => PageMask::EMPTY,
    }
}
