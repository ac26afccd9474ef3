//! One function that walks everything and reconciles it (R148).
//!
//! | what | must equal |
//! |---|---|
//! | references of a folio | its entries (a huge page: 1) and its pins, at rest |
//! | where a folio is mapped | its owner, or its places in the reverse map |
//! | an exclusive page | is mapped once |
//! | a mapped page with marks | is guarded |
//! | pages on the lists | pages of all folios, each on exactly one list |
//! | queue | huge folios, and every folio of which only a part is mapped |
//! | folios by size, whole and partially mapped | counted from the entries |
//! | NrAnon, NrInactive, NrThp, NrZero, NrSwapped, NrShared, NrOpen | counted from the entries |
//! | slots in use, pages in the store, users of a slot | swapped entries, kept slots |
//! | NrSwapcached | slots kept by frames of folios |
//! | frames allocated | folios found |
//! | unevictable folios | those of which a page is shared |
//! | charge (if this manager is its only user) | frames allocated + store + unbacked + open |

use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine::folio::{first_page, order_of};
use crate::engine::lru::Which;
use crate::engine::open;
use crate::engine::sharing::Sharing;
use crate::env::Env;
use crate::frame::Flags;
use crate::stat::{Item, SizeItem};
use crate::store::Store;
use crate::table::block::BlockState;
use crate::table::entry::Kind;
use crate::table::vma::Vma;
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, Pfn, Slot, SpaceId, Vpn, order_pages};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// What a walk found.
#[derive(Default)]
struct Seen {
    /// References found for each folio.
    refs: BTreeMap<u32, u32>,
    /// The same, by where the folio's first page would lie.
    places: BTreeMap<u32, BTreeMap<(SpaceId, Vpn), u32>>,
    /// Whether a frame may be mapped more than once by this manager, which costs memory to see.
    by_page: bool,
    /// How often each frame is mapped then, and whether as an exclusive page.
    frames: BTreeMap<u32, (u32, bool)>,
    /// Folios that are a huge mapping somewhere.
    huge: BTreeSet<u32>,
    /// Users of each slot.
    slots: BTreeMap<u32, u32>,
    swapped: u64,
    anon: u64,
    inactive: u64,
    zero: u64,
    shared: u64,
    open: u64,
    open_runs: u64,
    /// Folios of which a part is shared.
    unevictable: BTreeSet<u32>,
    broken: Vec<String>,
}

impl Seen {
    fn check(&mut self, what: &str, is: u64, should: u64) {
        if is != should {
            self.broken
                .push(format!("{what} is {is}, but {should} were found"));
        }
    }
    fn page(&mut self, pfn: Pfn, shared: bool) {
        if !self.by_page {
            return;
        }
        let frame = self.frames.entry(pfn.0).or_default();
        frame.0 += 1;
        frame.1 |= !shared;
    }
    fn place(&mut self, head: Pfn, space: SpaceId, first: Vpn) -> &mut u32 {
        let places = self.places.entry(head.0).or_default();
        places.entry((space, first)).or_default()
    }
    /// What the pages of a block have of their VMAs.
    fn check_vmas(&mut self, vmas: &[Vma], first: Vpn, state: &BlockState) {
        for i in 0..BLOCK_PAGES {
            let (page, e) = (first.add(i as u64), state.entry(i));
            let near = vmas.partition_point(|v| v.start <= page);
            let vma = near.checked_sub(1).map(|n| &vmas[n]);
            let mut broken = |what: &str| self.broken.push(format!("{page} {what}: {e:?}"));
            let Some(vma) = vma.filter(|v| v.contains(page)) else {
                if !e.is_none() {
                    broken("has no mapping");
                }
                continue;
            };
            let unheard = matches!(e.kind(), Kind::Mapped(_)) && !e.guarded();
            if e.marks().any() && unheard || e.marks().uffd_wp && !vma.uffd_wp {
                broken("is not tracked");
            }
            if e.is_open() && vma.locked {
                broken("is open and locked");
            }
            if !e.is_none() && e.prot() != vma.prot {
                broken("has not its VMA's rights");
            }
        }
    }
    fn slot(&mut self, slot: Slot) {
        *self.slots.entry(slot.0).or_default() += 1;
        self.swapped += 1;
    }
}

