//! Which blocks of the zone hold pages of which kind, so that what cannot be moved or
//! reclaimed does not spread over all of them (grouping by mobility, Gorman and Whitcroft,
//! 2006).
//!
//! A pageblock is what one huge page covers. While any part of it is in use it has a type, and
//! its free blocks are on the lists of that type. A pageblock that is wholly free has none: it
//! goes to the movable lists, whatever it held.

use crate::atomic::AtomicU8;
use crate::platform::FrameSpan;
use crate::units::{BLOCK_ORDER, Pfn};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

/// How many types there are.
pub(in crate::frame) const TYPES: usize = 3;

/// What can be done with an allocated folio to get its frames back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mobility {
    /// It can be moved or reclaimed: pages of programs.
    #[default]
    Movable = 0,
    /// Nothing: page tables, buffers of devices, the allocator's own.
    Unmovable = 1,
    /// It can be given up, but not moved: caches.
    Reclaimable = 2,
}

impl Mobility {
    /// All types, in the order of their numbers.
    pub const ALL: [Mobility; TYPES] = [
        Mobility::Movable,
        Mobility::Unmovable,
        Mobility::Reclaimable,
    ];

    pub(in crate::frame) const fn of_bits(bits: u32) -> Mobility {
        match bits & 3 {
            1 => Mobility::Unmovable,
            2 => Mobility::Reclaimable,
            _ => Mobility::Movable,
        }
    }
}

/// The type of each pageblock of a zone; changed under the zone's lock.
pub(in crate::frame) struct Pageblocks {
    first: u32,
    types: Vec<AtomicU8>,
}

impl Pageblocks {
    /// No types: everything is movable.
    pub(in crate::frame) const fn none() -> Pageblocks {
        Pageblocks {
            first: 0,
            types: Vec::new(),
        }
    }

    /// One byte for each pageblock that `span` touches. Without memory for them: none.
    pub(in crate::frame) fn new(span: FrameSpan) -> Pageblocks {
        let first = span.first.0 >> BLOCK_ORDER;
        let mut types = Vec::new();
        let last = span.first.0.saturating_add(span.frames.saturating_sub(1));
        let n = match span.frames {
            0 => 0,
            _ => ((last >> BLOCK_ORDER) - first + 1) as usize,
        };
        if types.try_reserve_exact(n).is_ok() {
            types.resize_with(n, || AtomicU8::new(Mobility::Movable as u8));
        }
        Pageblocks { first, types }
    }

    /// Whether types are kept at all.
    #[inline]
    pub(in crate::frame) fn kept(&self) -> bool {
        !self.types.is_empty()
    }

    /// Type of the pageblock that a frame lies in.
    #[inline]
    pub(in crate::frame) fn of(&self, pfn: Pfn) -> Mobility {
        let i = (pfn.0 >> BLOCK_ORDER).wrapping_sub(self.first) as usize;
        self.types.get(i).map_or(Mobility::Movable, |t| {
            Mobility::of_bits(t.load(Relaxed) as u32)
        })
    }

    /// Sets the type of the pageblock that a frame lies in.
    pub(in crate::frame) fn set(&self, pfn: Pfn, mobility: Mobility) {
        let i = (pfn.0 >> BLOCK_ORDER).wrapping_sub(self.first) as usize;
        if let Some(t) = self.types.get(i) {
            t.store(mobility as u8, Relaxed);
        }
    }
}
