//! Taking a huge page apart.
//!
//! *Shatter*: the page is unmapped whole, its live subpages are copied into small frames and
//! mapped back, zero-filled ones become zero entries, and the intact 2 MiB block is given
//! back. The copy is what an under-user pays for keeping the block whole for others.
//!
//! *In place*: the folio becomes 512 folios of one page each, and the empty ones are freed.
//! This needs no memory and no copy; it is what is left when the other way fails.

use crate::beyond::Beyond;
use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine::busy::Busy;
use crate::engine::isolated::Isolated;
use crate::engine::lru::Which;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::machine::{Machine, Site};
use crate::platform::{Content, PlatformError, Stop};
use crate::stat::{Item, SizeItem};
use crate::table::block::{Block, BlockState, HugeMap, PROGRAM, Presence, Table};
use crate::table::entry::{Entry, Kind};
use crate::units::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, FrameRun, PageMask, PageRun, Pfn, Vpn, order_pages,
};
use alloc::boxed::Box;
use core::sync::atomic::Ordering::Relaxed;

impl<E: Env> Engine<E> {
    /// Unmaps a huge page, if it is mapped; a shared one is no caller's. Block locked (or busy).
    pub(crate) fn unmap_huge(
        &self,
        space: &Space,
        nr: BlockNr,
        h: &mut HugeMap,
    ) -> Result<(), PlatformError> {
        if h.mapped() && self.is_held(h.pfn) {
            let why = Stop::Busy;
            return Err(PlatformError { at: 0, why });
        }
        debug_assert!(!h.shared(), "a shared page is taken");
        if h.mapped() {
            let run = PageRun::new(space.id, nr.start(), BLOCK_PAGES);
            if let Err(e) = self.unmap_all(run, h.pfn, h.prot, h.marks.any()) {
                self.stats().add(Item::NrPinned, BLOCK_PAGES as u64);
                // The attempt may have lifted its protection.
                h.has = Presence::shown(h.marks.any());
                return Err(e);
            }
            h.has = Presence::Inactive;
            self.moved_out(BLOCK_PAGES);
        }
        Ok(())
    }

    /// Unmaps what is mapped of `first..first + n`, except locked pages, shared ones, and pages
    /// that somebody holds. Block locked.
    pub(crate) fn unmap_entries(
        &self,
        space: &Space,
        nr: BlockNr,
        table: &mut Table,
        first: u32,
        n: u32,
    ) {
        let end = first + n;
        let mut k = first;
        while k < end {
            let e = table.get(k);
            let Kind::Mapped(p) = e.kind() else {
                k += 1;
                continue;
            };
            let held = |p| self.is_frame_held(p);
            if e.locked() || e.shared() || held(p) {
                k += 1;
                continue;
            }
            let mut len = 1;
            let follows = |k: u32, p| {
                let next = table.get(k);
                let alike = !next.shared() && next.unguarded() == e.with(Kind::Mapped(p));
                // The next frame may be of another folio.
                alike && !held(p)
            };
            while k + len < end && follows(k + len, p.add(len)) {
                len += 1;
            }
            let run = PageRun::new(space.id, nr.start().add(k as u64), len);
            if self.unmap_all(run, p, e.prot(), e.marks().any()).is_ok() {
                for i in 0..len {
                    table.set(k + i, e.with(Kind::Inactive(p.add(i))));
                }
                self.moved_out(len);
            } else if len > 1 {
                // One of them is held; the others need not stay for it.
                for i in 0..len {
                    self.unmap_entries(space, nr, table, k + i, 1);
                }
            } else {
                self.stats().add(Item::NrPinned, 1);
                // The attempt may have lifted its protection.
                if !e.marks().any() {
                    table.set(k, e.unguarded());
                }
            }
            k += len;
        }
    }

    /// Maps a huge page that is at rest. If the machine refuses, it stays inactive: the next
    /// touch asks again. Block locked (or busy).
    pub(crate) fn map_huge_again(&self, space: &Space, nr: BlockNr, h: &mut HugeMap) {
        if !h.mapped() {
            let _ = self.show_huge(space, nr, h);
        }
    }

    /// Makes a table of a resident huge page, because a part of it is about to change. Pages
    /// of `doomed` become holes. Does nothing if the block is no resident huge page.
    pub(crate) fn break_huge(
        &self,
        space: &Space,
        block: &BlockRef,
        nr: BlockNr,
        doomed: PageMask,
    ) {
        let in_place = !self.tunables().shatters::<E>(0, u64::MAX);
        let mut state = self.lock_settled(block, 0, BLOCK_PAGES);
        if !matches!(&*state, BlockState::Huge(_)) {
            return;
        }
        self.broken(block);
        if E::Sharing::keeps_whole(self, space, nr, &mut state) {
            return;
        }
        let BlockState::Huge(h) = &mut *state else {
            return;
        };
        if in_place && !h.shared() && self.split_huge(space, nr, &mut state, &doomed) {
            return;
        }
        let BlockState::Huge(h) = &mut *state else {
            return;
        };
        // What others hold too is not copied for that.
        let parked = !h.shared() && self.unmap_huge(space, nr, h).is_ok();
        let h = *h;
        let (busy, _) = Busy::block(block, state);
        let table = if parked {
            // Profile `deckle` spares the copy for pages of zeros, but not where they must be
            // resident. Nobody is short of memory here, so Linux drops none (C2).
            let drops = self.tunables().beyond(Beyond::BreakDropsZero);
            let zero = match h.locked || space.forbids_zero() || !drops {
                true => PageMask::EMPTY,
                false => self.zeros_among(h.pfn, &PageMask::FULL),
            };
            self.shatter(space, nr, h, zero, doomed, None)
        } else {
            self.split_mapped(space, nr, h)
        };
        busy.end(self, BlockState::Table(table));
    }

