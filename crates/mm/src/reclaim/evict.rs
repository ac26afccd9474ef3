//! Eviction of one isolated folio.
//!
//! First the folio is unmapped, so that nobody can write to it; its pages are marked busy and
//! the block's lock is dropped. Then its zero-filled pages are found, the others are put into
//! the store, and with the lock held again each page becomes a zero entry or a swapped one.
//! What can be neither dropped nor stored stays.

use crate::engine::busy::Busy;
use crate::engine::copies::slot_runs;
use crate::engine::folio::order_of;
use crate::engine::isolated::{Isolated, IsolatedFolio};
use crate::engine::leaving::Leaving;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::engine::split::{SplitFlags, next_lower};
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::stat::Item;
use crate::store::{Store, StoreStop};
use crate::table::block::{BlockState, HugeMap, HugeSwap, Presence, Table};
use crate::table::entry::{Entry, Kind};
use crate::units::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, FrameRun, PageMask, Pfn, Slot, Vpn, order_pages,
};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Zero pages that a huge page must have for a split to pay when none of it can be stored.
const WORTH_A_SPLIT: u32 = 64;

/// What became of the pages of a run.
pub(super) struct Fate {
    pub zero: PageMask,
    pub stored: PageMask,
    /// Slot of the first page of `fresh`; the others' follow by rank.
    pub first: Slot,
    /// Pages that were given new slots.
    pub fresh: PageMask,
    /// Those that have the slot they had before, by index.
    pub old: Vec<(u32, Slot)>,
    /// How many of these did not have to be stored again.
    pub same: u32,
    pub kept: PageMask,
}

/// Pages of a small folio, by index.
#[derive(Default)]
struct Small {
    /// Those that go, now busy, and of these the ones whose contents were given up.
    mine: PageMask,
    lazy: PageMask,
    /// Those that are in use and stay.
    stay: PageMask,
}

impl Fate {
    /// Slot of page `k`, which is stored.
    pub fn slot(&self, k: u32) -> Slot {
        match self.old.binary_search_by_key(&k, |&(i, _)| i) {
            Ok(at) => self.old[at].1,
            Err(_) => self.first.add(self.fresh.rank(k)),
        }
    }

    /// What page `k` of the folio at `head` is now.
    pub fn kind(&self, head: Pfn, k: u32) -> Kind {
        if self.zero.get(k) {
            Kind::DROPPED
        } else if self.stored.get(k) {
            Kind::Swapped(self.slot(k))
        } else if self.kept.get(k) {
            Kind::Inactive(head.add(k))
        } else {
            Kind::None
        }
    }
}

impl<E: Env> Mm<E> {
    /// Evicts an isolated folio and ends its isolation; returns the pages it freed. Those of small
    /// folios are free when what is `leaving` is let go.
    ///
    /// One of which only a part is mapped is split first: what is not mapped is free then,
    /// without a byte of it being looked at, and each part is evicted for itself.
    pub(super) fn reclaim_folio(&self, folio: IsolatedFolio, leaving: &mut Leaving) -> u64 {
        let pfn = folio.pfn();
        if !self.meta(pfn).has(Flags::PARTIAL) {
            return self.reclaim_one(folio, leaving);
        }
        let mut list = Isolated(Vec::from([folio]));
        let mut freed = self.split_partial(pfn, &mut list).unwrap_or(0);
        for folio in list.0 {
            freed += self.reclaim_one(folio, leaving);
        }
        freed
    }

    /// Splits an isolated folio of which a part is unmapped; the pages that are free then.
    fn split_partial(&self, pfn: Pfn, list: &mut Isolated) -> Option<u64> {
        let (id, page) = self.meta(pfn).owner()?;
        let space = self.space(id).ok()?;
        let block = space.block(self, page.block());
        // Only tried: whoever owns the block may be waiting for this isolation to end.
        let mut state = block.try_lock(self)?;
        let cap = next_lower(order_of(self.meta(pfn)));
        let flags = SplitFlags::ISOLATED;
        let split = self.split_in_block(&space, &mut state, pfn, cap, flags, Some(list));
        Some(u64::from(split.ok()?.freed))
    }

