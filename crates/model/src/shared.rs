//! Pages that several translations reach, none of which permits writing.

use crate::state::{Place, State};
use crate::table::{Pte, Target};
use crate::translate::{INVALID, stop};
use crate::violation::Broken;
use deckle_mm::{
    BLOCK_ORDER, BLOCK_PAGES, Done, Flush, FrameRun, PAGE_SIZE, PageRun, Pfn, PlatformError, Prot,
    SpaceId, Stop, Vpn,
};

impl State {
    pub fn map_shared(
        &mut self,
        at: PageRun,
        frames: Pfn,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        let op = "map_shared";
        let run = FrameRun::new(frames, at.pages);
        if !self.check_run(op, at) || !self.check_frames(op, run, BLOCK_PAGES) {
            return Err(stop(0, INVALID));
        }
        if !self.spaces.contains_key(&at.space) {
            return Err(stop(0, Stop::Gone));
        }
        let block = at.start.block();
        let huge = at.is_block()
            && frames.is_aligned(BLOCK_ORDER)
            && self.spaces[&at.space].is_empty(block);
        let strike = self.inject(self.injection.no_memory, at.pages);
        if huge && strike.is_some() {
            return Err(stop(0, Stop::NoMemory));
        }
        for i in 0..at.pages {
            if strike == Some(i) {
                return Err(stop(i, Stop::NoMemory));
            }
            let (vpn, pfn) = (self.place(at, i), frames.add(i));
            let place = Place::page(at.space, vpn).with(pfn);
            if self.is_gone(at.space, vpn) {
                return Err(stop(if huge { 0 } else { i }, Stop::Gone));
            }
            if self.lookup(at.space, vpn).is_some() {
                self.broken(op, Broken::MapOverTranslation, place);
                return Err(stop(if huge { 0 } else { i }, Stop::Exists));
            }
            if self.stale.contains_key(&(at.space, vpn)) {
                self.broken(op, Broken::UnflushedPage, place);
            }
            self.check_unwritable(op, pfn)
                .map_err(|why| stop(if huge { 0 } else { i }, why))?;
            if !huge {
                self.frames.get(pfn).resting = false;
                self.set(op, at.space, vpn, Some(protected(pfn, prot)));
                self.counters.mapped += 1;
            }
        }
        if huge {
            for i in 0..BLOCK_PAGES {
                self.frames.get(frames.add(i)).resting = false;
            }
            self.set_huge(op, at.space, block, Some(protected(frames, prot)));
            self.counters.mapped += u64::from(BLOCK_PAGES);
            self.counters.mapped_huge += 1;
        }
        Ok(Done { pages: at.pages })
    }
}

impl State {
    /// The frame of a mapped page, which no CPU can write; a page that the program has discarded
    /// has none.
    fn read_only(&mut self, op: &'static str, space: SpaceId, vpn: Vpn) -> Option<Pfn> {
        let (pte, _) = self.lookup(space, vpn)?;
        match pte.target {
            Target::Frame(pfn) if self.check_unwritable(op, pfn).is_ok() => Some(pfn),
            _ => None,
        }
    }

    pub fn read_mapped(&mut self, at: PageRun, to: &mut [u8]) -> Done {
        let op = "read_mapped";
        let mut pages = 0;
        if self.check_run(op, at) && self.check_space(op, at.space) {
            for page in to.chunks_exact_mut(PAGE_SIZE).take(at.pages as usize) {
                let vpn = at.start.add(u64::from(pages));
                let Some(pfn) = self.read_only(op, at.space, vpn) else {
                    break;
                };
                page.copy_from_slice(self.frames.content(pfn));
                pages += 1;
            }
        }
        Done { pages }
    }

    pub fn drop_stored(&mut self, at: PageRun) -> (Done, Flush) {
        let op = "drop_stored";
        let mut pages = 0;
        if self.check_run(op, at) && self.check_space(op, at.space) {
            let here = |n: u32| at.start.add(u64::from(n));
            while pages < at.pages && self.read_only(op, at.space, here(pages)).is_some() {
                pages += 1;
            }
        }
        if pages == 0 {
            return (Done { pages }, Flush { pending: None });
        }
        let run = at.part(0, pages);
        let token = self.discard(run, false);
        let remembered = (0..pages).map(|n| (at.space, at.start.add(u64::from(n))));
        self.remembered.extend(remembered);
        (Done { pages }, token)
    }
}

fn protected(pfn: Pfn, prot: Prot) -> Pte {
    Pte {
        wp: true,
        ..Pte::new(Target::Frame(pfn), prot)
    }
}
