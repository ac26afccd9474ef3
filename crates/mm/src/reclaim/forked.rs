//! Eviction of a folio that several spaces may map.
//!
//! Its entries are taken at all its places (`places.rs`). If these are all references that there
//! are, but for the isolation, nobody can reach the folio or keep it: it is unmapped everywhere,
//! and its pages go the way of any other. Each space gets its own zero and swapped entries, and
//! its own resident pages fall (R103); a stored page has a user for each.

use crate::engine::folio::order_of;
use crate::engine::isolated::{Isolated, IsolatedFolio};
use crate::engine::rmap::Place;
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::reclaim::evict::Fate;
use crate::sharing::places::{Part, Was};
use crate::stat::Item;
use crate::table::block::{BlockState, HugeSwap, Table};
use crate::table::entry::Kind;
use crate::units::{BLOCK_PAGES, FrameRun, PageMask, Pfn, order_pages};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Evicts an isolated folio that forks have shared and ends its isolation; returns the
    /// pages it freed.
    pub(super) fn reclaim_forked(&self, folio: IsolatedFolio) -> u64 {
        let head = folio.pfn();
        if self.meta(head).has(Flags::REJECTED) {
            return self.keep_active(folio);
        }
        let Some(mut parts) = self.take_places(head) else {
            self.putback(folio);
            return 0;
        };
        let refs: u32 = parts.iter().map(Part::refs).sum();
        let pages = order_pages(order_of(self.meta(head)));
        let alone = self.meta(head).refs() == refs + 1
            && self.bad_frame(FrameRun::new(head, pages)).is_none();
        if !alone || self.unmap_parts(head, &mut parts).is_err() {
            self.give_back_parts(parts);
            self.stats().add(Item::NrPinned, u64::from(pages));
            return self.keep_active(folio);
        }
        let mut look = PageMask::EMPTY;
        for part in &parts {
            for (_, e) in part.entries() {
                if let Some(p) = e.frame() {
                    look.set(p.0 - head.0);
                }
            }
        }
        let zero_stays = parts.iter().any(|part| part.space.forbids_zero());
        let fate = self.put_away(zero_stays, head, pages, look);
        let gone = look.count() - fate.kept.count();
        if gone == 0 {
            self.show_parts(head, &parts, PageMask::FULL);
            self.give_back_parts(parts);
            return self.keep_active(folio);
        }
        self.show_parts(head, &parts, fate.kept);
        let mut list = Isolated::default();
        let users = self.settle_frames(head, pages, &fate, look, &parts, &mut list);
        self.count_out(&fate);
        self.machine().preempt(Site::Relock);
        for part in parts {
            self.write_fate(head, &fate, &users, part);
        }
        self.putback_list(list);
        self.putback(folio);
        u64::from(gone)
    }

    /// Frees the frames of what is gone; what is kept becomes folios of one page each. Returns
    /// how many entries each page has.
    fn settle_frames(
        &self,
        head: Pfn,
        pages: u32,
        fate: &Fate,
        look: PageMask,
        parts: &[Part],
        list: &mut Isolated,
    ) -> Vec<u32> {
        let refs: u32 = parts.iter().map(Part::refs).sum();
        let mut gone = look;
        fate.kept.pages().for_each(|k| gone.clear(k));
        self.release_pages(head, &gone);
        let mut users = vec![0u32; pages as usize];
        let mut homes: Vec<Vec<Place>> = (0..pages).map(|_| Vec::new()).collect();
        for part in parts {
            for (k, e) in part.entries() {
                let Some(p) = e.frame() else { continue };
                let i = p.0 - head.0;
                users[i as usize] += 1;
                if fate.kept.get(i) {
                    homes[i as usize].push(Place {
                        space: part.space.id,
                        first: part.nr.start().add(u64::from(k)),
                        refs: 1,
                        huge: false,
                    });
                }
            }
        }
        for k in fate.stored.pages() {
            let more = users[k as usize] - 1;
            self.share_swapped(fate.slot(k), 1, more);
        }
        self.rmap_clear(head);
        if fate.kept == PageMask::EMPTY {
            self.put_folio(head, refs);
            return users;
        }
        self.meta(head).set(Flags::ACTIVE);
        self.split_owned(head, fate.kept, refs, Some(list));
        for (k, places) in homes.into_iter().enumerate() {
            let p = head.add(k as u32);
            match places[..] {
                [] => {}
                [one] => self.meta(p).set_owner(one.space, one.first),
                _ => {
                    self.meta(p).add_refs(places.len() as u32 - 1);
                    self.rmap_set(p, places);
                }
            }
        }
        users
    }

    /// Writes what became of the pages into the entries of one block.
    fn write_fate(&self, head: Pfn, fate: &Fate, users: &[u32], part: Part) {
        if let (Was::Huge(h), true) = (&part.was, fate.kept == PageMask::EMPTY) {
            let (zero, prot, marks) = (fate.zero, h.prot, h.marks);
            let stored = fate.stored.count();
            self.stats().sub(Item::NrAnon, u64::from(BLOCK_PAGES));
            self.stats().add(Item::NrZero, u64::from(zero.count()));
            self.stats().add(Item::NrSwapped, u64::from(stored));
            let first = fate.first;
            let record = HugeSwap {
                zero,
                first,
                prot,
                marks,
            };
            let state = BlockState::HugeSwapped(Box::new(record));
            return part.busy.end(self, state);
        }
        let entries = part.entries();
        part.busy.end_by(self, |state| {
            if let Was::Huge(_) = part.was {
                *state = BlockState::Table(Table::new());
            }
            let Some(table) = state.table() else { return };
            for (k, e) in entries {
                let Some(p) = e.frame() else { continue };
                let i = p.0 - head.0;
                match fate.kind(head, i) {
                    kind @ Kind::Zero { .. } => {
                        self.stats().add(Item::NrZero, 1);
                        table.set(k, e.with(kind));
                    }
                    kind @ Kind::Swapped(_) => {
                        self.stats().add(Item::NrSwapped, 1);
                        table.set(k, e.with(kind));
                    }
                    _ => {
                        // Every reference was here: with one entry the page is this space's own.
                        let shared = e.shared() && users[i as usize] > 1;
                        table.set(k, e.guard(shared));
                        continue;
                    }
                }
                self.stats().sub(Item::NrAnon, 1);
            }
        });
    }
}
