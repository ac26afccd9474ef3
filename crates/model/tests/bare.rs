//! The core on bare hardware, in what needs no fork.

#[path = "common/mod.rs"]
mod common;
#[path = "scarce/mod.rs"]
mod scarce;
#[path = "suites/mod.rs"]
mod suites;

use deckle_model::RamCoreCow;

/// The profile.
type P = RamCoreCow;
