//! What the benchmarks of the pager share.

#![allow(dead_code, unused_imports)] // Each benchmark uses its own part of this module.

#[path = "../../tests/common/inside.rs"]
mod inside;

pub use inside::Inside;
use std::sync::Arc;

use deckle_live::{Die, Limit, LiveConfig, Pager, Service};
use deckle_mm::{Env, FaultMode, Mm, Prot, SpaceId, Store, Tunables, Vpn};
use deckle_model::{Model, ModelCharge, ModelMachine};
use deckle_store::{Algorithm, Ram};

pub const BLOCK: usize = 2 << 20;

/// The number on the command line, among what cargo adds to it.
pub fn number(default: usize) -> usize {
    let mut numbers = std::env::args().filter_map(|a| a.parse().ok());
    numbers.next().unwrap_or(default)
}

/// The upper one of the two in the middle.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Touches and frees so much memory, because a virtual machine may have given freed memory back
/// to its host.
pub fn warm(bytes: usize) {
    let mut memory = vec![0u8; bytes];
    memory.chunks_mut(4096).for_each(|page| page[0] = 1);
    std::hint::black_box(&memory);
}

/// Nothing here forks.
pub fn config() -> LiveConfig {
    LiveConfig {
        dont_fork: true,
        ..LiveConfig::default()
    }
}

/// No limit at all.
pub fn unlimited() -> Arc<Limit> {
    Arc::new(Limit::new(u64::MAX, u64::MAX, u64::MAX))
}

/// A pager on real memory with its threads.
pub fn start<S: Store>(
    config: LiveConfig,
    limit: Arc<Limit>,
    store: S,
    tunables: Tunables,
) -> Service<Limit, S> {
    let pager = Pager::new(config, limit, store, tunables, Box::new(Die)).expect("a pager");
    Service::start(pager).expect("threads")
}

/// The same without a limit, over compressed RAM.
pub fn service(tunables: Tunables) -> Service<Limit, Ram> {
    start(config(), unlimited(), Ram::new(Algorithm::Lz4), tunables)
}

pub struct ModelEnv;
impl Env for ModelEnv {
    type P = Model;
    type M = ModelMachine;
    type C = ModelCharge;
    type S = Ram;
    type Sharing = deckle_mm::KernelCow;
    type Frames = deckle_mm::Slots;
}

/// A manager on the model, with one mapping; one CPU, no limit, over compressed RAM.
pub struct OnModel {
    pub mm: Mm<ModelEnv>,
    pub space: SpaceId,
    pub pages: u64,
    model: Model,
}

impl OnModel {
    /// First page of the mapping.
    pub const BASE: Vpn = Vpn(512 * 16);

    /// A mapping of so many blocks, and RAM for `frames` of them and what the manager needs.
    pub fn new(blocks: usize, frames: usize, tunables: Tunables) -> OnModel {
        let machine = ModelMachine::single();
        let model = Model::new(((frames + 32) * BLOCK) as u64, 1, 1);
        model.attach(&machine);
        let (charge, store) = (ModelCharge::unlimited(), Ram::new(Algorithm::Lz4));
        let mm = Mm::new(model.clone(), machine, charge, store, tunables).expect("a manager");
        let pages = blocks as u64 * 512;
        let space = mm.create_space(Self::BASE, pages).expect("a space");
        mm.mmap(space, Some(Self::BASE), pages, 1, Prot::RW)
            .expect("memory");
        OnModel {
            mm,
            space,
            pages,
            model,
        }
    }

    /// Sets one byte in each of the first `used` pages of every block.
    pub fn touch(&self, used: usize, offset: usize) {
        for block in 0..self.pages / 512 {
            for page in 0..used as u64 {
                let at = Self::BASE.add(block * 512 + page).addr() + offset as u64;
                while let Err(f) = self.model.store(0, self.space, at, &[0xff]) {
                    let done = self
                        .mm
                        .fault(self.space, f.page, f.write, FaultMode::MayWait);
                    done.expect("a page");
                }
            }
        }
    }
}
