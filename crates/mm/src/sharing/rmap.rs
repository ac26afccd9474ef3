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

use crate::engine::folio::order_of;
use crate::env::Env;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::units::{BLOCK_PAGES, Pfn, SpaceId, Vpn, order_pages};
use alloc::collections::BTreeMap;
use alloc::vec;
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
    places: BTreeMap<u32, Vec<Place>>,
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

    fn at(&mut self, head: Pfn, space: SpaceId, first: Vpn) -> Option<&mut Place> {
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

impl<E: Env> Mm<E> {
    /// Whether a fork has shared a folio and it is not proven yet that it is one place's own.
    pub(crate) fn is_forked(&self, head: Pfn) -> bool {
        self.meta(head).has(Flags::FORKED)
    }

    /// The places of a forked folio; none for any other.
    pub(crate) fn places(&self, head: Pfn) -> Vec<Place> {
        let rmap = self.rmap.lock(self.machine());
        rmap.places.get(&head.0).cloned().unwrap_or_default()
    }

    /// The one place of a forked folio, if it has no other any more.
    pub(crate) fn only_place(&self, head: Pfn) -> Option<(SpaceId, Vpn)> {
        match self.places(head)[..] {
            [place] => Some((place.space, place.first)),
            _ => None,
        }
    }

    /// A fork: `from` holds `from.refs` references now, which are all there are if the folio
    /// was not forked before; `to` takes `to.refs` more, with what this place holds already.
    /// The references are the caller's to take. Block of `from` busy.
    pub(crate) fn rmap_fork(&self, head: Pfn, from: Place, to: Place) {
        let mut rmap = self.rmap.lock(self.machine());
        let meta = self.meta(head);
        if !meta.set(Flags::FORKED).has(Flags::FORKED) {
            meta.clear_owner();
            rmap.places.insert(head.0, vec![from]);
        }
        Self::add_place(&mut rmap, head, to);
    }

    fn add_place(rmap: &mut Rmap, head: Pfn, to: Place) {
        match rmap.at(head, to.space, to.first) {
            Some(place) => place.refs += to.refs,
            None => rmap.places.entry(head.0).or_default().push(to),
        }
    }

    /// Entries of a place come that hold references already (its pages moved there, or a huge
    /// mapping became a table). Nothing for a folio that is not forked.
    pub(crate) fn rmap_add(&self, head: Pfn, to: Place) {
        if self.is_forked(head) {
            let mut rmap = self.rmap.lock(self.machine());
            // Only the last place takes the flag away, and the caller holds one.
            Self::add_place(&mut rmap, head, to);
        }
    }

    /// Entries that hold `refs` references leave a place; their references are the caller's to
    /// drop next. Nothing for a folio that is not forked. Returns whether pages of the folio
    /// are now mapped nowhere, as far as the counts tell (they tell nothing of which ones).
    pub(crate) fn rmap_del(&self, head: Pfn, space: SpaceId, first: Vpn, refs: u32) -> bool {
        if !self.is_forked(head) {
            return true;
        }
        let pages = order_pages(order_of(self.meta(head)));
        let mut rmap = self.rmap.lock(self.machine());
        match rmap.at(head, space, first) {
            Some(place) => {
                debug_assert!(place.refs >= refs, "{place:?} loses {refs}");
                place.refs = place.refs.saturating_sub(refs);
            }
            None => debug_assert!(false, "{head} is not at {space} {first}"),
        }
        let Some(places) = rmap.places.get_mut(&head.0) else {
            return true;
        };
        places.retain(|p| p.refs > 0);
        let left: u32 = places.iter().map(|p| p.refs).sum();
        let whole = left >= pages || places.iter().any(|p| p.huge);
        if places.is_empty() {
            rmap.places.remove(&head.0);
            self.meta(head).clear(Flags::FORKED);
        }
        !whole
    }

    /// A huge mapping of a place became a table of 512 entries: 511 references more, which are
    /// the caller's to take.
    pub(crate) fn rmap_split(&self, head: Pfn, space: SpaceId, first: Vpn) {
        if !self.is_forked(head) {
            return;
        }
        let mut rmap = self.rmap.lock(self.machine());
        if let Some(place) = rmap.at(head, space, first) {
            (place.refs, place.huge) = (BLOCK_PAGES, false);
        }
    }

    /// The place is proven to hold every reference: the folio is its own (R89). One that a
    /// move has put across two blocks stays in this map, as its only place. Block locked.
    pub(crate) fn rmap_settle(&self, head: Pfn, space: SpaceId, first: Vpn) {
        let pages = order_pages(order_of(self.meta(head)));
        let mut rmap = self.rmap.lock(self.machine());
        let meta = self.meta(head);
        let fits = first.index() + pages <= BLOCK_PAGES && first.0 < 1 << 48;
        if !meta.has(Flags::FORKED) || !fits {
            return;
        }
        let places = rmap.places.remove(&head.0).unwrap_or_default();
        meta.set_owner(space, first);
        meta.clear(Flags::FORKED);
        drop(rmap);
        // What the counts of several places could not tell is plain now.
        if places.iter().any(|p| !p.huge && p.refs < pages) {
            self.partially_mapped(head);
        }
    }

    /// Takes a folio out of the map whose entries the caller owns, all of them.
    pub(crate) fn rmap_clear(&self, head: Pfn) {
        let mut rmap = self.rmap.lock(self.machine());
        rmap.places.remove(&head.0);
        self.meta(head).clear(Flags::FORKED);
    }

    /// Puts a folio into the map whose entries the caller owns: at several places, or at one.
    pub(crate) fn rmap_set(&self, head: Pfn, places: Vec<Place>) {
        let mut rmap = self.rmap.lock(self.machine());
        self.meta(head).set(Flags::FORKED);
        rmap.places.insert(head.0, places);
    }
}
