//! madvise.

use crate::beyond::Beyond;
use crate::engine::cut::Cut;
use crate::engine::lru::Which;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::mm::Mm;
use crate::table::block::{BlockState, Presence};
use crate::table::entry::Kind;
use crate::table::vma::{ThpAdvice, Vma};
use crate::units::{BLOCK_PAGES, PageMask, SpaceId, Vpn};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

/// What a program may advise about a range. Names as in madvise(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Huge pages are welcome.
    HugePage,
    /// No huge pages.
    NoHugePage,
    /// The contents are not needed: holes, which read as zeros.
    DontNeed,
    /// The contents may be dropped until the next write.
    Free,
    /// Not needed for a while: to the inactive list.
    Cold,
    /// Reclaim now.
    PageOut,
    /// Needed soon: back from the store.
    WillNeed,
    /// Make every page readable now.
    PopulateRead,
    /// Make every page writable now.
    PopulateWrite,
}

impl<E: Env> Mm<E> {
    /// Follows an advice. The range must be mapped throughout, else [`MapError::Hole`]; and what
    /// is to be populated must have the rights for that, else [`MapError::BadRange`].
    pub fn madvise(
        &self,
        id: SpaceId,
        start: Vpn,
        pages: u64,
        advice: Advice,
    ) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        if let Advice::HugePage | Advice::NoHugePage = advice {
            let to = match advice {
                Advice::HugePage => ThpAdvice::Huge,
                _ => ThpAdvice::NoHuge,
            };
            let _mmap = space.mmap_lock.lock(self.machine());
            let edited = space.edit_vmas(self, |tree| tree.update(start, pages, |v| v.advice = to));
            self.cut_huge_zero(&space, [start, start.add(pages)]);
            return edited.map_err(|hole| MapError::Hole(hole.0));
        }
        let mapped = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        let covered: u64 = mapped.iter().map(|v| v.pages).sum();
        match advice {
            Advice::DontNeed => {
                let _mmap = space.mmap_lock.lock(self.machine());
                for v in mapped.iter().filter(|v| !v.locked) {
                    self.zap_mapped(&space, v.start, v.pages);
                }
            }
            Advice::PopulateRead | Advice::PopulateWrite => {
                self.populate_vmas(id, start, &mapped, advice == Advice::PopulateWrite)?;
            }
            Advice::PageOut => {
                self.page_out(id, start, pages)?;
            }
            Advice::Cold => {
                self.close_range(&space, start, pages)?;
                self.deactivate_range(&space, start, pages, false);
            }
            Advice::Free => {
                let _mmap = space.mmap_lock.lock(self.machine());
                self.deactivate_range(&space, start, pages, true);
            }
            Advice::WillNeed => {
                for (block, first, n) in space.parts(self, start, pages) {
                    self.will_need(&space, &block, first, n);
                }
            }
            Advice::HugePage | Advice::NoHugePage => {}
        }
        if covered < pages {
            return Err(MapError::Hole(start));
        }
        Ok(())
    }

    /// Where a mapping ends in the middle of a huge page of zeros, they are those of single pages:
    /// a table cannot hold them whole. `mmap_lock` held.
    fn cut_huge_zero(&self, space: &Space, ends: [Vpn; 2]) {
        for end in ends.into_iter().filter(|end| end.index() > 0) {
            let goes_on = space.vma(self, end).0.is_some_and(|vma| vma.start < end);
            if !goes_on && let Some(block) = space.block_if_any(self, end.block()) {
                block.huge_zero.store(false, Relaxed);
            }
        }
    }

    /// Populates what these VMAs, which are in order, have from `next` on up to the first hole.
    fn populate_vmas(
        &self,
        id: SpaceId,
        mut next: Vpn,
        vmas: &[Vma],
        write: bool,
    ) -> Result<(), MapError> {
        for v in vmas {
            if v.start != next {
                break;
            }
            if !v.prot.read || write && !v.prot.write {
                return Err(MapError::BadRange(v.start, v.pages));
            }
            self.populate(id, v.start, v.pages, write)?;
            next = v.start.add(v.pages);
        }
        Ok(())
    }

    /// Whether a range is mapped throughout; else [`MapError::Hole`] with its first hole.
    pub fn covered(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        let hole = self
            .space(id)?
            .read_vmas(self, |t| t.first_hole(start, pages));
        hole.map_or(Ok(()), |at| Err(MapError::Hole(at)))
    }

    /// MADV_COLD, or MADV_FREE (`lazy`; the mmap lock is held) for a range.
    fn deactivate_range(&self, space: &Space, start: Vpn, pages: u64, lazy: bool) {
        let keeps = self.tunables().beyond(Beyond::KeepAdvised);
        if !keeps {
            self.split_cut_range(space, start, pages, Cut::Parts);
        }
        for (block, first, n) in space.parts(self, start, pages) {
            if lazy {
                self.free_open(space, &block, first, n);
                if keeps {
                    self.free_most_of_huge(space, &block, first, n);
                }
            }
            self.deactivate_part(space, &block, first, n, lazy);
        }
    }

    /// Takes a huge page apart of which more is given up than would have to be copied; that goes
    /// at once. Less of it is not worth the copy, and stays. Not of one that is locked or that
    /// others hold, too. `mmap_lock` held.
    fn free_most_of_huge(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) {
        let parts = BLOCK_PAGES / 2..BLOCK_PAGES;
        let ours = match &*block.lock(self) {
            BlockState::Huge(h) => !h.locked && !h.shared(),
            _ => false,
        };
        if parts.contains(&n) && ours {
            let doomed = PageMask::run(first.index(), n);
            self.break_huge(space, block, first.block(), doomed);
        }
    }

    /// Unmaps the pages of a part; they stay resident on the inactive list. `lazy` marks them
    /// as free to drop. Pages that cannot be unmapped stay.
    fn deactivate_part(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32, lazy: bool) {
        let i = first.index();
        let mut state = block.lock(self);
        if let BlockState::Huge(h) = &mut *state {
            // A part of a huge page stays: to take it apart would cost more than that is worth, or
            // it could not be (profile `linux`).
            if n < BLOCK_PAGES || h.locked || h.shared() {
                return;
            }
            if self.unmap_huge(space, first.block(), h).is_ok() {
                if lazy {
                    h.has = Presence::Lazy;
                }
                let pfn = h.pfn;
                self.lru_move(pfn, Which::Inactive);
            }
            return;
        }
        let BlockState::Table(table) = &mut *state else {
            return;
        };
        self.unmap_entries(space, first.block(), table, i, n);
        for k in i..i + n {
            let e = table.get(k);
            if let Kind::Inactive(p) = e.kind()
                && !e.locked()
            {
                if lazy {
                    table.set(k, e.as_lazy());
                }
                self.lru_move(self.head_of(p), Which::Inactive);
            }
        }
    }

    /// Reads what is in the store back, as far as memory allows without reclaim.
    fn will_need(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) {
        for k in 0..n {
            let page = first.add(k as u64);
            let swapped = matches!(
                block.lock(self).entry(page.index()).kind(),
                Kind::Swapped(_)
            );
            if swapped
                && self
                    .fault(space.id, page, false, FaultMode::NoWait)
                    .is_err()
            {
                return;
            }
        }
    }
}
