//! One memory limit over many processes.
//!
//! `deckle run` creates a *group*: a small file in shared memory that every process of the
//! tree finds by its name. It holds the limits, the knobs, and one *line* per process with
//! what that process has charged, its gauges and counters, and a doorbell by which others ask
//! it to reclaim.
//!
//! The one invariant: **what a group uses is the sum of its lines, and nothing else**. No
//! total is stored, so a process that is killed at any instruction leaves no wrong total
//! behind: its line holds exactly what it had charged, and whoever finds the line stale (the
//! process is gone) takes it back.
//!
//! The crate is used inside other people's programs: it starts no thread, takes no lock that
//! another process could die with, and allocates nothing.

#![forbid(unsafe_code)]

pub mod ask;
pub mod attach;
pub mod charge;
pub mod estimate;
pub mod file;
pub mod given;
pub mod knobs;
pub mod layout;
pub mod lend;
pub mod line;
pub mod look;
pub mod news;
pub mod oom;
pub mod proc;
pub mod program;
pub mod proto;
pub mod publish;
pub mod remedy;

pub use ask::{Answer, Request};
pub use attach::{AttachError, Group, Name};
pub use charge::GroupCharge;
pub use estimate::{History, droppable};
pub use file::SwapFile;
pub use given::Given;
pub use knobs::{Limits, SwapKind};
pub use line::{Full, LineId, Process, Reservation};
pub use look::{Alias, Locked, Look};
pub use oom::{Asked, Members, THRASHING};
pub use publish::{Gauges, is_gauge};
pub use remedy::{Means, Remedies, Sample, Seen};