    fn reclaim_one(&self, folio: IsolatedFolio, leaving: &mut Leaving) -> u64 {
        let meta = self.meta(folio.pfn());
        if meta.has(Flags::FORKED) {
            let freed = self.reclaim_forked(folio);
            self.machine().preempt(Site::Released);
            return freed;
        }
        let place = meta
            .owner()
            .and_then(|(id, page)| Some((self.space(id).ok()?, page)));
        let Some((space, page)) = place else {
            self.putback(folio);
            return 0;
        };
        let block = space.block(self, page.block());
        let freed = if meta.refs() == 1 {
            // Nobody but the isolation holds it: a part that a split left to its caller.
            let pages = order_pages(order_of(meta));
            self.end_isolation(folio);
            u64::from(pages)
        } else if order_of(meta) == BLOCK_ORDER && E::Sharing::maps_huge(self, &block) {
            self.reclaim_huge(&space, &block, page, folio)
        } else {
            self.reclaim_small(&space, &block, page, folio, leaving)
        };
        self.machine().preempt(Site::Released);
        freed
    }

    /// Whether a folio that was isolated when nothing held it in its place is held now, or has a
    /// frame that has failed. Its block is locked.
    fn must_stay(&self, pfn: Pfn) -> bool {
        let order = order_of(self.meta(pfn));
        if self.meta(pfn).has(Flags::PINNED) {
            self.stats()
                .add(Item::NrPinned, u64::from(order_pages(order)));
        }
        self.is_held(pfn) || self.bad_frame(FrameRun::folio(pfn, order)).is_some()
    }

    /// Whether pages that are not zero can go anywhere.
    pub(crate) fn can_swap(&self) -> bool {
        self.store().accepts()
    }

    pub(super) fn keep_active(&self, folio: IsolatedFolio) -> u64 {
        self.meta(folio.pfn()).set(Flags::ACTIVE);
        self.putback(folio);
        0
    }

    fn reclaim_huge(
        &self,
        space: &Space,
        block: &BlockRef,
        page: Vpn,
        folio: IsolatedFolio,
    ) -> u64 {
        let (nr, pfn) = (page.block(), folio.pfn());
        let Some(mut state) = block.try_lock(self) else {
            self.folios.contended.fetch_add(1, Ordering::Relaxed);
            self.putback(folio);
            return 0;
        };
        let BlockState::Huge(h) = &mut *state else {
            drop(state);
            self.putback(folio);
            return 0;
        };
        let stays = h.locked || h.shared() || self.meta(pfn).has(Flags::REJECTED);
        if h.pfn != pfn || stays || self.must_stay(pfn) {
            drop(state);
            return self.keep_active(folio);
        }
        if h.has == Presence::Lazy {
            *state = BlockState::Empty;
            drop(state);
            self.release(FrameRun::new(pfn, BLOCK_PAGES));
            self.stats().add(Item::Pglazyfreed, BLOCK_PAGES as u64);
            self.stats().sub(Item::NrInactive, BLOCK_PAGES as u64);
            self.put_folio(pfn, 1);
            self.end_isolation(folio);
            return BLOCK_PAGES as u64;
        }
        if self.unmap_huge(space, nr, h).is_err() {
            drop(state);
            return self.keep_active(folio);
        }
        let h: HugeMap = *h;
        let (busy, _) = Busy::block(block, state);
        let mut fate = self.put_away(space.forbids_zero(), pfn, BLOCK_PAGES, PageMask::FULL);
        let mut list = Isolated::default();
        let (new, freed) = self.end_huge(space, nr, h, &mut fate, &mut list);
        self.count_out(&fate);
        self.machine().preempt(Site::Relock);
        busy.end(self, new);
        self.putback_list(list);
        self.putback(folio);
        freed
    }

