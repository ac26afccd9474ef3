//! What a fork needs whose child nobody manages.

use crate::charge::Charge;
use crate::engine::space::MapError;
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::BlockState;
use crate::table::entry::Kind;
use crate::units::{BLOCK_PAGES, SpaceId};

impl<E: Env> Mm<E> {
    /// Makes a space ready for a fork whose child nobody manages: everything is in the program or
    /// never was, nothing is in the store, no zero page is mapped. The caller keeps faults,
    /// reclaim and mapping calls away. Errors: [`MapError::Limit`] if
    /// the limit does not allow it; some pages are back then.
    pub fn settle_for_fork(&self, id: SpaceId) -> Result<(), MapError> {
        let space = self.space(id)?;
        let swapped = self.stats().get(Item::NrSwapped);
        if self.charge().usage().saturating_add(swapped) > self.charge().max() {
            return Err(MapError::Limit);
        }
        for (block, first, n) in space.parts(self, space.base, space.pages) {
            for k in 0..n {
                let page = first.add(k as u64);
                let kind = block.lock(self).entry(page.index()).kind();
                if let Kind::Swapped(_) = kind {
                    self.fault(id, page, false, FaultMode::MayWait)
                        .map_err(|_| MapError::Limit)?;
                }
            }
        }
        self.activate_all(id)?;
        for (block, first, _) in space.parts(self, space.base, space.pages) {
            let mut state = block.lock(self);
            match &mut *state {
                BlockState::Table(table) => {
                    self.hide_zeros(id, table, first.block().start(), BLOCK_PAGES);
                }
                BlockState::HugeSwapped(_) => return Err(MapError::Limit),
                _ => {}
            }
            let left = (0..BLOCK_PAGES).any(|i| matches!(state.entry(i).kind(), Kind::Swapped(_)));
            if left {
                return Err(MapError::Limit);
            }
        }
        Ok(())
    }
}
