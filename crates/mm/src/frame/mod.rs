//! Page frames: metadata, lists of folios, and the zone: a buddy allocator, with what
//! [`scarce`] adds where frames are memory.
//!
//! A frame number is all that a folio is known by; [`FrameMeta`] is what is known about it.
//! Nothing here knows spaces, translations or charges.
//!
//! Who calls whom, downwards:
//!
//! ```text
//! zone         allocation; `release` is the way back
//!   buddy      free lists under the zone's lock
//!     table, meta
//! ```

mod buddy;
mod check;
mod error;
pub mod list;
pub mod meta;
mod release;
pub mod scarce;
pub mod table;
#[cfg(test)]
mod tests;
pub mod zone;

pub use error::{BulkFreeError, FreeError, NoFrame, ORDERS};
pub use list::{Link, List};
pub use meta::{Flags, FrameMeta, Kind};
pub use scarce::capture::{Capture, CapturePolicy, CaptureStats};
pub use scarce::isolate::{FreePool, Seen};
pub use scarce::mobility::Mobility;
pub use scarce::page_alloc::{Allocated, Goal, Reclaim, ReclaimFor, alloc_pages};
pub use scarce::request::{AllocFlags, Cpuset, NodeMask, Request};
pub use scarce::watermark::{Mark, Watermarks};
pub use scarce::why::WhyFailed;
pub use scarce::zonelist::Zonelist;
pub use scarce::{capture, isolate, mobility, page_alloc, request, watermark, why, zonelist};
pub use table::FrameTable;
pub use zone::{Zone, ZoneConfig, ZoneEvents};

use crate::units::Pfn;

/// Whoever can look frames up: a zone, or several.
pub trait FrameLookup {
    /// Metadata of a frame; `None` outside of the frames that exist and for frames that were
    /// never part of an allocated or free block.
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta>;
}

impl<F: FrameLookup> FrameLookup for [F] {
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        self.iter().find_map(|f| f.get(pfn))
    }
}
