//! The entries of a folio that several spaces may map, taken at all its places at once.
//!
//! They are marked busy place by place, each under its block's lock alone, which is only tried.
//! If a lock is not to be had, or one space has locked the page, everything is put back as it was.

use crate::engine::Engine;
use crate::engine::busy::Busy;
use crate::engine::folio::{first_page, order_of};
use crate::engine::rmap::Place;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::platform::PlatformError;
use crate::table::block::{BlockState, HugeMap, Presence};
use crate::table::entry::{Entry, Kind};
use crate::units::{BLOCK_PAGES, BlockNr, PageMask, PageRun, Pfn, Vpn, order_pages};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// The entries of a folio in one block, which are busy and ours.
pub(crate) struct Part {
    pub space: Arc<Space>,
    pub busy: Busy,
    pub nr: BlockNr,
    pub was: Was,
}

/// What they were before.
pub(crate) enum Was {
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

impl<E: Env> Engine<E> {
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
            self.folios.contended.fetch_add(1, Ordering::Relaxed);
            return Err(());
        };
        let (busy, was) = match &mut *state {
            BlockState::Huge(h) if h.pfn == head => {
                if h.locked || !h.mapped() {
                    return Err(());
                }
                let h = *h;
                (Busy::block(block, state).0, Was::Huge(h))
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
                let pages = list.iter().map(|(k, _)| *k).collect();
                (Busy::entries(block, table, pages), Was::Entries(list))
            }
            BlockState::Busy => return Err(()),
            _ => return Ok(None),
        };
        Ok(Some(Part {
            space: space.clone(),
            busy,
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
            part.busy.end_by(self, |state| match part.was {
                Was::Huge(h) => *state = BlockState::Huge(h),
                Was::Entries(list) => {
                    if let Some(table) = state.table() {
                        list.into_iter().for_each(|(k, e)| table.set(k, e));
                    }
                }
            });
        }
    }
}

/// What was unmapped comes back write-protected.
fn guard(part: &mut Part) {
    match &mut part.was {
        Was::Huge(h) if h.shared() => {}
        Was::Huge(h) => h.has = Presence::Guarded,
        Was::Entries(list) => list.iter_mut().for_each(|(_, e)| *e = e.guard(e.shared())),
    }
}
