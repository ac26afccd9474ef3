//! Page frames: metadata, lists of folios, and the zone's buddy allocator.
//!
//! A frame number is all that a folio is known by; [`FrameMeta`] is what is known about it.
//! Nothing here knows spaces, translations or charges.

pub mod buddy;
mod check;
pub mod list;
pub mod meta;
pub mod table;
#[cfg(test)]
mod tests;

pub use buddy::{BulkFreeError, FreeError, NoFrame, Zone};
pub use list::{Link, List};
pub use meta::{Flags, FrameMeta, Kind};
pub use table::FrameTable;

use crate::units::Pfn;

/// Whoever can look frames up: a zone, or several.
pub trait Frames {
    /// Metadata of a frame; `None` outside of the frames that exist and for frames that were
    /// never part of an allocated or free block.
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta>;
}

impl<F: Frames> Frames for [F] {
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        self.iter().find_map(|f| f.get(pfn))
    }
}
