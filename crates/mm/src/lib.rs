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
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod atomic;
pub mod charge;
pub mod compact;
pub mod engine;
pub mod env;
pub mod fault;
pub mod frame;
mod frames;
mod inspect;
pub mod khugepaged;
pub mod machine;
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
pub use machine::{LockClass, Machine, Site, Work};
pub use mm::Mm;
pub use platform::{Content, Done, Flush, Platform, PlatformError, Prot, Stop, Zones};
pub use reclaim::oom::OomReport;
pub use sharing::core::CoreCow;
pub use sharing::kernel::KernelCow;
pub use shrink::trim::Trimmed;
pub use sizes::{SizeMode, Sizes};
pub use space::advice::Advice;
pub use space::tracking::PageInfo;
pub use stat::{Item, SIZE_ORDERS, SizeItem, Stats};
pub use store::{Store, StoreError, StoreStop, Written};
pub use table::marks::Marks;
pub use tunables::{FaultOrder, Profile, SplitMode, ThpMode, TunableError, Tunables};
pub use units::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, FrameRun, MAX_ORDER, PAGE_SIZE, PageMask, PageRun, Pfn,
    Slot, SpaceId, Vpn,
};
