//! The active, inactive and unevictable lists.
//!
//! Active folios are mapped into the program; inactive ones are resident but unmapped, so
//! that a fault tells that they are still wanted: where no accessed bit can be read, ageing
//! is done by unmapping. Unevictable ones are shared since a fork: to take them would free
//! nothing, since others hold the same pages.

use crate::engine::Engine;
use crate::engine::folio::order_of;
use crate::engine::isolated::IsolatedFolio;
use crate::env::Env;
use crate::frame::{Flags, FrameMeta, Link, List};
use crate::stat::Item;
use crate::units::{Pfn, order_pages};

/// Which list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Mapped, or taken back lately.
    Active,
    /// Unmapped, candidates for reclaim.
    Inactive,
    /// Of no use to reclaim now.
    Unevictable,
}

/// The lists, under one lock.
pub struct Lru {
    active: List,
    inactive: List,
    unevictable: List,
}

impl Lru {
    /// Empty lists.
    pub const fn new() -> Lru {
        Lru {
            active: List::new(Link::Lru),
            inactive: List::new(Link::Lru),
            unevictable: List::new(Link::Lru),
        }
    }
    /// A list.
    pub fn list(&self, which: Which) -> &List {
        match which {
            Which::Active => &self.active,
            Which::Inactive => &self.inactive,
            Which::Unevictable => &self.unevictable,
        }
    }
    /// Takes a folio off its list, if it is on one; the folio before it there.
    pub(crate) fn take_out<E: Env>(&mut self, mm: &Engine<E>, pfn: Pfn) -> Option<Pfn> {
        let meta = mm.meta(pfn);
        if !meta.has(Flags::LRU) {
            return None;
        }
        let list = self.list_mut(list_of(meta));
        let before = list.before(mm, pfn);
        list.remove(mm, pfn);
        before
    }
    /// Puts a folio that is on no list on the one that its flags name: behind `place`, which is
    /// on that list, or at the head.
    pub(crate) fn put_in<E: Env>(&mut self, mm: &Engine<E>, pfn: Pfn, place: Option<Pfn>) {
        let meta = mm.meta(pfn);
        let list = self.list_mut(list_of(meta));
        match place {
            _ if meta.has(Flags::LRU) => {}
            Some(place) => _ = list.insert_after(mm, pfn, place),
            None => _ = list.push_head(mm, pfn),
        }
    }
    fn list_mut(&mut self, which: Which) -> &mut List {
        match which {
            Which::Active => &mut self.active,
            Which::Inactive => &mut self.inactive,
            Which::Unevictable => &mut self.unevictable,
        }
    }
}

impl Default for Lru {
    fn default() -> Lru {
        Lru::new()
    }
}

/// The list that a folio's flags name.
fn list_of(meta: &FrameMeta) -> Which {
    if meta.has(Flags::UNEVICTABLE) {
        Which::Unevictable
    } else if meta.has(Flags::ACTIVE) {
        Which::Active
    } else {
        Which::Inactive
    }
}

impl<E: Env> Engine<E> {
    /// Puts a folio that is on no list at the head of one.
    pub(crate) fn lru_add(&self, pfn: Pfn, which: Which) {
        let mut lru = self.folios.lru.lock(self.machine());
        let meta = self.meta(pfn);
        if meta.has(Flags::LRU) {
            return;
        }
        if which == Which::Active {
            meta.set(Flags::ACTIVE);
        } else {
            meta.clear(Flags::ACTIVE);
        }
        lru.list_mut(list_of(meta)).push_head(self, pfn);
    }

    /// Takes a folio off its list, if it is on one.
    pub(crate) fn lru_del(&self, pfn: Pfn) {
        let mut lru = self.folios.lru.lock(self.machine());
        let meta = self.meta(pfn);
        if meta.has(Flags::LRU) {
            lru.list_mut(list_of(meta)).remove(self, pfn);
        }
    }

    /// Moves a folio to the head of a list; one that is isolated goes there when it is put
    /// back (the flag says so). An unevictable one stays where it is.
    pub(crate) fn lru_move(&self, pfn: Pfn, which: Which) {
        if !self.meta(pfn).has(Flags::UNEVICTABLE) {
            self.relist(pfn, which);
        }
    }

    /// The same for any folio. Its block is locked: only so it becomes unevictable, or ceases
    /// to be.
    pub(crate) fn relist(&self, pfn: Pfn, which: Which) {
        let mut lru = self.folios.lru.lock(self.machine());
        let meta = self.meta(pfn);
        let listed = meta.has(Flags::LRU);
        if listed {
            lru.list_mut(list_of(meta)).remove(self, pfn);
        }
        meta.clear(Flags::ACTIVE | Flags::UNEVICTABLE);
        match which {
            Which::Active => drop(meta.set(Flags::ACTIVE)),
            Which::Unevictable => drop(meta.set(Flags::UNEVICTABLE)),
            Which::Inactive => {}
        }
        if listed {
            lru.list_mut(which).push_head(self, pfn);
        }
    }

    /// Isolates the folio at the tail of a list.
    pub(crate) fn isolate_tail(&self, which: Which) -> Option<IsolatedFolio> {
        let mut lru = self.folios.lru.lock(self.machine());
        loop {
            let pfn = lru.list_mut(which).pop_tail(self)?;
            // No reference left: its last owner is on the way to take it off the list.
            if self.meta(pfn).try_get() {
                return Some(self.isolated(pfn));
            }
        }
    }

    /// Isolates this folio, unless somebody else has.
    pub(crate) fn isolate(&self, pfn: Pfn) -> Option<IsolatedFolio> {
        let mut lru = self.folios.lru.lock(self.machine());
        let meta = self.meta(pfn);
        if !meta.has(Flags::LRU) || !meta.try_get() {
            return None;
        }
        lru.list_mut(list_of(meta)).remove(self, pfn);
        Some(self.isolated(pfn))
    }

    /// The folio is off its list, and the caller has a reference for that.
    fn isolated(&self, pfn: Pfn) -> IsolatedFolio {
        let pages = u64::from(order_pages(order_of(self.meta(pfn))));
        self.stats().add(Item::NrIsolated, pages);
        IsolatedFolio::new(pfn)
    }

    /// Ends an isolation: back to the head of the list that the folio's flag names, and the
    /// reference dropped. With the last one the folio is gone, and need not go back.
    pub(crate) fn putback(&self, folio: IsolatedFolio) {
        let meta = self.meta(folio.pfn());
        if meta.refs() > 1 {
            self.lru_add(folio.pfn(), list_of(meta));
        }
        self.end_isolation(folio);
    }

    /// Ends an isolation without going back to a list: the folio is gone but for it.
    pub(crate) fn end_isolation(&self, folio: IsolatedFolio) {
        let pfn = folio.pfn();
        self.isolation_ended(order_pages(order_of(self.meta(pfn))));
        self.put_folio(pfn, 1);
    }

    /// So many pages are isolated no longer.
    pub(crate) fn isolation_ended(&self, pages: u32) {
        self.stats().sub(Item::NrIsolated, pages.into());
    }

    /// Pages on a list now.
    pub fn lru_pages(&self, which: Which) -> u64 {
        self.folios.lru.lock(self.machine()).list(which).pages()
    }
}
