//! Gauges of the process line that no counter says.

use crate::process::Process;
use deckle_group::droppable;
use deckle_mm::Item;
use std::sync::PoisonError;

impl Process {
    /// See [`droppable`].
    pub fn droppable(&self) -> u64 {
        let mm = self.pager.mm();
        let stats = mm.stats();
        droppable(
            mm.queued(),
            stats.get(Item::ThpSplitUnmap),
            stats.get(Item::ThpUnderusedScan),
        )
    }

    /// See [`History::age`].
    pub fn oldest_inactive(&self) -> u64 {
        let mm = self.pager.mm();
        let stats = mm.stats();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.age(
            u64::from(mm.reclaim_rounds()),
            stats.get(Item::Pgdeactivate),
            stats.get(Item::NrInactive),
        )
    }
}
