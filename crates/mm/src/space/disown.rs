//! Ending the management of a range that stays mapped: the program has asked for something
//! that only the kernel can give (MADV_DONTFORK, a userfaultfd of its own ...), so the kernel
//! gets its pages, all of them, and the core forgets the range.

use crate::engine::space::{BlockRef, MapError, Space};
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::fault::FaultError;
use crate::mm::Mm;
use crate::platform::Prot;
use crate::stat::Item;
use crate::table::block::BlockState;
use crate::table::entry::Kind;
use crate::table::vma::Vma;
use crate::units::{BLOCK_PAGES, PageMask, PageRun, SpaceId, Vpn};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Makes every page of a range that has bytes present in the program, zeros too: a page that
    /// the program has written is no hole for a userfaultfd of its own, whatever was made of it
    /// here. Then forgets the range: its pages stay where they are, uncharged; nothing is mapped
    /// there any more, for the core. Holes stay holes.
    /// The platform's rights are left as they were. From here on faults in the range find no
    /// mapping: the caller ends their delivery next.
    ///
    /// Mapping calls on the range are kept away by the caller, faults and reclaim need not be.
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped, [`MapError::Limit`] if the pages do not fit
    /// below the limit. Nothing has changed then but which pages are resident.
    pub fn disown(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let before = space.read_vmas(self, |t| t.range(start, pages).collect::<Vec<_>>());
        if before.iter().map(|v| v.pages).sum::<u64>() < pages {
            return Err(MapError::Hole(start));
        }
        let done = self.disown_mapped(&space, &before);
        if done.is_err() {
            for vma in &before {
                self.restore(id, vma)?;
            }
        }
        done
    }

    fn restore(&self, id: SpaceId, vma: &Vma) -> Result<(), MapError> {
        self.mprotect(id, vma.start, vma.pages, vma.prot)?;
        match vma.locked {
            true => Ok(()),
            false => self.munlock(id, vma.start, vma.pages),
        }
    }

    fn disown_mapped(&self, space: &Space, vmas: &[Vma]) -> Result<(), MapError> {
        for vma in vmas {
            // Locked: what is brought in stays.
            self.lock_present(space.id, vma.start, vma.pages)?;
            if !vma.prot.read && !vma.prot.exec {
                // What nobody may read cannot be faulted in.
                self.mprotect(space.id, vma.start, vma.pages, Prot::R)?;
            }
            for (block, first, n) in space.parts(self, vma.start, vma.pages) {
                if n < BLOCK_PAGES {
                    self.break_huge(space, &block, first.block(), PageMask::EMPTY);
                }
                self.bring_in(space, &block, first, n)?;
            }
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        for vma in vmas {
            self.protect_range(space, vma.start, vma.pages, vma.prot)?;
        }
        // No fault can put a page there from now on.
        space.edit_vmas(self, |tree| {
            for vma in vmas {
                tree.remove(vma.start, vma.pages);
            }
        });
        for vma in vmas {
            for (block, first, n) in space.parts(self, vma.start, vma.pages) {
                self.forget_part(space, &block, first, n);
            }
        }
        self.settle_store();
        Ok(())
    }

    /// Makes present all that the books hold: faults in what is in the store or at rest, and maps
    /// the zero page where a page of zeros was dropped, which else would be a hole for the kernel.
    fn bring_in(
        &self,
        space: &Space,
        block: &BlockRef,
        first: Vpn,
        n: u32,
    ) -> Result<(), MapError> {
        for k in 0..n {
            let page = first.add(u64::from(k));
            loop {
                let kind = self
                    .lock_settled(block, page.index(), 1)
                    .entry(page.index())
                    .kind();
                let absent = matches!(
                    kind,
                    Kind::Swapped(_) | Kind::Inactive(_) | Kind::Zero { mapped: false, .. }
                );
                if !absent {
                    break;
                }
                match self.fault(space.id, page, false, FaultMode::MayWait) {
                    Ok(_) | Err(FaultError::Busy) => {}
                    Err(FaultError::Oom(_)) => return Err(MapError::Limit),
                    Err(_) => return Err(MapError::Fault(page)),
                }
            }
        }
        Ok(())
    }

    /// Keeps a range resident as far as it has bytes, and what comes there later: mlockall's
    /// part. Holes stay holes. [`MapError::Limit`]: it does not fit; nothing is locked then.
    pub fn lock_contents(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        let space = self.space(id)?;
        for vma in self.mapped_parts(id, start, pages) {
            self.lock_present(id, vma.start, vma.pages)?;
            if !vma.prot.read && !vma.prot.exec {
                // As with the kernel's: what nobody may touch is not brought in.
                continue;
            }
            for (block, first, n) in space.parts(self, vma.start, vma.pages) {
                if let Err(error) = self.bring_in(&space, &block, first, n) {
                    self.munlock(id, vma.start, vma.pages)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Forgets the pages of a block's part, all of which are present or holes.
    fn forget_part(&self, space: &Space, block: &BlockRef, first: Vpn, n: u32) {
        let i = first.index();
        let mut state = self.lock_settled(block, i, n);
        match &mut *state {
            BlockState::Huge(h) => {
                self.forsake_huge(h);
                let pfn = h.pfn;
                self.stats().sub(Item::NrAnon, u64::from(BLOCK_PAGES));
                *state = BlockState::Empty;
                self.put_folio(pfn, 1);
            }
            // A record of a huge page in the store is none any more once a page was brought in.
            BlockState::Table(_) | BlockState::HugeSwapped(_) => {
                if let Some(table) = state.table() {
                    self.drop_entries(PageRun::new(space.id, first, n), table);
                    self.forget_open(table, i, n);
                }
                state.tidy();
            }
            BlockState::Empty | BlockState::Busy => {}
        }
    }

    /// Whether every page of a range is mapped.
    pub fn is_mapped(&self, id: SpaceId, start: Vpn, pages: u64) -> bool {
        let covered = self.mapped_parts(id, start, pages);
        covered.iter().map(|v| v.pages).sum::<u64>() == pages
    }

    /// Whether bytes of a page of a range are not in the program, or on their way.
    pub fn is_any_away(&self, id: SpaceId, start: Vpn, pages: u64) -> bool {
        let Ok(space) = self.space(id) else {
            return false;
        };
        let away = |(block, first, n): (BlockRef, Vpn, u32)| {
            let state = block.lock(self);
            (first.index()..first.index() + n).any(|k| {
                let kind = state.entry(k).kind();
                matches!(kind, Kind::Swapped(_) | Kind::Inactive(_) | Kind::Busy)
            })
        };
        space.contains(start, pages) && space.parts(self, start, pages).any(away)
    }
}
