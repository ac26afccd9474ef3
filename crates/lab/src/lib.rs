//! Published experiments on huge pages, run on the live pager, on the host kernel and on the
//! software model, side by side in one run.
//!
//! - [`content`]: page content of a stated lz4 ratio.
//! - [`program`]: the workloads. They are plain programs that know nothing of deckle, so that the
//!   same binary runs on every side.
//! - [`pageout`], [`oom`], [`capture`], [`anon`], [`underused`], [`overcommit`], [`faults`],
//!   [`oracle`]: the experiments, with a report as text or JSON.
//! - [`host`]: what the kernel rows need of the machine (swap on zram, a memory cgroup, huge page
//!   settings), and the guard that gives all of it back however the run ends.
//! - [`faults`] alone embeds a pager, in its program: to see into it.
//! - [`experiment`]: what they have in common; `table` and `plot` draw their reports, `machines`
//!   has the sides that run programs.
//! - [`model`]: the side of the software model.
//!
//! Dependencies go one way: experiments -> host, child, program -> content, region, size.

#![deny(unsafe_code)]

#[macro_use]
mod named;

pub mod anon;
pub mod capture;
pub mod child;
pub mod content;
pub mod error;
pub mod experiment;
pub mod faults;
mod figures;
pub mod floor;
pub mod host;
pub mod live_stats;
mod machines;
pub mod model;
pub mod oom;
pub mod oracle;
pub mod overcommit;
pub mod pageout;
mod plot;
pub mod program;
pub mod region;
pub mod side;
pub mod size;
mod steps;
mod table;
pub mod underused;
pub mod working_set;

pub use error::LabError;
pub use experiment::{Experiment, Lab, Report, Tell};
pub use program::programs_main;
pub use side::Side;
