//! The memory manager on real memory.
//!
//! [`platform`] implements the core's boundary ([`deckle_mm::Platform`]) on one process with
//! userfaultfd: pages of the program move between where it has mapped them and a parking
//! range by remapping, without a copy, and faults on what is away are served by
//! whoever reads [`LivePlatform::program_uffd`].
//!
//! Nothing here allocates, takes a lock that the program could hold, or touches the memory
//! that it manages, except through the platform's own operations.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

pub mod pager;
pub mod platform;
mod ranges;
pub mod trace;

pub use pager::{
    Die, Forcing, Hooks, Limit, LiveEnv, LiveMachine, Pager, PagerError, Region, Service,
    drop_apart, leave_scheduling,
};
pub use platform::scan as zero_scan;
pub use platform::{
    Account, Capabilities, Capability, LiveConfig, LiveError, LiveMemory, LivePlatform, Opened,
    Place, Unread, self_test,
};
pub use ranges::Ranges;
