//! The core on RAM below a kernel that copies on write.

#[path = "below/mod.rs"]
mod below;
#[path = "common/mod.rs"]
mod common;
#[path = "scarce/mod.rs"]
mod scarce;
#[path = "suites/mod.rs"]
mod suites;

use deckle_model::RamKernelCow;

/// The profile.
type P = RamKernelCow;
