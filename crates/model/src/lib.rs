//! A software machine for the memory manager: RAM, an MMU with a TLB for each CPU, CPUs that
//! a seeded scheduler interleaves, and an exact account of the group.
//!
//! The model exists to make mistakes of the core visible:
//!
//! - [`Model`] is the [`deckle_mm::Platform`]. Physical memory is a byte array. Loads and
//!   stores of the simulated program ([`Model::load`], [`Model::store`]) go through a TLB that
//!   really caches: operations that take translations away change the page table only, and a
//!   flush that is forgotten leaves an entry that reads and writes the old frame. A frame that
//!   is given back is filled with [`POISON`]. Every broken pre-condition of the trait is
//!   recorded as a [`Violation`]. Pinned pages and failures can be injected.
//! - [`ModelMachine`] is the [`deckle_mm::Machine`]. Each simulated CPU is a thread, exactly
//!   one runs at any time, and a seed decides where CPUs are switched: the same seed gives the
//!   same interleaving. It finds deadlocks and checks the lock order.
//! - [`ModelCharge`] is the [`deckle_mm::Charge`]: exact counters, and charges that fail on
//!   demand.
//!
//! [`Profile`] says which machine it is: the one that ships, or one whose frames are RAM.
//!
//! All three are handles: a clone refers to the same machine, so that a test keeps one while
//! the core owns another.
//!
//! What the model leaves out: page table memory (only its presence is known), caches, memory
//! ordering weaker than sequential consistency, and anything that takes time.
//!
//! # Example
//!
//! A translation that is taken away stays in the TLB until it is flushed, and a flush that is
//! forgotten shows: the program reads what became of the frame. `deckle-mm` has an example of a
//! whole manager on the model.
//!
//! ```
//! use deckle_mm::{Content, PageRun, Platform, Prot, SpaceId, Vpn};
//! use deckle_model::{FIRST_FRAME, Model, POISON};
//!
//! let model = Model::new(8 << 20, 2, 7); // 8 MiB of RAM, two CPUs, and a seed
//! let space = SpaceId(1);
//! model.create_space(space)?;
//! let run = PageRun::new(space, Vpn(3), 1);
//! model.map(run, FIRST_FRAME, Content::Zero, Prot::RW)?;
//!
//! let mut byte = [0];
//! model.store(0, space, 3 * 4096, &[11]).unwrap();
//! let flush = model.discard(run);
//! model.load(0, space, 3 * 4096, &mut byte).unwrap();
//! assert_eq!(byte, [POISON], "CPU 0 has the old translation still");
//! assert!(model.load(1, space, 3 * 4096, &mut byte).is_err(), "CPU 1 never had it");
//!
//! model.flush(&mut std::iter::once(flush));
//! assert!(model.load(0, space, 3 * 4096, &mut byte).is_err());
//! model.assert_clean(); // the flush came before anybody else had the frame
//! # Ok::<(), deckle_mm::PlatformError>(())
//! ```
#![forbid(unsafe_code)]

mod access;
mod charge;
mod frames;
mod inject;
mod machine;
mod model;
mod open;
mod platform;
mod profile;
mod rng;
mod sched;
mod shared;
mod state;
mod table;
mod tlb;
mod trace;
mod translate;
mod unseen;
mod violation;
mod zero;

pub use access::{Fault, FaultKind};
pub use charge::ModelCharge;
pub use frames::{FrameState, POISON};
pub use inject::{Chance, Injection};
pub use machine::{Job, ModelMachine, cpu};
pub use model::{CoreModel, Counters, FIRST_FRAME, Model, ModelHandle, Translation};
pub use profile::{Profile, RamCoreCow, RamKernelCow, SparseKernelCow};
pub use rng::Rng;
pub use trace::{Event, RunError, Trace, TraceEntry};
pub use violation::{Broken, Violation};
