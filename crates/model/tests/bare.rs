//! The core on bare hardware, in what needs no fork.

mod common;
mod scarce;
mod suites;

use deckle_model::RamCoreCow;

/// The profile.
pub type P = RamCoreCow;
