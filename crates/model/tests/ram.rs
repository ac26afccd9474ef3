//! The core on RAM below a kernel that copies on write.

mod below;
mod common;
mod scarce;
mod suites;

use deckle_model::RamKernelCow;

/// The profile.
pub type P = RamKernelCow;