impl<E: Env> Engine<E> {
    /// Checks all invariants; nothing may be under way. `alone`: nobody else charges the
    /// group, so that the charge can be checked too. Errors: one line for each thing wrong.
    pub fn verify(&self, alone: bool) -> Result<(), Vec<String>> {
        let mut seen = Seen {
            by_page: !E::Sharing::ASIDE,
            ..Seen::default()
        };
        for space in self.all_spaces() {
            let vmas = space.read_vmas(self, |t| {
                if let Err(e) = t.verify() {
                    seen.broken.push(e);
                }
                t.iter().copied().collect::<Vec<_>>()
            });
            for (block, first, _) in space.parts(self, space.base, space.pages) {
                self.see_block(&mut seen, space.id, first, &block.lock(self));
                seen.check_vmas(&vmas, first, &block.lock(self));
            }
        }
        self.see_copies(&mut seen);
        self.check_users(&mut seen);
        self.check_folios(&mut seen);
        let (anon, inactive) = (seen.anon, seen.inactive);
        seen.check("NrAnon", self.stats().get(Item::NrAnon), anon);
        seen.check("NrInactive", self.stats().get(Item::NrInactive), inactive);
        let (zero, slots, swapped) = (seen.zero, seen.slots.len() as u64, seen.swapped);
        let huge = |p: &&u32| self.meta(Pfn(**p)).folio_order() == Some(BLOCK_ORDER);
        let thp = seen.refs.keys().filter(huge).count() as u64;
        seen.check("NrZero", self.stats().get(Item::NrZero), zero);
        seen.check("NrThp", self.stats().get(Item::NrThp), thp);
        let shared = if E::Sharing::ASIDE { seen.shared } else { 0 };
        seen.check("NrShared", self.stats().get(Item::NrShared), shared);
        let open_runs = u64::from(self.open.runs.load(Ordering::Relaxed));
        seen.check("runs of open pages", open_runs, seen.open_runs);
        seen.check("NrOpen", self.stats().get(Item::NrOpen), seen.open);
        seen.check("NrSwapped", self.stats().get(Item::NrSwapped), swapped);
        seen.check(
            "slots in use",
            self.swap.slots.lock(self.machine()).used(),
            slots,
        );
        seen.check("pages in the store", self.store().stored_pages(), slots);
        seen.check("isolated", self.stats().get(Item::NrIsolated), 0);
        if !self.swap.slots.lock(self.machine()).verify() {
            seen.broken.push("the slot map is inconsistent".into());
        }
        let mut used = 0;
        for zone in self.zones.iter() {
            if let Err(e) = zone.verify() {
                seen.broken.push(e);
            }
            used += zone.allocated_pages();
        }
        used -= self.folios.lost.load(Ordering::Acquire);
        let folios: u64 = seen
            .refs
            .keys()
            .map(|&p| order_pages(order_of(self.meta(Pfn(p)))) as u64)
            .sum();
        seen.check("frames allocated", used, folios);
        if alone {
            self.settle_store();
            let open = self.stats().get(Item::NrOpen);
            let should = used + self.store_charged() + self.charge().unbacked() + open;
            seen.check("charge", self.charge().usage(), should);
        }
        if seen.broken.is_empty() {
            Ok(())
        } else {
            Err(seen.broken)
        }
    }

