//! The manager: the traits, the zones, the spaces, the lists and the counters.

use crate::charge::Charge;
use crate::compact::CompactState;
use crate::engine::copies::{Copies, Worth};
use crate::engine::lru::Lru;
use crate::engine::queue::SplitQueue;
use crate::engine::slots::SlotMap;
use crate::engine::space::Space;
use crate::env::Env;
use crate::frame::{FrameMeta, Frames, Zone, ZoneConfig};
use crate::khugepaged::scan::Khugepaged;
use crate::machine::{LockClass, Machine};
use crate::platform::Platform;
use crate::pressure::Pressure;
use crate::reclaim::refault::Refault;
use crate::scratch::Scratch;
use crate::sharing::rmap::Rmap;
use crate::shrink::retouch::Retouch;
use crate::shrink::trim::Trim;
use crate::stat::Stats;
use crate::store::Store;
use crate::sync::Lock;
use crate::tunables::{TunableError, Tunables};
use crate::units::{BLOCK_ORDER, Pfn, bytes_to_pages};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A memory manager on the machine `E`. All methods take `&self` and may be called from any
/// CPU at any time unless they say otherwise.
pub struct Mm<E: Env> {
    platform: E::P,
    machine: E::M,
    charge: E::C,
    store: E::S,
    stats: Stats,
    tunables: Lock<Tunables>,
    pub(crate) small: Zone,
    pub(crate) huge: Option<Zone>,
    pub(crate) spaces: Lock<Vec<Option<Arc<Space>>>>,
    pub(crate) rmap: Lock<Rmap>,
    pub(crate) lru: Lock<Lru>,
    pub(crate) queue: Lock<SplitQueue>,
    pub(crate) slots: Lock<SlotMap>,
    pub(crate) copies: Lock<Copies>,
    pub(crate) worth: Worth,
    /// What stands for a frame that does not exist (a defect).
    nowhere: FrameMeta,
    /// Pages of the store's RAM that are charged.
    store_charged: AtomicU64,
    /// Pages isolated by reclaim and not yet put back or freed.
    pub(crate) isolated: AtomicU64,
    /// Times reclaim passed a folio over because its block was locked.
    pub(crate) contended: AtomicU64,
    /// Pages of folios that nobody holds any more but that are never used again.
    pub(crate) lost: AtomicU64,
    pub(crate) scratch: Scratch,
    /// Changes after each round of reclaim: who found everything isolated waits on it.
    pub(crate) reclaim_seq: AtomicU32,
    pub(crate) pressure: Pressure,
    /// Usage when reclaim above `memory.high` last found nothing; `u64::MAX`: it found some.
    pub(crate) barren_high: AtomicU64,
    /// Where the next round of reclaim goes on to close what is open: a page's number.
    pub(crate) closed_to: AtomicU64,
    /// Runs of open pages in all blocks.
    pub(crate) open_runs: AtomicU32,
    pub(crate) refault: Refault,
    pub(crate) retouch: Retouch,
    pub(crate) trim: Trim,
    pub(crate) khugepaged: Khugepaged,
    pub(crate) compaction: CompactState,
}

impl<E: Env> Mm<E> {
    /// A manager without spaces. Errors: a tunable out of range.
    pub fn new(
        platform: E::P,
        machine: E::M,
        charge: E::C,
        store: E::S,
        tunables: Tunables,
    ) -> Result<Mm<E>, TunableError> {
        tunables.validate()?;
        let zones = platform.zones();
        let config = if E::P::CONTIGUITY {
            ZoneConfig::contiguous(machine.nr_cpus())
        } else {
            ZoneConfig::default()
        };
        Ok(Mm {
            small: Zone::with(zones.small, config),
            huge: zones.huge.map(|span| Zone::with(span, config)),
            platform,
            machine,
            charge,
            store,
            stats: Stats::new(),
            tunables: Lock::new(LockClass::Tunables, 0, tunables),
            spaces: Lock::new(LockClass::Spaces, 0, Vec::new()),
            rmap: Lock::new(LockClass::Rmap, 0, Rmap::new()),
            lru: Lock::new(LockClass::Lru, 0, Lru::new()),
            queue: Lock::new(LockClass::SplitQueue, 0, SplitQueue::new()),
            slots: Lock::new(LockClass::SlotMap, 0, SlotMap::new()),
            copies: Lock::new(LockClass::SlotMap, 1, Copies::new()),
            worth: Worth::new(),
            nowhere: FrameMeta::new(),
            store_charged: AtomicU64::new(0),
            isolated: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            scratch: Scratch::new(),
            reclaim_seq: AtomicU32::new(0),
            pressure: Pressure::new(),
            barren_high: AtomicU64::new(u64::MAX),
            closed_to: AtomicU64::new(0),
            open_runs: AtomicU32::new(0),
            refault: Refault::default(),
            retouch: Retouch::default(),
            trim: Trim::default(),
            khugepaged: Khugepaged::default(),
            compaction: CompactState::default(),
        })
    }

