//! What huge pages waste on this machine, process by process, and which setting gives it back.
//!
//! - [`Knobs`]: the kernel, its settings, and a verdict on them in words.
//! - [`Target`], [`Process`]: who is looked at.
//! - [`look::find`], [`look::Found`]: huge pages of a process, and the zero-filled pages in them.
//!   Nothing is stopped, no page is brought in or copied, and only pages that are there are read.
//! - [`Tally`], [`Estimate`]: what the kernel would free at a threshold; of a sample, with the
//!   interval in which the whole lies.
//! - [`budget`]: the smallest change that keeps a budget.
//! - [`Survey`]: all that together; [`mod@text`], [`mod@json`], [`lines`]: how it is written.
//!
//! Whether a page is zeros and whether a huge page is underused is decided by the functions that
//! the manager itself has ([`deckle_live::zero_scan`], [`deckle_mm::is_underused`]).

#![forbid(unsafe_code)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod budget;
pub mod error;
pub mod folios;
pub mod gather;
pub mod json;
pub mod knobs;
pub mod lines;
pub mod look;
pub mod openmetrics;
pub mod pace;
pub mod process;
pub mod reader;
pub mod sample;
pub mod smaps;
pub mod survey;
pub mod tally;
pub mod text;
pub mod verdict;

pub use error::InspectError;
pub use knobs::Knobs;
pub use process::{Process, Target};
pub use sample::Estimate;
pub use survey::{Options, Survey};
pub use tally::{Histogram, Tally};

/// Bytes of a huge page.
pub const BLOCK: u64 = 2 << 20;
/// Bytes of a page.
pub const PAGE: u64 = deckle_sys::PAGE as u64;
/// Pages of a huge page.
pub const BLOCK_PAGES: u32 = deckle_mm::BLOCK_PAGES;
/// Thresholds that are told of each process, beside that in force.
pub const THRESHOLDS: [u32; 8] = [0, 64, 255, 409, 450, 470, 490, 510];
