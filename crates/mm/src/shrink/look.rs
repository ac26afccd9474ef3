//! Looks into huge pages without a change: what their pages would take elsewhere, say.

use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::BlockState;
use crate::units::{BLOCK_PAGES, FrameRun};

/// From page to page of those that are shown: odd, so that all positions in a block have a turn.
const STEP: u32 = 197;

impl<E: Env> Mm<E> {
    /// Shows a page of each of about `most` huge pages, spread over all that there are; each is
    /// unmapped meanwhile, which costs the program a few microseconds. Those that are in use,
    /// locked or shared are passed over. Walks all tables: for reports, not for each fault.
    pub fn look_into_huge(&self, most: u32, look: &mut dyn FnMut(&[u8])) {
        let all = self.stats().get(Item::NrThp);
        let stride = all.div_ceil(u64::from(most.max(1))).max(1);
        let (mut seen, mut shown) = (0_u64, 0);
        for space in self.all_spaces() {
            for (block, first, _) in space.parts(self, space.base, space.pages) {
                if shown == most {
                    return;
                }
                let is_huge = |state: &BlockState| matches!(state, BlockState::Huge(_));
                if !block.try_lock(self).is_some_and(|state| is_huge(&state)) {
                    continue;
                }
                seen += 1;
                if !seen.is_multiple_of(stride) {
                    continue;
                }
                let nr = first.block();
                let Ok(taken) = self.take_huge(&space, &block, nr, None) else {
                    continue;
                };
                let page = taken.h.pfn.add(shown * STEP % BLOCK_PAGES);
                self.with_bytes(FrameRun::new(page, 1), look);
                self.give_huge_back(&space, nr, taken);
                shown += 1;
            }
        }
    }
}