    /// Splits a resident huge page where it is into the largest folios that pages of `doomed`
    /// leave of it; these become holes. False: somebody holds it, and nothing has changed.
    /// Block locked.
    fn split_huge(
        &self,
        space: &Space,
        nr: BlockNr,
        state: &mut BlockState,
        doomed: &PageMask,
    ) -> bool {
        let BlockState::Huge(h) = *state else {
            return false;
        };
        let Some(folio) = self.freeze_folio(h.pfn, 1) else {
            return false;
        };
        for (start, len) in doomed.runs(BLOCK_PAGES) {
            if h.mapped() {
                let run = PageRun::new(space.id, nr.start().add(u64::from(start)), len);
                self.discard_run(run);
            } else {
                self.release(FrameRun::new(h.pfn.add(start), len));
            }
        }
        let gauge = if h.mapped() {
            Item::NrAnon
        } else {
            Item::NrInactive
        };
        self.stats().sub(gauge, u64::from(doomed.count()));
        let live = PageMask::FULL.without(doomed);
        self.split_frozen(folio, &live, BLOCK_ORDER - 1, None);
        let (mut table, lazy) = (Table::new(), h.has == Presence::Lazy);
        for k in (0..BLOCK_PAGES).filter(|&k| !doomed.get(k)) {
            let e = state.entry(k);
            table.set(k, if lazy { e.as_lazy() } else { e });
        }
        *state = BlockState::Table(table);
        true
    }

    /// Shatters a parked huge page whose block the caller has marked busy: pages of `zero`
    /// become zero entries, pages of `doomed` holes, the others live on in small frames.
    ///
    /// Where that cannot be had, or is not wanted, the folio is split where it is. `list`: the
    /// caller has isolated the folio; it is its only one, and its parts, if any, are there then.
    /// It is reclaim, which counts the pages that it drops itself.
    pub(crate) fn shatter(
        &self,
        space: &Space,
        nr: BlockNr,
        h: HugeMap,
        zero: PageMask,
        doomed: PageMask,
        list: Option<&mut Isolated>,
    ) -> Box<Table> {
        let mut table = Table::new();
        let mut gone = zero;
        let mut dropped = 0;
        for i in 0..BLOCK_PAGES {
            if doomed.get(i) {
                gone.set(i);
            } else if zero.get(i) {
                dropped += 1;
                table.set(
                    i,
                    Entry::new(Kind::DROPPED, h.prot, h.locked).marked(h.marks),
                );
            }
        }
        let live = gone.not_within(BLOCK_PAGES);
        let mut stay = live;
        if self
            .tunables()
            .shatters::<E>(live.count(), self.zones.small.free_pages())
        {
            stay = PageMask::EMPTY;
            self.charge().force_charge(live.count() as u64);
            for (start, len) in live.runs(BLOCK_PAGES) {
                self.move_out(space, nr, &h, (start, len), &mut table, &mut stay);
            }
            self.charge().uncharge(stay.count() as u64);
        }
        if list.is_none() {
            self.stats().add(Item::ThpSplitUnmap, dropped);
        }
        self.stats().add(Item::ThpSplitFree, gone.count() as u64);
        self.stats().add(Item::NrZero, dropped);
        self.stats()
            .sub(Item::NrInactive, (BLOCK_PAGES - stay.count()) as u64);
        for (start, len) in stay.not_within(BLOCK_PAGES).runs(BLOCK_PAGES) {
            self.release(FrameRun::new(h.pfn.add(start), len));
        }
        if stay == PageMask::EMPTY {
            self.stats().add(Item::ThpSplitPage, 1);
            self.stats().add_size(BLOCK_ORDER, SizeItem::Split, 1);
            self.put_folio(h.pfn, 1);
        } else {
            self.split_owned(h.pfn, stay, 1, list);
            for i in stay.pages() {
                let kind = Kind::Inactive(h.pfn.add(i));
                table.set(i, Entry::new(kind, h.prot, h.locked).marked(h.marks));
            }
        }
        self.machine().preempt(Site::Released);
        table
    }

