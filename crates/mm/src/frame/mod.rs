//! Page frames: metadata, lists of folios, and the zone: a buddy allocator with per-CPU lists
//! in front of it, watermarks, pageblocks of one mobility, and page capture.
//!
//! A frame number is all that a folio is known by; [`FrameMeta`] is what is known about it.
//! Nothing here knows spaces, translations or charges.
//!
//! Who calls whom, downwards:
//!
//! ```text
//! page_alloc   a request over several zones: fast path, direct reclaim, the reason of a failure
//!   zonelist   which zones permit a request; the watermark test that may reclaim
//!   capture    the blocks that a direct reclaimer keeps together
//!   zone       allocation; `release` is the way back
//!     pcp      per-CPU lists, lock tried and never waited for
//!     buddy    free lists under the zone's lock; `fallback` says whom to take from
//!       table, meta
//! ```

mod buddy;
pub mod capture;
mod check;
mod error;
mod fallback;
pub mod isolate;
pub mod list;
pub mod meta;
pub mod mobility;
pub mod page_alloc;
mod pcp;
mod release;
pub mod request;
pub mod table;
#[cfg(test)]
mod tests;
pub mod watermark;
pub mod why;
pub mod zone;
pub mod zonelist;

pub use capture::{Capture, CapturePolicy, CaptureStats};
pub use error::{BulkFreeError, FreeError, NoFrame, ORDERS};
pub use isolate::{FreePool, Seen};
pub use list::{Link, List};
pub use meta::{Flags, FrameMeta, Kind};
pub use mobility::Mobility;
pub use page_alloc::{Allocated, Goal, Reclaim, ReclaimFor, alloc_pages};
pub use request::{AllocFlags, Cpuset, NodeMask, Request};
pub use table::FrameTable;
pub use watermark::{Mark, Watermarks};
pub use why::WhyFailed;
pub use zone::{Zone, ZoneConfig, ZoneEvents};
pub use zonelist::Zonelist;

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
