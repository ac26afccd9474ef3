//! A manager on the model, with a store that cannot be wrong.

use super::P;
use deckle_mm::{
    Env, Item, Mm, PAGE_SIZE, Pfn, Slot, SpaceId, Store, StoreError, StoreStop, Tunables, Vpn,
};
use deckle_model::{FrameState, Model, ModelCharge, ModelMachine, Profile};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A store as plain as can be: what it is worth is that it cannot be wrong. It stands for
/// compression 4:1 and refuses pages that begin with an odd byte 0xEE.
#[derive(Clone, Default)]
pub struct PlainStore(Arc<Mutex<HashMap<u32, Vec<u8>>>>, pub bool);

impl PlainStore {
    pub fn new(on: bool) -> PlainStore {
        PlainStore(Arc::default(), on)
    }
}

impl Store for PlainStore {
    fn accepts(&self) -> bool {
        self.1
    }
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        for (n, page) in pages.chunks(PAGE_SIZE).enumerate() {
            let done = n as u32;
            if !self.1 {
                return Err(StoreError {
                    done,
                    why: StoreStop::Disabled,
                });
            }
            if page[0] == 0xEE {
                return Err(StoreError {
                    done,
                    why: StoreStop::Incompressible,
                });
            }
            let old = self.0.lock().unwrap().insert(first.0 + done, page.to_vec());
            assert!(old.is_none(), "slot {} is put twice", first.0 + done);
        }
        Ok(())
    }
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        for (n, page) in pages.chunks_mut(PAGE_SIZE).enumerate() {
            let map = self.0.lock().unwrap();
            let stored = map.get(&(first.0 + n as u32));
            let why = StoreStop::Corrupt;
            page.copy_from_slice(stored.ok_or(StoreError {
                done: n as u32,
                why,
            })?);
        }
        Ok(())
    }
    fn free(&self, first: Slot, count: u32) {
        let mut map = self.0.lock().unwrap();
        (first.0..first.0 + count).for_each(|s| drop(map.remove(&s)));
    }
    fn ram_bytes(&self) -> u64 {
        self.0.lock().unwrap().len() as u64 * PAGE_SIZE as u64 / 4
    }
    fn stored_pages(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
}

/// The model with a plain store.
pub struct ModelEnv;
impl Env for ModelEnv {
    type P = Model<P>;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = PlainStore;
    type Sharing = <P as Profile>::Sharing;
    type Frames = <P as Profile>::Frames;
}

/// Everything a test holds.
pub struct Rig {
    pub model: Model<P>,
    pub machine: ModelMachine,
    pub charge: ModelCharge,
    pub mm: Mm<ModelEnv>,
    pub space: SpaceId,
}

/// Whether a kernel is below.
pub const BELOW: bool = <P as Profile>::BELOW;

/// First page and size of the window.
pub const BASE: Vpn = Vpn(512 * 16);
pub const WINDOW: u64 = 512 * 24;

impl Rig {
    pub fn new(ram_mib: u64, cpus: usize, seed: u64, swap: bool, tunables: Tunables) -> Rig {
        let charge = ModelCharge::unlimited();
        Rig::in_group(charge, ram_mib, cpus, seed, swap, tunables)
    }

    /// A manager in a group that has others, too: only all of them together can be verified.
    pub fn in_group(
        charge: ModelCharge,
        ram_mib: u64,
        cpus: usize,
        seed: u64,
        swap: bool,
        tunables: Tunables,
    ) -> Rig {
        let machine = if cpus == 1 {
            ModelMachine::single()
        } else {
            ModelMachine::new(cpus, seed)
        };
        let model = Model::of(ram_mib << 20, cpus, seed);
        model.attach(&machine);
        let store = PlainStore::new(swap);
        let mm = Mm::new(
            model.clone(),
            machine.clone(),
            charge.clone(),
            store,
            tunables,
        )
        .unwrap();
        let space = mm.create_space(BASE, WINDOW).unwrap();
        Rig {
            model,
            machine,
            charge,
            mm,
            space,
        }
    }

    /// The core's part of a fork on live memory: from here on a child shares what is mapped.
    pub fn fork(&self) -> bool {
        let done = self.mm.activate_all(self.space).is_ok();
        if done {
            self.mm.share_all(self.space).unwrap();
        }
        done
    }

    /// The children have ended.
    pub fn others_are_gone(&self) -> u64 {
        self.mm.unshare_all();
        self.charge.others_are_gone()
    }

    /// Checks everything, with nothing under way.
    pub fn verify(&self, when: &dyn std::fmt::Debug) {
        self.verify_all(when, true);
    }

    /// The same of one of several managers of a group: what they are charged is nobody's own.
    pub fn verify_in_group(&self, when: &dyn std::fmt::Debug) {
        self.verify_all(when, false);
    }

    fn verify_all(&self, when: &dyn std::fmt::Debug, alone: bool) {
        if let Err(lines) = self.mm.verify(alone) {
            panic!("after {when:?}:\n{}", lines.join("\n"));
        }
        self.model.assert_clean();
        // Bytes rest in the frames of inactive pages and nowhere else: what nobody owns costs
        // memory. On bare hardware a frame has some until somebody fills it.
        let rests = |&(_, state): &(Pfn, FrameState)| state == FrameState::Resting;
        let resting = self.model.used_frames().into_iter().filter(rests).count() as u64;
        let inactive = self.mm.stats().get(Item::NrInactive);
        assert!(
            !BELOW || resting == inactive,
            "after {when:?}: {resting} frames, {inactive} pages at rest"
        );
        // Every page that others share is protected, or a write to it would not be charged.
        if self.mm.stats().get(Item::NrShared) > 0 {
            for (page, t) in self.model.translations(self.space) {
                let bare = self.mm.is_shared(self.space, page) && !t.wp;
                assert!(!bare, "after {when:?}: {page} is shared and not guarded");
            }
        }
    }
}
