//! How the reverse map follows what is mapped, shared and proven to be one place's own.

use crate::engine::Engine;
use crate::engine::folio::order_of;
use crate::engine::rmap::{Place, Rmap};
use crate::env::Env;
use crate::frame::Flags;
use crate::units::{BLOCK_PAGES, Pfn, SpaceId, Vpn, order_pages};
use alloc::vec;
use alloc::vec::Vec;

impl<E: Env> Engine<E> {
    /// Whether a fork has shared a folio and it is not proven yet that it is one place's own.
    pub(crate) fn is_forked(&self, head: Pfn) -> bool {
        self.meta(head).has(Flags::FORKED)
    }

    /// The places of a forked folio; none for any other.
    pub(crate) fn places(&self, head: Pfn) -> Vec<Place> {
        let rmap = self.folios.rmap.lock(self.machine());
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
        let mut rmap = self.folios.rmap.lock(self.machine());
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
            let mut rmap = self.folios.rmap.lock(self.machine());
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
        let mut rmap = self.folios.rmap.lock(self.machine());
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
        let mut rmap = self.folios.rmap.lock(self.machine());
        if let Some(place) = rmap.at(head, space, first) {
            (place.refs, place.huge) = (BLOCK_PAGES, false);
        }
    }

    /// The place is proven to hold every reference: the folio is its own (R89). One that a
    /// move has put across two blocks stays in this map, as its only place. Block locked.
    pub(crate) fn rmap_settle(&self, head: Pfn, space: SpaceId, first: Vpn) {
        let pages = order_pages(order_of(self.meta(head)));
        let mut rmap = self.folios.rmap.lock(self.machine());
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
        let mut rmap = self.folios.rmap.lock(self.machine());
        rmap.places.remove(&head.0);
        self.meta(head).clear(Flags::FORKED);
    }

    /// Puts a folio into the map whose entries the caller owns: at several places, or at one.
    pub(crate) fn rmap_set(&self, head: Pfn, places: Vec<Place>) {
        let mut rmap = self.folios.rmap.lock(self.machine());
        self.meta(head).set(Flags::FORKED);
        rmap.places.insert(head.0, places);
    }
}
