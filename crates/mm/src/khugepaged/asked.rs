//! Huge pages that a program asks for itself, now: MADV_COLLAPSE. Neither `enabled` nor the
//! limits of khugepaged hold for it; who has refused huge pages (MADV_NOHUGEPAGE) gets none.

use crate::env::Env;
use crate::khugepaged::collapse::{CollapseError, Worth};
use crate::mm::Mm;
use crate::sizes::HUGE_PAGES;
use crate::table::vma::{ThpAdvice, Vma};
use crate::units::{BLOCK_PAGES, SpaceId, Vpn};

const BLOCK: u64 = BLOCK_PAGES as u64;

/// Whole blocks of a range: the first, and the page behind the last.
fn whole_blocks(start: Vpn, pages: u64) -> (u64, u64) {
    let end = start.0 + pages;
    (start.0.next_multiple_of(BLOCK), end - end % BLOCK)
}

/// Whether what has stopped one block need not stop the next.
fn is_of_its_block(why: CollapseError) -> bool {
    matches!(
        why,
        CollapseError::Page(_) | CollapseError::Protected(_) | CollapseError::Cold
    )
}

impl<E: Env> Mm<E> {
    /// Makes a huge page of each whole block of a range. Waits and reclaims. Parts that are not
    /// mapped are passed by: they are the caller's to report.
    ///
    /// # Errors
    /// The last [`CollapseError`], if not every block is a huge page now; [`CollapseError::Vma`]
    /// also for a mapping that can hold none. Others may be huge pages then.
    pub fn collapse_range(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), CollapseError> {
        let worth = Worth {
            none: BLOCK_PAGES,
            swap: BLOCK_PAGES,
            shared: BLOCK_PAGES,
            defrag: true,
            asked: true,
            ..Worth::of(&self.tunables())
        };
        for part in self.mapped_parts(id, start, pages) {
            if !self.may_be_huge(id, &part) {
                return Err(CollapseError::Vma);
            }
            let space = self.space(id).map_err(|_| CollapseError::Vma)?;
            self.close_range(&space, part.start, part.pages)
                .map_err(|_| CollapseError::NoMemory)?;
            let (mut at, end) = whole_blocks(part.start, part.pages);
            let mut failed = Ok(());
            while at < end {
                match self.collapse_if(id, Vpn(at), &worth) {
                    Ok(()) | Err(CollapseError::Huge) => {}
                    Err(why) if is_of_its_block(why) => failed = Err(why),
                    Err(why) => return Err(why),
                }
                at += BLOCK;
            }
            failed?;
        }
        Ok(())
    }

    /// Whether a mapping, of which this is a part, allows huge pages and has room for one.
    fn may_be_huge(&self, id: SpaceId, part: &Vma) -> bool {
        let Ok(space) = self.space(id) else {
            return false;
        };
        let fits = |v: Vma| {
            let (first, end) = whole_blocks(v.start, v.pages);
            first < end
        };
        HUGE_PAGES
            && part.advice != ThpAdvice::NoHuge
            && space.vma(self, part.start).0.is_some_and(fits)
    }
}
