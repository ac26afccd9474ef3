//! Huge pages made and taken apart because somebody says so, whatever the knobs say: for tests,
//! and for finding defects in real programs.

use crate::engine::space::{MapError, Space};
use crate::engine::split::{SplitError, SplitFlags};
use crate::env::Env;
use crate::khugepaged::collapse::Worth;
use crate::mm::Mm;
use crate::table::block::BlockState;
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, PageMask, SpaceId, Vpn};
use alloc::vec::Vec;

/// What [`Mm::force`] has tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// To split a folio where it is.
    Split,
    /// To copy what is in use out of a huge page.
    Shatter,
    /// The same, if any of it is zeros.
    Trim,
    /// To make a huge page.
    Collapse,
}

impl<E: Env> Mm<E> {
    /// Copies what is in use of the huge page that holds `page` to small frames and gives the
    /// block back whole; pages of zeros become zero entries. Where frames are short it is split
    /// where it is. Waits for nobody.
    ///
    /// # Errors
    /// [`SplitError`]: `Busy` for now, `NoFolio` for what is no huge page that reclaim may take.
    pub fn shatter_page(&self, id: SpaceId, page: Vpn) -> Result<(), SplitError> {
        self.take_apart(id, page, 0).map(drop)
    }

    /// Takes the huge page that holds `page` apart if `least` of its pages or more are zeros.
    /// Says how many were.
    fn take_apart(&self, id: SpaceId, page: Vpn, least: u32) -> Result<u32, SplitError> {
        let space = self.space(id).map_err(|_: MapError| SplitError::NoFolio)?;
        let nr = page.block();
        let block = space.block_if_any(self, nr).ok_or(SplitError::NoFolio)?;
        let taken = self.take_huge(&space, &block, nr, None);
        let taken = taken.map_err(|later| match later {
            true => SplitError::Busy,
            false => SplitError::NoFolio,
        })?;
        let zero = self.zeros_among(taken.h.pfn, &PageMask::FULL);
        if zero.count() < least {
            self.give_huge_back(&space, nr, taken);
            return Ok(0);
        }
        let table = self.shatter(&space, nr, taken.h, zero, PageMask::EMPTY, None);
        taken.busy.end(self, BlockState::Table(table));
        Ok(zero.count())
    }

    /// Forces something, chosen by the bits of `dice`, on a block of the space that is chosen by
    /// them, too. Says what, and whether it was done; `None`: the space is empty. For a
    /// background context.
    pub fn force(&self, id: SpaceId, dice: u64) -> Option<(Force, bool)> {
        let space = self.space(id).ok()?;
        let page = self.any_page(&space, dice >> 16)?;
        let what = match dice % 8 {
            0 | 1 => Force::Split,
            2 | 3 => Force::Shatter,
            4 => Force::Trim,
            _ => Force::Collapse,
        };
        let done = match what {
            Force::Split => {
                let to = match (dice >> 8) as u8 % BLOCK_ORDER {
                    1 => 0,
                    order => order,
                };
                let flags = match dice & 8 {
                    0 => SplitFlags::NONE,
                    _ => SplitFlags::DROP_ZERO,
                };
                self.split_page(id, page, to, flags).is_ok()
            }
            Force::Shatter => self.shatter_page(id, page).is_ok(),
            Force::Trim => self.take_apart(id, page, 1).is_ok_and(|zeros| zeros > 0),
            Force::Collapse => {
                let worth = Worth {
                    none: BLOCK_PAGES - 1,
                    fits: true,
                    ..Worth::of(&self.tunables())
                };
                self.collapse_if(id, page, &worth).is_ok()
            }
        };
        Some((what, done))
    }

    /// A page of one of the blocks of a space that are in use.
    fn any_page(&self, space: &Space, dice: u64) -> Option<Vpn> {
        let used: Vec<Vpn> = space
            .parts(self, space.base, space.pages)
            .filter(|(block, ..)| !matches!(&*block.lock(self), BlockState::Empty))
            .map(|(_, first, _)| first.block().start())
            .collect();
        let nth = dice.checked_rem(used.len() as u64)?;
        let index = (dice >> 32) % u64::from(BLOCK_PAGES);
        Some(used[nth as usize].add(index))
    }
}