    /// What a block is whose huge page was put away as far as it goes, and the pages that this
    /// frees; parts that are left of the folio join the list. Block busy.
    fn end_huge(
        &self,
        space: &Space,
        nr: BlockNr,
        h: HugeMap,
        fate: &mut Fate,
        list: &mut Isolated,
    ) -> (BlockState, u64) {
        let kept = fate.kept.count();
        if kept == 0 {
            let stored = fate.stored.count() as u64;
            self.stats().sub(Item::NrInactive, BLOCK_PAGES as u64);
            self.stats().add(Item::NrZero, fate.zero.count() as u64);
            self.stats().add(Item::NrSwapped, stored);
            if stored > 0 {
                self.stats().add(Item::ThpSwpout, 1);
            }
            self.release(FrameRun::new(h.pfn, BLOCK_PAGES));
            self.put_folio(h.pfn, 1);
            let record = HugeSwap {
                zero: fate.zero,
                first: fate.first,
                prot: h.prot,
                marks: h.marks,
            };
            (
                BlockState::HugeSwapped(Box::new(record)),
                BLOCK_PAGES as u64,
            )
        } else if fate.stored == PageMask::EMPTY && fate.zero.count() < WORTH_A_SPLIT {
            self.meta(h.pfn).set(Flags::ACTIVE);
            fate.zero = PageMask::EMPTY;
            (BlockState::Huge(h), 0)
        } else {
            // What was stored needs no frame: to the split it is as gone as a zero page.
            let mut table = self.shatter(space, nr, h, fate.zero, fate.stored, Some(list));
            for i in fate.stored.pages() {
                let kind = Kind::Swapped(fate.slot(i));
                table.set(i, Entry::new(kind, h.prot, h.locked).marked(h.marks));
            }
            self.stats()
                .add(Item::NrSwapped, fate.stored.count() as u64);
            (BlockState::Table(table), (BLOCK_PAGES - kept) as u64)
        }
    }

    fn reclaim_small(
        &self,
        space: &Space,
        block: &BlockRef,
        page: Vpn,
        folio: IsolatedFolio,
        leaving: &mut Leaving,
    ) -> u64 {
        let pfn = folio.pfn();
        let (pages, i) = (order_pages(order_of(self.meta(pfn))), page.index());
        let Some(mut state) = block.try_lock(self) else {
            self.folios.contended.fetch_add(1, Ordering::Relaxed);
            self.putback(folio);
            return 0;
        };
        if self.meta(pfn).has(Flags::REJECTED) || self.must_stay(pfn) {
            drop(state);
            return self.keep_active(folio);
        }
        let BlockState::Table(table) = &mut *state else {
            drop(state);
            self.putback(folio);
            return 0;
        };
        let Some(found) = self.take_small(space, page, table, pfn, pages) else {
            drop(state);
            self.putback(folio);
            return 0;
        };
        if found.mine == PageMask::EMPTY {
            drop(state);
            return self.keep_active(folio);
        }
        let marked = found.mine.pages().map(|k| i + k);
        let busy = Busy::entries(block, table, marked.collect());
        drop(state);
        let look = found.mine.without(&found.lazy);
        let fate = self.put_away(space.forbids_zero(), pfn, pages, look);
        let (gone, stay) = (found.mine.without(&fate.kept), found.stay.with(&fate.kept));
        self.count_small(&fate, &found, gone.count());
        let frames = |(start, len)| FrameRun::new(pfn.add(start), len);
        let runs = || gone.runs(pages).map(frames);
        let whole = stay == PageMask::EMPTY;
        if !whole {
            runs().for_each(|run| self.release(run));
        }
        self.machine().preempt(Site::Relock);
        let mut list = Isolated::default();
        busy.end_by(self, |state| {
            let Some(table) = state.table() else { return };
            for k in found.mine.pages() {
                table.set(i + k, table.get(i + k).with(fate.kind(pfn, k)));
            }
            if gone != PageMask::EMPTY && !whole {
                self.meta(pfn).set(Flags::ACTIVE);
                let refs = found.mine.count() + found.stay.count();
                self.split_owned(pfn, stay, refs, Some(&mut list));
            }
        });
        if whole {
            leaving.push(folio, gone.count(), runs());
            return u64::from(gone.count());
        }
        if gone == PageMask::EMPTY {
            return self.keep_active(folio);
        }
        self.putback_list(list);
        self.putback(folio);
        u64::from(gone.count())
    }

    /// Unmaps what may go of a small folio, whose first page lies at `page`, and says what does:
    /// inactive pages with equal rights; those that are held or locked stay. `None`: others hold
    /// some of it, too. Block locked.
    fn take_small(
        &self,
        space: &Space,
        page: Vpn,
        table: &mut Table,
        pfn: Pfn,
        pages: u32,
    ) -> Option<Small> {
        let i = page.index();
        let ours = |k: &u32| table.get(i + k).frame() == Some(pfn.add(*k));
        let ours: PageMask = (0..pages).filter(ours).collect();
        if ours.pages().any(|k| table.get(i + k).shared()) {
            return None;
        }
        ours.pages()
            .for_each(|k| self.unmap_entries(space, page.block(), table, i + k, 1));
        let mut found = Small::default();
        let mut prot = None;
        for k in ours.pages() {
            let e = table.get(i + k);
            let goes = matches!(e.kind(), Kind::Inactive(_)) && !e.locked();
            if !goes || prot.is_some_and(|prot| prot != e.prot()) {
                found.stay.set(k);
                continue;
            }
            prot = Some(e.prot());
            found.mine.set(k);
            if e.lazy() {
                found.lazy.set(k);
            }
        }
        Some(found)
    }

