//! A pager in this process, with the store timed: what `deckle run` puts into a program.

use std::sync::Arc;

use deckle_live::{Die, Limit, LiveConfig, Pager, Service};
use deckle_mm::{Slot, Store, StoreError, Tunables};
use deckle_store::{Algorithm, Config, Ram, Segments};
use deckle_sys::Memory;
use deckle_sys::mapping::Advice;

use super::clock::{Part, turn_to, within};
use crate::LabError;
use crate::size::PAGE;

/// Bytes of a huge page, and of a large segment.
const HUGE: usize = 2 << 20;
/// Least bytes from `memory.high` to the limit, and which part of the limit it is.
const ROOM: (u64, u64) = (4 << 20, 64);

/// Segments as a service has them: mapped whole at once, large ones as huge pages.
#[derive(Clone, Copy)]
pub(crate) struct Mapped;

impl Segments for Mapped {
    fn map(&self, bytes: usize) -> Option<Memory> {
        let is_huge = bytes.is_multiple_of(HUGE);
        let mut memory = Memory::map_aligned(bytes, if is_huge { HUGE } else { PAGE }).ok()?;
        // Where it is refused pages come when they are touched.
        if is_huge {
            let _ = memory.advise(0..bytes, Advice::HugePage);
        }
        let _ = memory.advise(0..bytes, Advice::PopulateWrite);
        Some(memory)
    }

    fn encoded(&self) {
        turn_to(Part::Keep);
    }
}

/// A store whose calls are parts.
pub(crate) struct Timed(Ram<Mapped>);

impl Store for Timed {
    fn accepts(&self) -> bool {
        self.0.accepts()
    }
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        within(Part::Compress, || self.0.put(first, pages))
    }
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        within(Part::ReadBack, || self.0.get(first, pages))
    }
    fn free(&self, first: Slot, count: u32) {
        within(Part::Forget, || self.0.free(first, count));
    }
    fn ram_bytes(&self) -> u64 {
        self.0.ram_bytes()
    }
    fn charged_bytes(&self) -> u64 {
        self.0.charged_bytes()
    }
    fn compact(&self, budget: u64) -> u64 {
        within(Part::Keep, || self.0.compact(budget))
    }
    fn stored_pages(&self) -> u64 {
        self.0.stored_pages()
    }
}

/// Starts a pager with this limit in bytes.
pub(crate) fn service(limit: u64) -> Result<Service<Limit, Timed>, LabError> {
    let page = PAGE as u64;
    let room = (limit / ROOM.1).max(ROOM.0);
    let high = limit.saturating_sub(room) / page;
    let account = Arc::new(Limit::new(limit / page, high, u64::MAX));
    let sizes = Config {
        large_segment_bytes: HUGE as u32,
        shards: 2,
        ..Config::new(Algorithm::Lz4)
    };
    let store = Timed(Ram::with(sizes, Mapped));
    let config = LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    };
    let pager = Pager::new(config, account, store, Tunables::default(), Box::new(Die));
    let service = pager.and_then(Service::start);
    service.map_err(|e| LabError::io("starting a pager", std::io::Error::other(e.to_string())))
}
