//! The memory manager of deckle: page frames, folios, address spaces, groups, reclaim,
//! huge-page policy and the swap map.
//!
//! The crate makes no system call, reads no clock, draws no random number and owns no
//! thread. Whatever touches a machine goes through four narrow traits: [`Platform`] (memory
//! and translations), [`Machine`] (CPUs, waiting), [`Charge`] (the group's account) and
//! [`Store`] (where swapped pages go). The same code therefore runs on a software machine
//! in tests and on live memory in programs.
//!
//! Terms are Linux's. Units: a page is 4 KiB, a block is the naturally aligned 2 MiB (512
//! pages) that one PMD entry covers. Counts are pages unless a name says bytes.
//!
//! # Example
//!
//! On the software machine of `deckle-model`, with the store of `deckle-store`: a page is mapped
//! at its first write, evicted, and comes back with its bytes.
//!
//! ```
//! use deckle_mm::{Advice, Env, FaultMode, Item, Mm, Profile, Prot, Served, Tunables, Vpn};
//! use deckle_model::{Model, ModelCharge, ModelMachine};
//! use deckle_store::{Algorithm, Heap, Ram};
//!
//! struct Simulated;
//! impl Env for Simulated {
//!     type P = Model;
//!     type M = ModelMachine;
//!     type C = ModelCharge;
//!     type S = Ram<Heap>;
//!     type Sharing = deckle_mm::KernelCow;
//!     type Frames = deckle_mm::Slots;
//! }
//!
//! let model = Model::new(64 << 20, 1, 1); // 64 MiB of RAM, one CPU, and a seed
//! let mm = Mm::<Simulated>::new(
//!     model.clone(),
//!     ModelMachine::single(),
//!     ModelCharge::unlimited(),
//!     Ram::new(Algorithm::Lz4),
//!     Tunables::of_profile(Profile::Deckle),
//! )?;
//! let space = mm.create_space(Vpn(512), 4096)?;
//! let page = mm.mmap(space, None, 16, 1, Prot::RW)?;
//! let address = page.0 * 4096;
//!
//! // The program writes, the CPU faults, and the manager serves the fault.
//! assert!(model.store(0, space, address, b"deckle").is_err());
//! let served = mm.fault(space, page, true, FaultMode::MayWait)?;
//! assert!(matches!(served, Served::Mapped(_)));
//! model.store(0, space, address, b"deckle").unwrap();
//!
//! mm.madvise(space, page, 16, Advice::PageOut)?;
//! assert_eq!(mm.stats().get(Item::Pswpout), 1);
//! let mut bytes = [0; 6];
//! assert!(model.load(0, space, address, &mut bytes).is_err(), "it is away");
//! mm.fault(space, page, false, FaultMode::MayWait)?;
//! model.load(0, space, address, &mut bytes).unwrap();
//! assert_eq!(&bytes, b"deckle");
//!
//! mm.verify(true).unwrap(); // every count against every entry
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod atomic;
pub mod beyond;
pub mod charge;
pub mod compact;
pub mod engine;
pub mod env;
pub mod fault;
pub mod frame;
mod frames;
mod inspect;
pub mod khugepaged;
pub mod knob;
pub mod machine;
mod memparse;
pub mod mm;
pub mod order;
pub mod platform;

pub mod reclaim;
mod scratch;
pub mod sharing;
pub mod shrink;
mod sizes;
pub mod space;
pub mod stat;
pub mod store;
pub mod sync;
pub mod table;
pub mod tunables;
pub mod units;
mod verify;

pub use beyond::Beyond;
pub use charge::{Charge, OverLimit};
pub use compact::{Compacted, MigrateError, Migrated};
pub use engine::Engine;
pub use engine::isolated::Isolated;
pub use engine::sharing::Sharing;
pub use engine::space::MapError;
pub use engine::split::{Split, SplitError, SplitFlags};
pub use engine::step::{FaultMode, Served};
pub use env::Env;
pub use fault::FaultError;
pub use frames::{Frames, Ram, Slots};
pub use inspect::FolioView;
pub use khugepaged::collapse::CollapseError;
pub use khugepaged::force::Force;
pub use khugepaged::scan::Khugepage;
pub use knob::TunableError;
pub use machine::{LockClass, Machine, Site, Work};
pub use memparse::memparse;
pub use mm::Mm;
pub use platform::{Content, Done, Flush, Platform, PlatformError, Prot, Stop, Zones};
pub use reclaim::contig::Placement;
pub use reclaim::oom::OomReport;
pub use reclaim::shared::GivenUp;
pub use sharing::core::CoreCow;
pub use sharing::kernel::KernelCow;
pub use shrink::trim::Trimmed;
pub use shrink::underused::is_underused;
pub use sizes::{HUGE_PAGES, SizeMode, Sizes};
pub use space::advice::Advice;
pub use space::tracking::PageInfo;
pub use stat::{Item, SIZE_ORDERS, SizeItem, Stats};
pub use store::{Store, StoreError, StoreStop, Written};
pub use table::marks::Marks;
pub use tunables::{FaultOrder, Profile, SplitMode, Stages, ThpMode, Tunables};
pub use units::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, FrameRun, MAX_ORDER, PAGE_SIZE, PageMask, PageRun, Pfn,
    Slot, SpaceId, Vpn,
};
