//! Eviction of a folio that several spaces may map.
//!
//! Its entries are marked busy place by place, each under its block's lock alone, which is only
//! tried. If these are all references that there are, but for the isolation, nobody can reach
//! the folio or keep it: it is unmapped everywhere, and its pages go the way of any other. Each
//! space gets its own zero and swapped entries, and its own resident pages fall (R103); a stored
//! page has a user for each. If somebody holds more, or a lock is not to be had, or one space
//! has locked the page, everything is put back as it was.

use crate::env::Env;
use crate::folio::order_of;
use crate::frame::Flags;
use crate::huge::isolated::Isolated;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::platform::{Platform, PlatformError};
use crate::reclaim::evict::Fate;
use crate::space::block::{BlockState, HugeMap, HugeSwap, Table};
use crate::space::entry::{Entry, Kind};
use crate::space::rmap::{Place, first_page};
use crate::space::{BlockRef, Space};
use crate::stat::Item;
use crate::units::{BLOCK_PAGES, BlockNr, FrameRun, PageMask, PageRun, Pfn, Vpn, order_pages};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// The entries of a folio in one block, which are busy and ours.
pub(crate) struct Part {
    space: Arc<Space>,
    block: BlockRef,
    nr: BlockNr,
    was: Was,
}

/// What they were before.
enum Was {
    Huge(HugeMap),
    /// Index in the block, and entry; by index.
    Entries(Vec<(u32, Entry)>),
}

impl Part {
    /// References that they hold.
    pub(crate) fn refs(&self) -> u32 {
        match &self.was {
            Was::Huge(_) => 1,
            Was::Entries(list) => list.len() as u32,
        }
    }

    /// The entries, those of a huge page page by page.
    pub(crate) fn entries(&self) -> Vec<(u32, Entry)> {
        match &self.was {
            Was::Entries(list) => list.clone(),
            Was::Huge(h) => (0..BLOCK_PAGES)
                .map(|k| (k, BlockState::Huge(*h).entry(k)))
                .collect(),
        }
    }

    /// Their folio is at other frames now.
    pub(crate) fn moved(&mut self, from: Pfn, to: Pfn) {
        match &mut self.was {
            Was::Huge(h) => h.pfn = to,
            Was::Entries(list) => {
                for (_, e) in list {
                    if let Some(p) = e.frame() {
                        *e = e.with_frame(to.add(p.0 - from.0));
                    }
                }
            }
        }
    }

    /// Runs (first page, frame, pages, entry of the first) with frames in a row and equal
    /// rights, of the pages of the folio at `head` that are in `which`.
    fn runs(&self, head: Pfn, which: PageMask) -> Vec<(Vpn, Pfn, u32, Entry)> {
        let mut runs: Vec<(Vpn, Pfn, u32, Entry)> = Vec::new();
        for (k, e) in self.entries() {
            let Some(p) = e.frame() else { continue };
            if !which.get(p.0 - head.0) {
                continue;
            }
            let page = self.nr.start().add(u64::from(k));
            match runs.last_mut() {
                Some((start, frame, n, first))
                    if start.add(u64::from(*n)) == page
                        && frame.add(*n) == p
                        && first.prot() == e.prot() =>
                {
                    *n += 1;
                }
                _ => runs.push((page, p, 1, e)),
            }
        }
        runs
    }
}