    fn see_block(&self, seen: &mut Seen, space: SpaceId, first: Vpn, state: &BlockState) {
        match state {
            BlockState::Busy => seen.broken.push(format!("block at {first} is busy")),
            BlockState::Huge(h) => {
                if h.shared() {
                    seen.shared += BLOCK_PAGES as u64;
                    seen.unevictable.insert(h.pfn.0);
                }
                (0..BLOCK_PAGES).for_each(|i| seen.page(h.pfn.add(i), h.shared()));
                seen.huge.insert(h.pfn.0);
                *seen.place(h.pfn, space, first) += 1;
                *(if h.mapped() {
                    &mut seen.anon
                } else {
                    &mut seen.inactive
                }) += BLOCK_PAGES as u64;
                *seen.refs.entry(h.pfn.0).or_default() += 1;
                let meta = self.meta(h.pfn);
                if meta.folio_order() != Some(BLOCK_ORDER) {
                    seen.broken.push(format!("huge page at {first}: {meta:?}"));
                }
            }
            BlockState::Empty | BlockState::HugeSwapped(_) | BlockState::Table(_) => {
                if let BlockState::Table(table) = state {
                    seen.open_runs += u64::from(open::runs(table));
                }
                for i in 0..BLOCK_PAGES {
                    let page = first.add(i as u64);
                    match state.entry(i).kind() {
                        Kind::None => {}
                        Kind::Busy => seen.broken.push(format!("{page} is busy")),
                        Kind::Open => seen.open += 1,
                        Kind::Zero { dropped, .. } => seen.zero += dropped as u64,
                        Kind::Swapped(s) => seen.slot(s),
                        Kind::Mapped(p) => {
                            seen.anon += 1;
                            if state.entry(i).shared() {
                                seen.shared += 1;
                                seen.unevictable.insert(self.head_of(p).0);
                            }
                            let e = state.entry(i);
                            if e.shared() && !e.guarded() {
                                seen.broken
                                    .push(format!("{page} is shared and not guarded"));
                            }
                            seen.page(p, e.shared());
                            self.see_frame(seen, space, page, p);
                        }
                        Kind::Inactive(p) => {
                            seen.inactive += 1;
                            seen.page(p, false);
                            if self.is_forked(self.head_of(p)) {
                                seen.broken.push(format!("{page} is forked and at rest"));
                            }
                            self.see_frame(seen, space, page, p);
                        }
                    }
                }
            }
        }
    }

    /// Slots that resident pages kept.
    fn see_copies(&self, seen: &mut Seen) {
        let mut kept = 0;
        for (pfn, slot) in self.swap.copies.lock(self.machine()).iter() {
            kept += 1;
            *seen.slots.entry(slot.0).or_default() += 1;
            // A pin may hold what is mapped nowhere.
            if self.meta(self.head_of(pfn)).refs() == 0 {
                seen.broken.push(format!("{pfn} is free and keeps {slot}"));
            }
        }
        seen.check("NrSwapcached", self.stats().get(Item::NrSwapcached), kept);
    }

    fn see_frame(&self, seen: &mut Seen, space: SpaceId, page: Vpn, pfn: Pfn) {
        let head = self.head_of(pfn);
        *seen.refs.entry(head.0).or_default() += 1;
        *seen.place(head, space, first_page(page, pfn, head)) += 1;
        let meta = self.meta(head);
        if meta.folio_order().is_none() {
            seen.broken
                .push(format!("{page} is {pfn}, but its folio {head} is {meta:?}"));
        }
    }

