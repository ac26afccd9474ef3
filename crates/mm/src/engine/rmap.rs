//! The reverse map: where the pages of a folio are mapped.
//!
//! A folio that no fork has shared belongs to one place, which its owner field names: all its
//! entries lie in one block, and all are exclusive. From its first fork on it has the flag
//! `FORKED`, and a list here names its places: the space, the page where its first page would
//! lie there, and how many references the entries of that place hold. The flag goes when one
//! place is proven to hold all references (see `cow.rs`), not before: until then an entry
//! marked shared stays "maybe shared" (R80).
//!
//! The lock is taken with a block locked or busy. Who holds the block of an entry of an
//! unforked folio keeps it unforked, since all its entries are there.

use crate::units::{Pfn, SpaceId, Vpn};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A place where pages of a folio are mapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The space.
    pub space: SpaceId,
    /// The page where the folio's first page would lie; wraps below page 0.
    pub first: Vpn,
    /// References that the entries of this place hold.
    pub refs: u32,
    /// The one reference is a huge mapping.
    pub huge: bool,
}

/// Places of forked folios, and pins of pages.
pub struct Rmap {
    /// head -> its places, none of which has no reference
    pub(crate) places: BTreeMap<u32, Vec<Place>>,
    /// frame -> how often it is pinned
    pub(crate) pins: BTreeMap<u32, u32>,
}

impl Rmap {
    /// No folio.
    pub const fn new() -> Rmap {
        Rmap {
            places: BTreeMap::new(),
            pins: BTreeMap::new(),
        }
    }

    /// The place of a folio in a space.
    pub(crate) fn at(&mut self, head: Pfn, space: SpaceId, first: Vpn) -> Option<&mut Place> {
        let places = self.places.get_mut(&head.0)?;
        places
            .iter_mut()
            .find(|p| (p.space, p.first) == (space, first))
    }

    /// Every forked folio with its places, for checks.
    pub fn iter(&self) -> impl Iterator<Item = (Pfn, &[Place])> {
        self.places.iter().map(|(&p, list)| (Pfn(p), &list[..]))
    }

    /// Whether a frame of the folio is pinned.
    pub(crate) fn has_pin(&self, head: Pfn, pages: u32) -> bool {
        self.pins.range(head.0..head.0 + pages).next().is_some()
    }
}

impl Default for Rmap {
    fn default() -> Rmap {
        Rmap::new()
    }
}