impl<E: Env> Mm<E> {
    /// Evicts an isolated folio that forks have shared and ends its isolation; returns the
    /// pages it freed.
    pub(super) fn reclaim_forked(&self, head: Pfn) -> u64 {
        if self.meta(head).has(Flags::REJECTED) {
            return self.keep_active(head);
        }
        let Some(mut parts) = self.take_places(head) else {
            self.putback(head);
            return 0;
        };
        let refs: u32 = parts.iter().map(Part::refs).sum();
        let pages = order_pages(order_of(self.meta(head)));
        let alone = self.meta(head).refs() == refs + 1
            && self.bad_frame(FrameRun::new(head, pages)).is_none();
        if !alone || self.unmap_parts(head, &mut parts).is_err() {
            self.give_back_parts(parts);
            self.stats().add(Item::NrPinned, u64::from(pages));
            return self.keep_active(head);
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
            return self.keep_active(head);
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
        self.putback(head);
        u64::from(gone)
    }

    /// Marks every entry of a folio busy, or none.
    pub(crate) fn take_places(&self, head: Pfn) -> Option<Vec<Part>> {
        let pages = u64::from(order_pages(order_of(self.meta(head))));
        let mut parts = Vec::new();
        for place in self.places(head) {
            let Ok(space) = self.space(place.space) else {
                continue;
            };
            // A place that wraps begins below page 0.
            let end = place.first.0.wrapping_add(pages);
            let begin = if place.first.0 > end {
                0
            } else {
                place.first.0
            };
            let last = Vpn(end.saturating_sub(1)).block();
            for nr in Vpn(begin).block().0..=last.0 {
                let nr = BlockNr(nr);
                let Some(block) = space.block_if_any(self, nr) else {
                    continue;
                };
                match self.take_part(head, &place, &space, &block, nr) {
                    Ok(Some(part)) => parts.push(part),
                    Ok(None) => {}
                    Err(()) => {
                        self.give_back_parts(parts);
                        return None;
                    }
                }
            }
        }
        Some(parts)
    }

    fn take_part(
        &self,
        head: Pfn,
        place: &Place,
        space: &Arc<Space>,
        block: &BlockRef,
        nr: BlockNr,
    ) -> Result<Option<Part>, ()> {
        let Some(mut state) = block.try_lock(self) else {
            self.contended.fetch_add(1, Ordering::Relaxed);
            return Err(());
        };
        let was = match &mut *state {
            BlockState::Huge(h) if h.pfn == head => {
                if h.locked || !h.mapped {
                    return Err(());
                }
                let h = *h;
                *state = BlockState::Busy;
                Was::Huge(h)
            }
            BlockState::Table(table) => {
                let mut list = Vec::new();
                for k in 0..BLOCK_PAGES {
                    let e = table.get(k);
                    let page = nr.start().add(u64::from(k));
                    if let Some(p) = e.frame()
                        && p.0.wrapping_sub(head.0) < order_pages(order_of(self.meta(head)))
                        && first_page(page, p, head) == place.first
                    {
                        list.push((k, e));
                    }
                }
                if list.is_empty() {
                    return Ok(None);
                }
                let stays = |e: &Entry| e.locked() || !matches!(e.kind(), Kind::Mapped(_));
                if list.iter().any(|(_, e)| stays(e)) {
                    return Err(());
                }
                for (k, e) in &list {
                    table.set(*k, e.with(Kind::Busy));
                }
                Was::Entries(list)
            }
            BlockState::Busy => return Err(()),
            _ => return Ok(None),
        };
        drop(state);
        Ok(Some(Part {
            space: space.clone(),
            block: block.clone(),
            nr,
            was,
        }))
    }

    /// Unmaps all entries; on an error all are mapped again, and guarded.
    pub(crate) fn unmap_parts(&self, head: Pfn, parts: &mut [Part]) -> Result<(), PlatformError> {
        for n in 0..parts.len() {
            let id = parts[n].space.id;
            let runs = parts[n].runs(head, PageMask::FULL);
            for (at, (page, frame, pages, e)) in runs.iter().enumerate() {
                let run = PageRun::new(id, *page, *pages);
                if let Err(error) = self.unmap_shared_all(run, *frame, e.prot()) {
                    for (page, frame, pages, e) in &runs[..at] {
                        self.show_again(PageRun::new(id, *page, *pages), *frame, e.prot());
                    }
                    self.show_parts(head, &parts[..n], PageMask::FULL);
                    parts.iter_mut().for_each(guard);
                    return Err(error);
                }
            }
        }
        parts.iter_mut().for_each(guard);
        Ok(())
    }

    /// Maps the pages of `which` again, guarded.
    pub(crate) fn show_parts(&self, head: Pfn, parts: &[Part], which: PageMask) {
        for part in parts {
            for (page, frame, pages, e) in part.runs(head, which) {
                let run = PageRun::new(part.space.id, page, pages);
                self.show_again(run, frame, e.prot());
            }
        }
    }

    /// The entries are what they were.
    pub(crate) fn give_back_parts(&self, parts: Vec<Part>) {
        for part in parts {
            let mut state = part.block.lock(self);
            match part.was {
                Was::Huge(h) => *state = BlockState::Huge(h),
                Was::Entries(list) => {
                    if let Some(table) = state.table() {
                        list.into_iter().for_each(|(k, e)| table.set(k, e));
                    }
                }
            }
            part.block.settled(self);
        }
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
        (0..pages)
            .filter(|&k| fate.kept.get(k))
            .for_each(|k| gone.clear(k));
        for (start, len) in gone.runs(pages) {
            self.platform().release(FrameRun::new(head.add(start), len));
        }
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
        for k in (0..pages).filter(|&k| fate.stored.get(k)) {
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
        let entries = part.entries();
        let mut state = part.block.lock(self);
        if let (Was::Huge(h), true) = (&part.was, fate.kept == PageMask::EMPTY) {
            let (zero, prot, marks) = (fate.zero, h.prot, h.marks);
            let stored = fate.stored.count();
            self.stats().sub(Item::NrAnon, u64::from(BLOCK_PAGES));
            self.stats().add(Item::NrZero, u64::from(zero.count()));
            self.stats().add(Item::NrSwapped, u64::from(stored));
            let first = fate.first;
            *state = BlockState::HugeSwapped(Box::new(HugeSwap {
                zero,
                first,
                prot,
                marks,
            }));
            part.block.settled(self);
            return;
        }
        if let Was::Huge(_) = part.was {
            *state = BlockState::Table(Table::new());
        }
        if let Some(table) = state.table() {
            for (k, e) in entries {
                let Some(p) = e.frame() else { continue };
                let i = p.0 - head.0;
                let kind = if fate.zero.get(i) {
                    self.stats().add(Item::NrZero, 1);
                    Kind::Zero {
                        mapped: false,
                        dropped: true,
                    }
                } else if fate.stored.get(i) {
                    self.stats().add(Item::NrSwapped, 1);
                    Kind::Swapped(fate.slot(i))
                } else {
                    // Every reference was here: with one entry the page is this space's own.
                    let shared = e.shared() && users[i as usize] > 1;
                    table.set(k, e.guard(shared));
                    continue;
                };
                self.stats().sub(Item::NrAnon, 1);
                table.set(k, e.with(kind));
            }
        }
        part.block.settled(self);
    }
}

/// What was unmapped comes back write-protected.
fn guard(part: &mut Part) {
    match &mut part.was {
        Was::Huge(h) => h.guarded = true,
        Was::Entries(list) => list.iter_mut().for_each(|(_, e)| *e = e.guard(e.shared())),
    }
}
