//! Compaction: pages are moved so that what is free lies in one piece.
//!
//! Only where frames are memory. Two scanners walk towards each other (Gorman, 2010): one from
//! below finds a block of the order that is wanted in which everything can be moved, one from
//! above the free frames to move it to. What is moved away is freed by who waits for the block,
//! so that it is captured, and nobody else gets hold of a part of it (`frame/capture.rs`).
//!
//! A page is moved as the kernel does it: unmapped everywhere, copied while nobody can write to
//! it, mapped at its new place. Who touches it meanwhile waits. Pinned pages, those of a folio
//! that somebody else holds, and bad ones stay. Locked ones are moved and stay locked. A
//! folio that must be split to be moved loses its pages of zeros, where the caller says so (C2,
//! R97); what is moved is moved as it is (R114).

mod direct;
mod forked;
mod migrate;
mod scan;

pub(crate) use direct::CompactState;
pub use direct::Compacted;
pub use migrate::{MigrateError, Migrated};
pub(crate) use scan::Compaction;
