//! The engine's own state: the machine's traits, the zones, the spaces, the lists, the swap map
//! and the counters.

use crate::charge::Charge;
use crate::engine::copies::{Copies, Worth};
use crate::engine::lru::Lru;
use crate::engine::open::OpenRuns;
use crate::engine::pressure::Pressure;
use crate::engine::queue::SplitQueue;
use crate::engine::rmap::Rmap;
use crate::engine::slots::SlotMap;
use crate::engine::space::Space;
use crate::env::Env;
use crate::frame::{FrameLookup, FrameMeta, Zone};
use crate::frames::Frames;
use crate::knob::TunableError;
use crate::machine::{LockClass, Machine, OnMachine};
use crate::platform::Platform;
use crate::scratch::Scratch;
use crate::stat::Stats;
use crate::store::Store;
use crate::sync::Lock;
use crate::tunables::Tunables;
use crate::units::{BLOCK_ORDER, Pfn, bytes_to_pages};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// What owns memory and translations, and changes them. It decides nothing: when and for whom is
/// [`crate::Mm`]'s, which stands on it. All methods take `&self` and may be called from any CPU
/// at any time unless they say otherwise.
pub struct Engine<E: Env> {
    platform: E::P,
    machine: E::M,
    charge: E::C,
    store: E::S,
    stats: Stats,
    tunables: Lock<Tunables>,
    pub(crate) zones: Zones,
    pub(in crate::engine) spaces: Lock<Vec<Option<Arc<Space>>>>,
    pub(crate) folios: Folios,
    pub(crate) swap: Swap,
    pub(crate) open: OpenRuns,
    pub(in crate::engine) pressure: Pressure,
}

/// The frames.
pub(crate) struct Zones {
    /// For folios below the block order, or for all.
    pub small: Zone,
    /// For huge pages.
    pub huge: Option<Zone>,
    /// What stands for a frame that does not exist (a defect).
    nowhere: FrameMeta,
}

/// Which folios there are.
pub(crate) struct Folios {
    pub lru: Lock<Lru>,
    pub queue: Lock<SplitQueue>,
    /// Where those are mapped that forks share, and the pins.
    pub rmap: Lock<Rmap>,
    /// Times reclaim passed a folio over because its block was locked.
    pub contended: AtomicU64,
    /// Pages of folios that nobody holds any more but that are never used again.
    pub lost: AtomicU64,
}

/// What is in the store.
pub(crate) struct Swap {
    pub slots: Lock<SlotMap>,
    pub copies: Lock<Copies>,
    pub worth: Worth,
    /// Times a family was left, see [`Engine::leave_family`].
    pub families_left: AtomicU64,
    pub scratch: Scratch,
    /// Pages of the store's RAM that are charged.
    charged: AtomicU64,
}

impl Zones {
    /// All zones.
    pub fn iter(&self) -> impl Iterator<Item = &Zone> {
        core::iter::once(&self.small).chain(&self.huge)
    }
}

impl<E: Env> Engine<E> {
    /// An engine without spaces. Errors: a tunable out of range.
    pub(crate) fn new(
        platform: E::P,
        machine: E::M,
        charge: E::C,
        store: E::S,
        tunables: Tunables,
    ) -> Result<Engine<E>, TunableError> {
        tunables.validate()?;
        let zones = platform.zones();
        let zone = |span| E::Frames::zone(span, machine.nr_cpus());
        Ok(Engine {
            zones: Zones {
                small: zone(zones.small),
                huge: zones.huge.map(zone),
                nowhere: FrameMeta::new(),
            },
            platform,
            machine,
            charge,
            store,
            stats: Stats::new(),
            tunables: Lock::new(LockClass::Tunables, 0, tunables),
            spaces: Lock::new(LockClass::Spaces, 0, Vec::new()),
            folios: Folios {
                lru: Lock::new(LockClass::Lru, 0, Lru::new()),
                queue: Lock::new(LockClass::SplitQueue, 0, SplitQueue::new()),
                rmap: Lock::new(LockClass::Rmap, 0, Rmap::new()),
                contended: AtomicU64::new(0),
                lost: AtomicU64::new(0),
            },
            swap: Swap {
                slots: Lock::new(LockClass::SlotMap, 0, SlotMap::new()),
                copies: Lock::new(LockClass::SlotMap, 1, Copies::new()),
                worth: Worth::new(),
                families_left: AtomicU64::new(0),
                scratch: Scratch::new(),
                charged: AtomicU64::new(0),
            },
            open: OpenRuns::default(),
            pressure: Pressure::new(),
        })
    }

    /// The operations on memory.
    pub(in crate::engine) fn memory(&self) -> &E::P {
        &self.platform
    }
    /// What others may see of the platform.
    pub fn platform(&self) -> &<E::P as Platform>::Handle {
        self.platform.handle()
    }
    /// The same for who has the manager alone.
    pub fn platform_mut(&mut self) -> &mut <E::P as Platform>::Handle {
        self.platform.handle_mut()
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
        match &self.zones.huge {
            Some(z) if order >= BLOCK_ORDER => z,
            _ => &self.zones.small,
        }
    }

    /// The zone that a frame belongs to.
    pub(crate) fn zone_of(&self, pfn: Pfn) -> &Zone {
        match &self.zones.huge {
            Some(z) if z.contains(pfn) => z,
            _ => &self.zones.small,
        }
    }

    /// Frames that are handed out.
    pub fn frames_used(&self) -> u64 {
        let used = |zone: &Zone| u64::from(zone.span().frames) - zone.free_pages();
        self.zones.iter().map(used).sum()
    }

    /// The metadata of a frame that was handed out.
    pub(crate) fn meta(&self, pfn: Pfn) -> &FrameMeta {
        self.zone_of(pfn).get(pfn).unwrap_or_else(|| {
            debug_assert!(false, "{pfn} was never handed out");
            &self.zones.nowhere
        })
    }

    /// The spaces that exist now.
    pub(crate) fn all_spaces(&self) -> Vec<Arc<Space>> {
        let spaces = self.spaces.lock(&self.machine);
        spaces.iter().flatten().cloned().collect()
    }

    /// Brings the charge of the store's RAM up to date; returns by how many pages it grew
    /// (negative: shrank). Called after pages were put or freed.
    pub fn settle_store(&self) -> i64 {
        let now = bytes_to_pages(self.store.charged_bytes());
        let before = self.swap.charged.swap(now, Ordering::AcqRel);
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
        self.swap.charged.store(now, Ordering::Release);
        now
    }

    /// Pages of the store's RAM that are charged now.
    pub fn store_charged(&self) -> u64 {
        self.swap.charged.load(Ordering::Acquire)
    }
}

impl<E: Env> OnMachine for Engine<E> {
    type M = E::M;
    fn machine(&self) -> &E::M {
        &self.machine
    }
}

impl<E: Env> FrameLookup for Engine<E> {
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        self.zone_of(pfn).get(pfn)
    }
}
