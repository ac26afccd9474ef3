//! What a fault wants, and what one look at its block comes to.

use crate::charge::OverLimit;
use crate::table::vma::Vma;

/// What a fault may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultMode {
    /// Never reclaims, never waits.
    NoWait,
    /// May reclaim, wait for a busy page, and find that memory is out.
    MayWait,
}

/// What a fault wants of its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To be read.
    Read,
    /// To be written.
    Write,
    /// To be the space's own, writable or not: what a pin needs.
    Unshare,
}

/// How a fault ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// This many pages are visible now that were not.
    Mapped(u32),
    /// The access is allowed already: somebody else was faster. Wake the program.
    Spurious,
}

/// What a step of a fault came to.
pub enum Step {
    /// Done.
    Done(Served),
    /// Start over.
    Again,
    /// Wait until a busy mark of the block goes, then start over.
    Wait(u32),
    /// A write on a hole or on a zero entry: needs a folio.
    Fresh(Vma, u64),
    /// A page in the store: needs frames.
    SwapIn(Vma, u64),
    /// A write to a page that others share: needs a copy.
    Copy(Vma, u64),
    /// A write to a huge page that others share: it is to be taken apart first.
    Break,
    /// The limit refuses a write to a page that others share, or is passed.
    Over(OverLimit),
}