    /// Pins, places, exclusive pages and users of slots.
    fn check_users(&self, seen: &mut Seen) {
        let rmap = self.folios.rmap.lock(self.machine());
        for (&p, &n) in &rmap.pins {
            *seen.refs.entry(self.head_of(Pfn(p)).0).or_default() += n;
            if seen.frames.get(&p).is_some_and(|f| !f.1) {
                seen.broken.push(format!("{} is pinned and shared", Pfn(p)));
            }
        }
        let mut listed: BTreeMap<u32, BTreeMap<(SpaceId, Vpn), u32>> = BTreeMap::new();
        for (head, places) in rmap.iter() {
            if !self.meta(head).has(Flags::FORKED) {
                seen.broken.push(format!("{head} is listed but not forked"));
            }
            for p in places {
                let at = listed.entry(head.0).or_default();
                if at.insert((p.space, p.first), p.refs).is_some() {
                    seen.broken.push(format!("{head} is listed twice: {p:?}"));
                }
            }
        }
        for (&p, found) in &seen.places {
            let meta = self.meta(Pfn(p));
            let right = match listed.remove(&p) {
                Some(places) => places == *found && meta.owner().is_none(),
                None if meta.has(Flags::FORKED) => false,
                None => found.len() == 1 && found.keys().next().copied() == meta.owner(),
            };
            if !right {
                seen.broken
                    .push(format!("{} is at {found:?}: {meta:?}", Pfn(p)));
            }
        }
        for (p, places) in listed {
            seen.broken
                .push(format!("{} is listed and nowhere: {places:?}", Pfn(p)));
        }
        for (&p, &(n, exclusive)) in &seen.frames {
            let forked = self.is_forked(self.head_of(Pfn(p)));
            if exclusive && n > 1 || !exclusive && !forked {
                seen.broken.push(format!(
                    "{} is mapped {n} times, exclusive {exclusive}",
                    Pfn(p)
                ));
            }
        }
        let slots = self.swap.slots.lock(self.machine());
        for (&slot, &n) in &seen.slots {
            let users = slots.users(Slot(slot));
            if users != n {
                seen.broken
                    .push(format!("{} has {users} users, found {n}", Slot(slot)));
            }
        }
    }

    fn check_folios(&self, seen: &mut Seen) {
        let refs = core::mem::take(&mut seen.refs);
        let (mut partial, mut sizes) = (0, [0; BLOCK_ORDER as usize + 1]);
        for (&p, &n) in &refs {
            let meta = self.meta(Pfn(p));
            let order = order_of(meta);
            // Of what several places hold the counts do not tell all.
            let whole = match self.is_held(Pfn(p)) {
                true => !meta.has(Flags::PARTIAL),
                false => n == order_pages(order) || seen.huge.contains(&p),
            };
            partial += u64::from(!whole);
            sizes[usize::from(order.min(BLOCK_ORDER))] += 1;
            let queued = meta.has(Flags::QUEUED);
            if whole == meta.has(Flags::PARTIAL) || !whole && !queued {
                seen.broken
                    .push(format!("{}: {n} entries, {meta:?}", Pfn(p)));
            }
            if queued && whole && order != BLOCK_ORDER {
                seen.broken
                    .push(format!("{} is queued for nothing: {meta:?}", Pfn(p)));
            }
            if meta.refs() != n {
                seen.broken
                    .push(format!("{}: {n} entries, {meta:?}", Pfn(p)));
            }
            if !meta.has(Flags::LRU) {
                seen.broken
                    .push(format!("{} is on no list: {meta:?}", Pfn(p)));
            }
        }
        let gauge = self.stats().get(Item::NrAnonPartiallyMapped);
        seen.check("NrAnonPartiallyMapped", gauge, partial);
        for order in 1..=BLOCK_ORDER {
            let gauge = self.stats().size(order, SizeItem::NrAnon);
            seen.check("nr_anon of a size", gauge, sizes[usize::from(order)]);
        }
        let lru = self.folios.lru.lock(self.machine());
        let mut listed = 0;
        for which in [Which::Active, Which::Inactive, Which::Unevictable] {
            if let Err(e) = lru.list(which).verify(self) {
                seen.broken.push(e);
            }
            for pfn in lru.list(which).iter(self) {
                listed += 1;
                let aside = E::Sharing::ASIDE && seen.unevictable.contains(&pfn.0);
                if aside != (which == Which::Unevictable) {
                    seen.broken.push(format!("{pfn} is {which:?}"));
                }
                if !refs.contains_key(&pfn.0) {
                    seen.broken
                        .push(format!("{pfn} is listed but nowhere mapped"));
                }
            }
        }
        drop(lru);
        seen.check("folios on the lists", listed, refs.len() as u64);
        let queue = self.folios.queue.lock(self.machine());
        if let Err(e) = queue.list().verify(self) {
            seen.broken.push(e);
        }
        let old = queue.old();
        if old.is_some_and(|old| !queue.list().iter(self).any(|pfn| pfn == old)) {
            seen.broken.push(format!("{old:?} is old and not queued"));
        }
        drop(queue);
        seen.refs = refs;
    }
}
