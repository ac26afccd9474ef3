//! The core on the machine that ships: frames are slots, and a kernel is below.

#[path = "below/mod.rs"]
mod below;
#[path = "common/mod.rs"]
mod common;
#[path = "slots/mod.rs"]
mod slots;
#[path = "suites/mod.rs"]
mod suites;

use deckle_model::SparseKernelCow;

/// The profile.
type P = SparseKernelCow;
