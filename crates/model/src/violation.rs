//! Pre-conditions of the platform that were broken.

use deckle_mm::{Pfn, SpaceId, Vpn};
use std::fmt;

/// Which rule of [`deckle_mm::Platform`] was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Broken {
    /// A page was mapped that has a translation already.
    MapOverTranslation,
    /// A page was mapped before the flush of its former translation.
    UnflushedPage,
    /// A frame was read, written or reused before a flush of translations to it.
    UnflushedFrame,
    /// A flush token was dropped: its translations were still unflushed at a point where
    /// nothing is in progress.
    TokenDropped,
    /// A frame was to be filled that holds bytes at rest.
    FrameNotEmpty,
    /// Bytes at rest were asked of a frame that holds none.
    NothingAtRest,
    /// An operation on unmapped frames met a mapped one.
    FrameMapped,
    /// A frame became writable through one translation while another maps it too.
    SharedWritable,
    /// A page was unmapped that has no translation.
    NotMapped,
    /// A page was unmapped with a frame that is not the one behind it.
    WrongFrame,
    /// A page was unmapped with fewer rights than it has.
    WrongProt,
    /// A zero mapping was to be dropped where a frame is mapped.
    NotZeroMapping,
    /// The holes of a page were to be taken back that were not left to the system.
    NotOpen,
    /// A block's tables were given back while something is mapped in it.
    BlockMapped,
    /// A space ended, or was to be overwritten, while something is mapped in it.
    SpaceMapped,
    /// A space was created that exists.
    SpaceExists,
    /// An operation that cannot fail was called on a space that does not exist.
    NoSuchSpace,
    /// A run of no page, or one that leaves its block.
    BadRun,
    /// A frame number outside the zone.
    NoSuchFrame,
    /// `Content::Bytes` of another length than the run.
    WrongLength,
}

/// One broken pre-condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The operation.
    pub op: &'static str,
    /// The rule.
    pub broken: Broken,
    /// The space, if one is concerned.
    pub space: Option<SpaceId>,
    /// The page, if one is concerned.
    pub vpn: Option<Vpn>,
    /// The frame, if one is concerned.
    pub pfn: Option<Pfn>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.op, self.broken)?;
        if let Some(space) = self.space {
            write!(f, " {space}")?;
        }
        if let Some(vpn) = self.vpn {
            write!(f, " {vpn}")?;
        }
        if let Some(pfn) = self.pfn {
            write!(f, " {pfn}")?;
        }
        Ok(())
    }
}
