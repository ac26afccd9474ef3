//! The core on the machine that ships: frames are slots, and a kernel is below.

mod below;
mod common;
mod slots;
mod suites;

use deckle_model::SparseKernelCow;

/// The profile.
pub type P = SparseKernelCow;