    /// Moves a run of live subpages of a parked huge page into small frames, charged before.
    /// What cannot be moved is noted in `stay`.
    fn move_out(
        &self,
        space: &Space,
        nr: BlockNr,
        h: &HugeMap,
        (start, len): (u32, u32),
        table: &mut Table,
        stay: &mut PageMask,
    ) {
        let mut at = start;
        while at < start + len {
            let page = nr.start().add(at as u64);
            let Some((pfn, n)) = self.single_frames(start + len - at) else {
                stay.set(at);
                at += 1;
                continue;
            };
            let run = PageRun::new(space.id, page, n);
            let source = FrameRun::new(h.pfn.add(at), n);
            let mut visible = n;
            self.with_bytes(source, &mut |bytes| {
                let content = Content::Bytes(bytes);
                if let Err(e) = self.map_as(run, pfn, content, h.prot, h.marks.any()) {
                    visible = e.at;
                }
            });
            let rest = FrameRun::new(pfn, n).tail(visible);
            let copied =
                rest.pages == 0 || self.copy_frames(rest, source.start.add(visible)).is_ok();
            if !copied {
                // Some may have been filled before it stopped.
                self.release(rest);
            }
            for i in 0..n {
                let (p, v) = (pfn.add(i), page.add(i as u64));
                if i >= visible && !copied {
                    stay.set(at + i);
                    let freed = self.zones.small.free(self.machine(), p, 0);
                    debug_assert!(freed.is_ok(), "{freed:?}");
                    continue;
                }
                let resting = Entry::new(Kind::Inactive(p), h.prot, h.locked).marked(h.marks);
                let (e, gauge) = if i < visible {
                    (resting.shown(p, h.marks.any()), Item::NrAnon)
                } else {
                    (resting, Item::NrInactive)
                };
                self.meta(p).set_refs(1);
                self.meta(p).set_owner(space.id, v);
                table.set(at + i, e);
                self.stats().add(gauge, 1);
                self.lru_add(p, Which::Active);
            }
            at += n;
        }
    }

    /// At most `most` frames in a row, so that one call does several pages; the folios are single
    /// pages. Uncharged.
    fn single_frames(&self, most: u32) -> Option<(Pfn, u32)> {
        let order = most.ilog2().min(4) as u8;
        let (order, pfn) = (0..=order).rev().find_map(|order| {
            let got = self.zones.small.alloc(self.machine(), order);
            got.ok().map(|pfn| (order, pfn))
        })?;
        if order > 0 {
            let split = self.zones.small.split_allocated(pfn, order);
            debug_assert!(split.is_ok(), "{split:?}");
        }
        Some((pfn, order_pages(order)))
    }

    /// Splits a huge page that cannot be unmapped (somebody holds it, or others share it)
    /// where it is. Block busy.
    pub(crate) fn split_mapped(&self, space: &Space, nr: BlockNr, h: HugeMap) -> Box<Table> {
        let mut table = Table::new();
        self.split_owned(h.pfn, PageMask::FULL, 1, None);
        for i in 0..BLOCK_PAGES {
            table.set(i, BlockState::Huge(h).entry(i));
            self.meta(h.pfn.add(i))
                .set_owner(space.id, nr.start().add(i as u64));
        }
        if h.shared() {
            self.sort_lists(&table, 0, BLOCK_PAGES);
        }
        table
    }

    /// Splits a folio into single pages: those of `keep` stay, with one reference each, the
    /// others are freed and their charge is returned. The caller owns all its pages (busy, or
    /// with the block's lock), which hold `refs` references, and has disposed of the bytes of
    /// those that are freed. `list` as for [`Engine::split_frozen`].
    pub(crate) fn split_owned(
        &self,
        head: Pfn,
        keep: PageMask,
        refs: u32,
        list: Option<&mut Isolated>,
    ) {
        // Whoever else holds a reference now took it to look at the folio, finds it busy and
        // drops it: nobody waits for a block, locked or busy, with a reference in his hands.
        let refs = refs + u32::from(list.is_some());
        let folio = loop {
            if let Some(folio) = self.freeze_folio(head, refs) {
                break folio;
            }
        };
        self.split_frozen(folio, &keep, 0, list);
    }

    /// Makes tables of huge pages that the range cuts; zeros that a read has mapped there are those
    /// of single pages then.
    pub(crate) fn break_edges(&self, space: &Space, start: Vpn, pages: u64) {
        let last = start.add(pages.saturating_sub(1));
        for (page, cut) in [
            (start, start.index() > 0 || pages < u64::from(BLOCK_PAGES)),
            (last, last.index() != BLOCK_PAGES - 1),
        ] {
            if cut && pages > 0 {
                let block = space.block(self, page.block());
                block.huge_zero.store(false, Relaxed);
                self.break_huge(space, &block, page.block(), PageMask::EMPTY);
            }
        }
    }

    /// A huge page was taken apart because the program has changed a part of it.
    pub(crate) fn broken(&self, block: &Block) {
        if self.tunables().shrinks() {
            block.shrunk.store(PROGRAM, Relaxed);
            block.back.store(0, Relaxed);
        }
    }
}
