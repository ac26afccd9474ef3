//! A manager on the model, with a store that cannot be wrong.

use super::P;
use deckle_mm::{
    Env, Item, Mm, PAGE_SIZE, Pfn, Slot, SpaceId, Store, StoreError, StoreStop, Tunables, Vpn,
    Written,
};
use deckle_model::{FrameState, Model, ModelCharge, ModelMachine, Profile};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// A store as plain as can be: what it is worth is that it cannot be wrong. It stands for
/// compression 4:1 and refuses pages that begin with an odd byte 0xEE.
#[derive(Clone)]
pub struct PlainStore(Arc<Mutex<Held>>, pub bool);

/// What happens while a page is put.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// What a store has, and what it was told.
#[derive(Default)]
struct Held {
    pages: HashMap<u32, Vec<u8>>,
    /// Those of them that are on the slower medium.
    behind: HashSet<u32>,
    /// Pages that may be in RAM before some go there; none: there is no such medium.
    share: Option<u64>,
    /// Bytes that moving the pages together gives back.
    loose: u64,
    /// First bytes of pages that could go nowhere.
    refused: Vec<u8>,
    meanwhile: Option<Meanwhile>,
}

impl Held {
    fn in_ram(&self) -> u64 {
        (self.pages.len() - self.behind.len()) as u64
    }
}

/// Pages that one write takes to the slower medium.
const WRITE: usize = 16;

impl PlainStore {
    pub fn new(on: bool) -> PlainStore {
        PlainStore(Arc::default(), on)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap()
    }

    /// There is a slower medium, for what is more than so many pages.
    pub fn set_share(&self, pages: u64) {
        self.held().share = Some(pages);
    }

    /// Pages in RAM, and on the slower medium.
    pub fn places(&self) -> (u64, u64) {
        let held = self.held();
        (held.in_ram(), held.behind.len() as u64)
    }

    /// Takes so many bytes more than it needs, until it is asked to move its pages together.
    pub fn loosen(&self, bytes: u64) {
        self.held().loose = bytes;
    }

    /// First bytes of the pages that it was told could go nowhere.
    pub fn refused_pages(&self) -> Vec<u8> {
        self.held().refused.clone()
    }

    /// What somebody does while the next pages are put.
    pub fn meanwhile(&self, done: impl FnOnce() + Send + 'static) {
        self.held().meanwhile = Some(Box::new(done));
    }
}

impl Store for PlainStore {
    fn accepts(&self) -> bool {
        self.1
    }
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        let meanwhile = self.held().meanwhile.take();
        if let Some(done) = meanwhile {
            done();
        }
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
            let old = self.held().pages.insert(first.0 + done, page.to_vec());
            assert!(old.is_none(), "slot {} is put twice", first.0 + done);
        }
        Ok(())
    }
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        for (n, page) in pages.chunks_mut(PAGE_SIZE).enumerate() {
            let held = self.held();
            let stored = held.pages.get(&(first.0 + n as u32));
            let why = StoreStop::Corrupt;
            page.copy_from_slice(stored.ok_or(StoreError {
                done: n as u32,
                why,
            })?);
        }
        Ok(())
    }
    fn free(&self, first: Slot, count: u32) {
        let mut held = self.held();
        for slot in first.0..first.0 + count {
            held.pages.remove(&slot);
            held.behind.remove(&slot);
        }
    }
    fn ram_bytes(&self) -> u64 {
        let held = self.held();
        held.in_ram() * PAGE_SIZE as u64 / 4 + held.loose
    }
    fn compact(&self, budget: u64) -> u64 {
        let mut held = self.held();
        let moved = held.loose.min(budget);
        held.loose -= moved;
        moved
    }
    fn wants_writeback(&self, _: u64) -> bool {
        let held = self.held();
        held.share.is_some_and(|share| held.in_ram() > share)
    }
    fn writeback(&self) -> Option<Written> {
        let mut held = self.held();
        held.share?;
        let in_ram = held.pages.keys().filter(|slot| !held.behind.contains(slot));
        let mut some: Vec<u32> = in_ram.copied().collect();
        some.sort_unstable();
        some.truncate(WRITE);
        let pages = some.len() as u64;
        held.behind.extend(some);
        let bytes = pages * PAGE_SIZE as u64 / 4;
        (pages > 0).then_some(Written { pages, bytes })
    }
    fn refused(&self, page: &[u8]) {
        self.held().refused.push(page[0]);
    }
    fn stored_pages(&self) -> u64 {
        self.held().pages.len() as u64
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