    fn count_small(&self, fate: &Fate, found: &Small, gone: u32) {
        let (stats, n) = (self.stats(), |mask: &PageMask| u64::from(mask.count()));
        stats.sub(Item::NrInactive, u64::from(gone));
        stats.add(Item::NrZero, n(&fate.zero));
        stats.add(Item::NrSwapped, n(&fate.stored));
        stats.add(Item::Pglazyfreed, n(&found.lazy));
        self.count_out(fate);
    }

    /// Finds the zero pages among `look` of a parked folio and stores the others as far as
    /// they can be stored.
    pub(super) fn put_away(&self, zero_stays: bool, pfn: Pfn, pages: u32, look: PageMask) -> Fate {
        let zero = match zero_stays || !self.tunables().zero_drop {
            true => PageMask::EMPTY,
            false => self.zeros_among(pfn, &look),
        };
        let filled = look.without(&zero);
        let mut fate = Fate {
            zero,
            stored: PageMask::EMPTY,
            first: Slot(0),
            fresh: PageMask::EMPTY,
            old: Vec::new(),
            same: 0,
            kept: filled,
        };
        if filled == PageMask::EMPTY {
            return fate;
        }
        if !self.can_swap() {
            let one = filled.runs(pages).next().map_or(0, |(first, _)| first);
            self.tell_refused(pfn.add(one));
            return fate;
        }
        let (same, stale) = self.unchanged(pfn, pages, filled);
        for &(k, _) in &same {
            fate.stored.set(k);
            fate.kept.clear(k);
        }
        // What has a slot is stored there again; the others get new ones, in a row.
        let mut fresh = fate.kept;
        stale.iter().for_each(|&(k, _)| fresh.clear(k));
        if fresh != PageMask::EMPTY
            && let Ok(first) = self.alloc_slots(fresh.count())
        {
            (fate.fresh, fate.first) = (fresh, first);
        }
        let mut todo = slot_runs(&stale);
        let rows = fate.fresh.runs(pages);
        todo.extend(rows.map(|(start, n)| (start, fate.slot(start), n)));
        todo.sort_unstable_by_key(|&(start, ..)| start);
        fate.same = same.len() as u32;
        fate.old = same;
        fate.old.extend(stale);
        fate.old.sort_unstable_by_key(|&(k, _)| k);
        self.put_pages(pfn, &todo, &mut fate);
        for (start, slot, n) in todo {
            for k in (0..n).filter(|&k| fate.kept.get(start + k)) {
                self.free_slots(slot.add(k), 1);
                self.meta(pfn).set(Flags::REJECTED);
            }
        }
        fate
    }

    /// Stores runs (index, slot, pages) of a folio at rest, as far as they can be stored.
    fn put_pages(&self, pfn: Pfn, todo: &[(u32, Slot, u32)], fate: &mut Fate) {
        for &(start, first, len) in todo {
            let mut at = 0;
            while at < len {
                let mut result = Ok(());
                let run = FrameRun::new(pfn.add(start + at), len - at);
                self.with_bytes(run, &mut |bytes| {
                    result = self.store().put(first.add(at), bytes);
                });
                let done = match result {
                    Ok(()) => len - at,
                    Err(e) => e.done,
                };
                for k in start + at..start + at + done {
                    fate.stored.set(k);
                    fate.kept.clear(k);
                }
                at += done;
                if let Err(e) = result {
                    if e.why != StoreStop::Incompressible {
                        return;
                    }
                    self.stats().add(Item::StoreReject, 1);
                    self.tell_refused(pfn.add(start + at));
                    at += 1;
                }
            }
        }
    }

    fn tell_refused(&self, frame: Pfn) {
        let page = FrameRun::new(frame, 1);
        let tell = &mut |bytes: &[u8]| self.store().refused(bytes);
        self.with_bytes(page, tell);
    }

    pub(super) fn count_out(&self, fate: &Fate) {
        self.stats().add(Item::SwpoutZero, fate.zero.count() as u64);
        let written = fate.stored.count() - fate.same;
        self.stats().add(Item::Pswpout, u64::from(written));
    }
}
