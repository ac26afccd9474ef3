//! One function that walks everything and reconciles it (R148).
//!
//! | what | must equal |
//! |---|---|
//! | references of a folio | its entries (a huge page: 1), at rest |
//! | pages on the lists | pages of all folios, each on exactly one list |
//! | queue | huge folios, and every folio of which only a part is mapped |
//! | folios by size, whole and partially mapped | counted from the entries |
//! | NrAnon, NrInactive, NrThp, NrZero, NrSwapped, NrShared | counted from the entries |
//! | slots in use, pages in the store | swapped entries |
//! | frames allocated | folios found |
//! | unevictable folios | those of which a page is shared |
//! | charge (if this manager is its only user) | frames allocated + store + unbacked |

use crate::charge::Charge;
use crate::env::Env;
use crate::folio::order_of;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::reclaim::lru::Which;
use crate::space::block::BlockState;
use crate::space::entry::Kind;
use crate::stat::{Item, SizeItem};
use crate::store::Store;
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
    slots: BTreeSet<u32>,
    anon: u64,
    inactive: u64,
    zero: u64,
    thp: u64,
    shared: u64,
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
    fn slot(&mut self, slot: Slot, page: Vpn) {
        if !self.slots.insert(slot.0) {
            self.broken.push(format!("{slot} of {page} is used twice"));
        }
    }
}

impl<E: Env> Mm<E> {
    /// Checks all invariants; nothing may be under way. `alone`: nobody else charges the
    /// group, so that the charge can be checked too. Errors: one line for each thing wrong.
    pub fn verify(&self, alone: bool) -> Result<(), Vec<String>> {
        let mut seen = Seen::default();
        for space in self.all_spaces() {
            let vmas = space.read_vmas(self, |t| {
                if let Err(e) = t.verify() {
                    seen.broken.push(e);
                }
                t.iter().copied().collect::<Vec<_>>()
            });
            for (block, first, _) in space.parts(self, space.base, space.pages) {
                self.see_block(&mut seen, space.id, first, &block.lock(self));
                let state = block.lock(self);
                for i in 0..BLOCK_PAGES {
                    let page = first.add(i as u64);
                    let e = state.entry(i);
                    let near = vmas.partition_point(|v| v.start <= page);
                    let vma = near.checked_sub(1).map(|n| &vmas[n]);
                    let Some(vma) = vma.filter(|v| v.contains(page)) else {
                        if !e.is_none() {
                            seen.broken
                                .push(format!("{page} is {e:?} without a mapping"));
                        }
                        continue;
                    };
                    if !e.is_none() && e.prot() != vma.prot {
                        seen.broken
                            .push(format!("{page}: rights differ from its VMA's"));
                    }
                }
            }
        }
        self.check_folios(&mut seen);
        let (anon, inactive) = (seen.anon, seen.inactive);
        seen.check("NrAnon", self.stats().get(Item::NrAnon), anon);
        seen.check("NrInactive", self.stats().get(Item::NrInactive), inactive);
        let (zero, thp, slots) = (seen.zero, seen.thp, seen.slots.len() as u64);
        seen.check("NrZero", self.stats().get(Item::NrZero), zero);
        seen.check("NrThp", self.stats().get(Item::NrThp), thp);
        let shared = seen.shared;
        seen.check("NrShared", self.stats().get(Item::NrShared), shared);
        seen.check("NrSwapped", self.stats().get(Item::NrSwapped), slots);
        seen.check(
            "slots in use",
            self.slots.lock(self.machine()).used(),
            slots,
        );
        seen.check("pages in the store", self.store().stored_pages(), slots);
        seen.check("isolated", self.isolated.load(Ordering::Acquire), 0);
        if !self.slots.lock(self.machine()).verify() {
            seen.broken.push("the slot map is inconsistent".into());
        }
        let mut used = 0;
        for zone in core::iter::once(&self.small).chain(&self.huge) {
            if let Err(e) = zone.verify() {
                seen.broken.push(e);
            }
            used += zone.allocated_pages();
        }
        let folios: u64 = seen
            .refs
            .keys()
            .map(|&p| order_pages(order_of(self.meta(Pfn(p)))) as u64)
            .sum();
        seen.check("frames allocated", used, folios);
        if alone {
            self.settle_store();
            let should = used + self.store_charged() + self.charge().unbacked();
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
                seen.thp += 1;
                if h.shared {
                    seen.shared += BLOCK_PAGES as u64;
                    seen.unevictable.insert(h.pfn.0);
                }
                if h.shared && !h.guarded || h.guarded && !h.mapped {
                    seen.broken.push(format!("huge page at {first}: {h:?}"));
                }
                *(if h.mapped {
                    &mut seen.anon
                } else {
                    &mut seen.inactive
                }) += BLOCK_PAGES as u64;
                *seen.refs.entry(h.pfn.0).or_default() += 1;
                let meta = self.meta(h.pfn);
                if meta.folio_order() != Some(BLOCK_ORDER) || meta.owner() != Some((space, first)) {
                    seen.broken.push(format!("huge page at {first}: {meta:?}"));
                }
            }
            BlockState::Empty | BlockState::HugeSwapped(_) | BlockState::Table(_) => {
                for i in 0..BLOCK_PAGES {
                    let page = first.add(i as u64);
                    match state.entry(i).kind() {
                        Kind::None => {}
                        Kind::Busy => seen.broken.push(format!("{page} is busy")),
                        Kind::Zero { dropped, .. } => seen.zero += dropped as u64,
                        Kind::Swapped(s) => seen.slot(s, page),
                        Kind::Mapped(p) => {
                            seen.anon += 1;
                            if state.entry(i).shared() {
                                seen.shared += 1;
                                seen.unevictable.insert(self.head_of(p).0);
                            }
                            self.see_frame(seen, space, page, p);
                        }
                        Kind::Inactive(p) => {
                            seen.inactive += 1;
                            self.see_frame(seen, space, page, p);
                        }
                    }
                }
            }
        }
    }

    fn see_frame(&self, seen: &mut Seen, space: SpaceId, page: Vpn, pfn: Pfn) {
        let head = self.head_of(pfn);
        *seen.refs.entry(head.0).or_default() += 1;
        let should = Some((space, Vpn(page.0.wrapping_sub((pfn.0 - head.0) as u64))));
        let meta = self.meta(head);
        if meta.owner() != should || meta.folio_order().is_none() {
            seen.broken
                .push(format!("{page} is {pfn}, but its folio {head} is {meta:?}"));
        }
    }

    fn check_folios(&self, seen: &mut Seen) {
        let refs = core::mem::take(&mut seen.refs);
        let (mut partial, mut sizes) = (0, [0; BLOCK_ORDER as usize + 1]);
        for (&p, &n) in &refs {
            let meta = self.meta(Pfn(p));
            let order = order_of(meta);
            let whole = n == order_pages(order) || order == BLOCK_ORDER && n == 1;
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
        let lru = self.lru.lock(self.machine());
        let mut listed = 0;
        for which in [Which::Active, Which::Inactive, Which::Unevictable] {
            if let Err(e) = lru.list(which).verify(self) {
                seen.broken.push(e);
            }
            for pfn in lru.list(which).iter(self) {
                listed += 1;
                if seen.unevictable.contains(&pfn.0) != (which == Which::Unevictable) {
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
        let queue = self.queue.lock(self.machine());
        if let Err(e) = queue.list().verify(self) {
            seen.broken.push(e);
        }
        drop(queue);
        seen.refs = refs;
    }
}