    /// The platform.
    pub fn platform(&self) -> &E::P {
        &self.platform
    }
    /// The platform, for who has the manager alone.
    pub fn platform_mut(&mut self) -> &mut E::P {
        &mut self.platform
    }
    /// The machine.
    pub fn machine(&self) -> &E::M {
        &self.machine
    }
    /// The group's account.
    pub fn charge(&self) -> &E::C {
        &self.charge
    }
    /// The store.
    pub fn store(&self) -> &E::S {
        &self.store
    }
    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
    /// The knobs now.
    pub fn tunables(&self) -> Tunables {
        *self.tunables.lock(&self.machine)
    }
    /// Sets the knobs.
    pub fn set_tunables(&self, tunables: Tunables) -> Result<(), TunableError> {
        tunables.validate()?;
        *self.tunables.lock(&self.machine) = tunables;
        Ok(())
    }
    /// The zone that serves folios of `order`.
    pub(crate) fn zone_for(&self, order: u8) -> &Zone {
        match &self.huge {
            Some(z) if order >= BLOCK_ORDER => z,
            _ => &self.small,
        }
    }

    /// The zone that a frame belongs to.
    pub(crate) fn zone_of(&self, pfn: Pfn) -> &Zone {
        match &self.huge {
            Some(z) if z.contains(pfn) => z,
            _ => &self.small,
        }
    }

    /// Frames that are handed out.
    pub fn frames_used(&self) -> u64 {
        let used = |zone: &Zone| u64::from(zone.span().frames) - zone.free_pages();
        used(&self.small) + self.huge.as_ref().map_or(0, used)
    }

    /// The metadata of a frame that was handed out.
    pub(crate) fn meta(&self, pfn: Pfn) -> &FrameMeta {
        self.zone_of(pfn).get(pfn).unwrap_or_else(|| {
            debug_assert!(false, "{pfn} was never handed out");
            &self.nowhere
        })
    }

    /// The spaces that exist now.
    pub(crate) fn all_spaces(&self) -> Vec<Arc<Space>> {
        self.spaces
            .lock(&self.machine)
            .iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Brings the charge of the store's RAM up to date; returns by how many pages it grew
    /// (negative: shrank). Called after pages were put or freed.
    pub fn settle_store(&self) -> i64 {
        let now = bytes_to_pages(self.store.charged_bytes());
        let before = self.store_charged.swap(now, Ordering::AcqRel);
        if now > before {
            self.charge.force_charge(now - before);
        } else if now < before {
            self.charge.uncharge(before - now);
        }
        now as i64 - before as i64
    }

    /// Counts the store's pages anew without charging: for a copy of a manager (in a child of
    /// fork), whose account starts with what this returns.
    pub fn recount_store(&self) -> u64 {
        let now = bytes_to_pages(self.store.charged_bytes());
        self.store_charged.store(now, Ordering::Release);
        now
    }

    /// Pages of the store's RAM that are charged now.
    pub fn store_charged(&self) -> u64 {
        self.store_charged.load(Ordering::Acquire)
    }

    /// Rounds of reclaim until now; wraps.
    pub fn reclaim_rounds(&self) -> u32 {
        self.reclaim_seq.load(Ordering::Acquire)
    }

    /// Says that a round of reclaim ended.
    pub(crate) fn reclaim_round_done(&self) {
        self.reclaim_seq.fetch_add(1, Ordering::Release);
        self.machine.unpark(&self.reclaim_seq, u32::MAX);
    }
}

impl<E: Env> Frames for Mm<E> {
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        self.zone_of(pfn).get(pfn)
    }
}
