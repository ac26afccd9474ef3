//! The manager: policy's own state, on top of the engine.

use crate::compact::CompactState;
use crate::engine::Engine;
use crate::env::Env;
use crate::khugepaged::scan::Khugepaged;
use crate::knob::TunableError;
use crate::machine::{LockClass, OnMachine};
use crate::reclaim::Reclaim;
use crate::reclaim::contig::Placement;
use crate::shrink::retouch::Retouch;
use crate::shrink::trim::Trim;
use crate::sync::Lock;
use crate::tunables::Tunables;
use core::ops::{Deref, DerefMut};

/// A memory manager on the machine `E`: decides what is made huge, split, reclaimed, brought back
/// and collapsed, and has the [`Engine`] do it, whose methods are its own, too. All methods take
/// `&self` and may be called from any CPU at any time unless they say otherwise.
pub struct Mm<E: Env> {
    engine: Engine<E>,
    pub(crate) reclaim: Reclaim,
    pub(crate) retouch: Retouch,
    pub(crate) trim: Trim,
    pub(crate) khugepaged: Khugepaged,
    pub(crate) compaction: CompactState,
    pub(crate) placement: Lock<Placement>,
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
        Ok(Mm {
            engine: Engine::new(platform, machine, charge, store, tunables)?,
            reclaim: Reclaim::new(),
            retouch: Retouch::default(),
            trim: Trim::default(),
            khugepaged: Khugepaged::default(),
            compaction: CompactState::default(),
            placement: Lock::new(LockClass::Tunables, 1, Placement::default()),
        })
    }
}

impl<E: Env> Deref for Mm<E> {
    type Target = Engine<E>;
    fn deref(&self) -> &Engine<E> {
        &self.engine
    }
}

impl<E: Env> DerefMut for Mm<E> {
    fn deref_mut(&mut self) -> &mut Engine<E> {
        &mut self.engine
    }
}

impl<E: Env> OnMachine for Mm<E> {
    type M = E::M;
    fn machine(&self) -> &E::M {
        self.engine.machine()
    }
}
