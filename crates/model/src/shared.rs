//! Pages that several translations reach, none of which permits writing.

use crate::state::{Place, State};
use crate::table::{Pte, Target};
use crate::translate::{INVALID, stop};
use crate::violation::Broken;
use deckle_mm::{
    BLOCK_ORDER, BLOCK_PAGES, Done, FrameRun, PageRun, Pfn, PlatformError, Prot, Stop,
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
            let (vpn, pfn) = (at.start.add(i as u64), frames.add(i));
            let place = Place::page(at.space, vpn).with(pfn);
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

fn protected(pfn: Pfn, prot: Prot) -> Pte {
    Pte {
        wp: true,
        ..Pte::new(Target::Frame(pfn), prot)
    }
}
