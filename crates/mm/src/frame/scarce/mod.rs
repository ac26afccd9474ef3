//! What a zone has besides where frames are memory, so that contiguity is scarce. A zone of slots
//! ([`crate::Slots`], what ships) has none of it, and who reads that can leave it out.
//!
//! ```text
//! page_alloc   a request over several zones: fast path, direct reclaim, the reason of a failure
//!   zonelist   which zones permit a request; the watermark test that may reclaim
//!   capture    the blocks that a direct reclaimer keeps together
//!   pcp        per-CPU lists, lock tried and never waited for
//!   mobility, fallback   pageblocks of one mobility, and whom to take from
//!   isolate    what compaction looks for
//! ```

pub mod capture;
pub(in crate::frame) mod fallback;
pub mod isolate;
pub mod mobility;
pub mod page_alloc;
pub(in crate::frame) mod pcp;
pub mod request;
pub mod watermark;
pub mod why;
pub mod zonelist;
