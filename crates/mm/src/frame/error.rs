//! What can go wrong when frames are taken or given back.

use super::meta::Flags;
use crate::units::{MAX_ORDER, Pfn, SpaceId, Vpn};
use core::fmt;

/// How many orders there are.
pub const ORDERS: usize = MAX_ORDER as usize + 1;

/// No free block of the order, or a larger one, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoFrame {
    /// The order asked for; above 10 there never is one.
    pub order: u8,
    /// Free blocks of each order at that moment.
    pub free: [u64; ORDERS],
}

impl fmt::Display for NoFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no free block of order {}", self.order)?;
        if self.order > MAX_ORDER {
            return write!(f, " (the largest is {MAX_ORDER})");
        }
        write!(f, "; free by order: {:?}", self.free)
    }
}

impl core::error::Error for NoFrame {}

/// Why a block was not taken back; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// Order above 10.
    BadOrder(u8),
    /// The zone has no such frames.
    Outside(Pfn),
    /// A block of that order cannot start at this frame.
    Misaligned(Pfn, u8),
    /// The zone never gave this frame out.
    NeverAllocated(Pfn),
    /// The frame is free already.
    DoubleFree(Pfn),
    /// The frame is inside of a folio, not its first.
    NotHead(Pfn),
    /// The folio has another order: frame, order given, order it has.
    WrongOrder(Pfn, u8, u8),
    /// Flags say that somebody still counts on the folio.
    InUse(Pfn, Flags),
    /// The folio has more than one reference.
    Referenced(Pfn, u32),
    /// A frame of the block is bad, or not part of the folio (R2).
    BadFrame(Pfn),
    /// The folio still belongs to a page of a space: its mapping was not cleared (R31).
    Mapped(Pfn, SpaceId, Vpn),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeError::BadOrder(o) => write!(f, "order {o}, but the largest is {MAX_ORDER}"),
            FreeError::Outside(p) => write!(f, "{p} is outside of the zone"),
            FreeError::Misaligned(p, o) => write!(f, "{p} cannot start a block of order {o}"),
            FreeError::NeverAllocated(p) => write!(f, "{p} was never allocated"),
            FreeError::DoubleFree(p) => write!(f, "{p} is free already"),
            FreeError::NotHead(p) => write!(f, "{p} is not the first frame of its folio"),
            FreeError::WrongOrder(p, o, is) => {
                write!(f, "{p} freed as order {o}, but has order {is}")
            }
            FreeError::InUse(p, flags) => write!(f, "{p} is still in use ({flags:?})"),
            FreeError::Referenced(p, n) => write!(f, "{p} still has {n} references"),
            FreeError::BadFrame(p) => write!(f, "{p} is bad or no part of its folio"),
            FreeError::Mapped(p, space, page) => {
                write!(f, "{p} still belongs to {space} {page}")
            }
        }
    }
}

impl core::error::Error for FreeError {}

/// A bulk free that stopped: the frames before are free, this one and those after are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BulkFreeError {
    /// Frames freed.
    pub done: usize,
    /// Why the next one was not.
    pub why: FreeError,
}

impl fmt::Display for BulkFreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} frames: {}", self.done, self.why)
    }
}

impl core::error::Error for BulkFreeError {}
