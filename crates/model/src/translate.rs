//! The operations on translations, under the machine's lock.
//!
//! An operation that stops after some pages returns no token, so it flushes what it has done
//! by itself. An operation that took no right away from any page returns a token with nothing
//! pending.

use crate::frames::FrameState;
use crate::state::{Place, State};
use crate::table::{Pte, Target};
use crate::violation::Broken;
use deckle_mm::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, Content, Done, Flush, FrameRun, PAGE_SIZE, PageRun, Pfn,
    PlatformError, Prot, SpaceId, Stop, Vpn,
};
use std::ops::Range;

/// EINVAL: the answer to an operation whose pre-condition does not hold.
pub(crate) const INVALID: Stop = Stop::Refused(22);

pub(crate) fn stop(at: u32, why: Stop) -> PlatformError {
    PlatformError { at, why }
}

/// Where an operation stops, if an injected failure strikes: the page and the reason.
fn earlier(a: Option<u32>, why_a: Stop, b: Option<u32>, why_b: Stop) -> Option<(u32, Stop)> {
    match (a, b) {
        (Some(a), Some(b)) if b < a => Some((b, why_b)),
        (Some(a), _) => Some((a, why_a)),
        (None, Some(b)) => Some((b, why_b)),
        (None, None) => None,
    }
}

/// The pages of a run, as keys.
fn pages_of(at: PageRun) -> Range<(SpaceId, Vpn)> {
    (at.space, at.start)..(at.space, at.start.add(u64::from(at.pages)))
}

impl State {
    /// `forgets`: the program may have discarded what comes back, which is zeros then.
    pub fn map(
        &mut self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        (prot, wp): (Prot, bool),
        forgets: bool,
    ) -> Result<Done, PlatformError> {
        let op = "map";
        let run = FrameRun::new(frames, at.pages);
        self.check_map(op, at, run, &content)?;
        let block = at.start.block();
        let huge = at.is_block()
            && frames.is_aligned(BLOCK_ORDER)
            && self.spaces[&at.space].is_empty(block);
        let strike = self.strike(at.pages);
        let huge = match strike {
            // A move that stops half-way has made pages of what it was to make one of.
            Some(_) if self.is_sparse() => {
                self.counters.stopped += u64::from(huge);
                false
            }
            Some((_, why)) if huge => return Err(stop(0, why)),
            _ => huge,
        };
        for i in 0..at.pages {
            if let Some((n, why)) = strike
                && n == i
            {
                return Err(stop(i, why));
            }
            let (vpn, pfn) = (self.place(at, i), frames.add(i));
            if let Err(why) = self.may_map(at.space, vpn, pfn, &content) {
                // Of a huge mapping nothing is made before all its frames were looked at.
                return Err(stop(if huge { 0 } else { i }, why));
            }
            if huge {
                continue;
            }
            self.fill(pfn, i, &content);
            self.come_back((at.space, vpn), pfn, forgets);
            let pte = Pte {
                wp,
                ..Pte::new(Target::Frame(pfn), prot)
            };
            self.set(op, at.space, vpn, Some(pte));
            self.counters.mapped += 1;
        }
        if huge {
            for i in 0..BLOCK_PAGES {
                self.fill(frames.add(i), i, &content);
                let page = (at.space, at.start.add(u64::from(i)));
                self.come_back(page, frames.add(i), forgets);
            }
            let pte = Pte {
                wp,
                ..Pte::new(Target::Frame(frames), prot)
            };
            self.set_huge(op, at.space, block, Some(pte));
            self.counters.mapped += BLOCK_PAGES as u64;
            self.counters.mapped_huge += 1;
        }
        Ok(Done { pages: at.pages })
    }

    /// Whether `map` is called as it should be; else records what is broken.
    fn check_map(
        &mut self,
        op: &'static str,
        at: PageRun,
        run: FrameRun,
        content: &Content<'_>,
    ) -> Result<(), PlatformError> {
        if !self.check_run(op, at) || !self.check_frames(op, run, BLOCK_PAGES) {
            return Err(stop(0, INVALID));
        }
        if !self.spaces.contains_key(&at.space) {
            return Err(stop(0, Stop::Gone));
        }
        if let Content::Bytes(bytes) = content
            && bytes.len() != at.pages as usize * PAGE_SIZE
        {
            self.broken(op, Broken::WrongLength, Place::page(at.space, at.start));
            return Err(stop(0, INVALID));
        }
        Ok(())
    }

    /// Where and why an operation on so many pages fails, if it is to.
    pub fn strike(&mut self, pages: u32) -> Option<(u32, Stop)> {
        let retry = self.inject(self.injection.retry, pages);
        let no_memory = self.inject(self.injection.no_memory, pages);
        earlier(retry, Stop::Retry, no_memory, Stop::NoMemory)
    }

    /// Whether the page and the frame are fit to be mapped; else records what is broken.
    fn may_map(
        &mut self,
        space: SpaceId,
        vpn: Vpn,
        pfn: Pfn,
        content: &Content<'_>,
    ) -> Result<(), Stop> {
        let op = "map";
        let place = Place::page(space, vpn).with(pfn);
        if self.is_gone(space, vpn) {
            return Err(Stop::Gone);
        }
        if self.lookup(space, vpn).is_some() {
            self.broken(op, Broken::MapOverTranslation, place);
            return Err(Stop::Exists);
        }
        if self.stale.contains_key(&(space, vpn)) {
            self.broken(op, Broken::UnflushedPage, place);
        }
        self.check_flushed(op, pfn);
        let state = self.frames.get(pfn).state();
        let broken = match (content, state) {
            (Content::Parked, FrameState::Nothing) => Broken::NothingAtRest,
            // A frame that spaces share after a fork may be mapped again in one of them;
            // `set` sees to it that nobody may write it then.
            (Content::Parked, _) | (_, FrameState::Nothing) => return Ok(()),
            (_, FrameState::Resting) => Broken::FrameNotEmpty,
            (_, FrameState::Mapped) => Broken::FrameMapped,
        };
        self.broken(op, broken, place);
        Err(INVALID)
    }

    /// What the program has discarded while it was away comes back as zeros.
    fn come_back(&mut self, page: (SpaceId, Vpn), pfn: Pfn, forgets: bool) {
        if !self.remembered.remove(&page) && forgets {
            self.frames.page_mut(pfn).fill(0);
        }
    }

    fn fill(&mut self, pfn: Pfn, i: u32, content: &Content<'_>) {
        self.frames.get(pfn).resting = false;
        match content {
            Content::Zero => self.frames.page_mut(pfn).fill(0),
            Content::Bytes(bytes) => {
                let from = i as usize * PAGE_SIZE;
                let page = &bytes[from..from + PAGE_SIZE];
                self.frames.page_mut(pfn).copy_from_slice(page);
            }
            Content::Parked => {}
        }
    }

    pub fn unmap(
        &mut self,
        at: PageRun,
        frames: Pfn,
        prot: Prot,
    ) -> Result<(Done, Flush), PlatformError> {
        let op = "unmap";
        let run = FrameRun::new(frames, at.pages);
        if !self.check_run(op, at) || !self.check_frames(op, run, BLOCK_PAGES) {
            return Err(stop(0, INVALID));
        }
        if !self.spaces.contains_key(&at.space) {
            return Err(stop(0, Stop::Gone));
        }
        let busy = self.inject(self.injection.unmap_busy, at.pages);
        let retry = self.inject(self.injection.retry, at.pages);
        let strike = earlier(busy, Stop::Busy, retry, Stop::Retry);
        let stops = strike.is_some() || self.pins.range(pages_of(at)).next().is_some();
        let stops = stops && self.is_sparse();
        let whole = self.whole_huge(at);
        self.counters.stopped += u64::from(stops && whole.is_some());
        let huge = whole.filter(|_| !stops);
        for i in 0..at.pages {
            let (vpn, pfn) = (self.place(at, i), frames.add(i));
            let pinned = (self.pins.contains(&(at.space, vpn))).then_some((i, Stop::Busy));
            let struck = strike.filter(|&(n, _)| n == i);
            let fit = match pinned.or(struck) {
                Some((_, why)) => Err(why),
                None => self.may_unmap(at.space, vpn, pfn, prot),
            };
            if let Err(why) = fit {
                if huge.is_some() || i == 0 {
                    return Err(stop(0, why));
                }
                self.flush_run(at.space, at.start, i as u64);
                return Err(stop(i, why));
            }
            match self.lookup(at.space, vpn) {
                Some((old, _)) if huge.is_none() => {
                    self.set(op, at.space, vpn, None);
                    self.rest(at.space, vpn, old, pfn);
                }
                Some(_) => {}
                None => self.rest_empty(pfn),
            }
        }
        if let Some(old) = huge {
            self.set_huge(op, at.space, at.start.block(), None);
            for i in 0..BLOCK_PAGES {
                let vpn = at.start.add(i as u64);
                self.rest(at.space, vpn, old.part(i), frames.add(i));
            }
        }
        let done = Done { pages: at.pages };
        Ok((done, Flush { pending: Some(at) }))
    }

    fn may_unmap(&mut self, space: SpaceId, vpn: Vpn, pfn: Pfn, prot: Prot) -> Result<(), Stop> {
        let op = "unmap";
        let place = Place::page(space, vpn).with(pfn);
        let Some((pte, _)) = self.lookup(space, vpn) else {
            if self.is_gone(space, vpn) {
                return Ok(());
            }
            self.broken(op, Broken::NotMapped, place);
            return Err(INVALID);
        };
        if self.is_made(pte) {
            self.check_empty(op, pfn)?;
        } else if pte.target != Target::Frame(pfn) {
            self.broken(op, Broken::WrongFrame, place);
            return Err(INVALID);
        }
        // While rights are being changed a manager may say too much, never too little.
        if pte.prot.or(prot) != prot {
            self.broken(op, Broken::WrongProt, place);
        }
        Ok(())
    }

    /// One translation of the frame was taken away; its bytes rest if it was the last, those of
    /// the system's own frames in `to`.
    fn rest(&mut self, space: SpaceId, vpn: Vpn, old: Pte, to: Pfn) {
        self.mark_stale(space, vpn, old);
        self.remembered.insert((space, vpn));
        match old.target {
            Target::Frame(own) if self.is_own(own) => {
                self.flush_run(space, vpn, 1);
                self.frames.copy_page(to, own);
                self.frames.get(to).resting = true;
                self.frames.empty(own);
            }
            Target::Frame(pfn) => {
                let frame = self.frames.get(pfn);
                frame.resting = frame.maps == 0;
            }
            Target::Zero => {}
        }
        self.counters.unmapped += 1;
    }

    /// `keep`: the frames keep their bytes, as memory does that nobody touches.
    pub fn discard(&mut self, at: PageRun, keep: bool) -> Flush {
        let op = "discard";
        if !self.check_run(op, at) || !self.check_space(op, at.space) {
            return Flush { pending: None };
        }
        let huge = self.whole_huge(at);
        if huge.is_some() {
            self.set_huge(op, at.space, at.start.block(), None);
        }
        let mut any = false;
        for i in 0..at.pages {
            let vpn = self.place(at, i);
            self.pins.remove(&(at.space, vpn));
            self.remembered.remove(&(at.space, vpn));
            let pte = match huge {
                Some(pte) => pte.part(i),
                None => match self.lookup(at.space, vpn) {
                    Some((pte, _)) => {
                        self.set(op, at.space, vpn, None);
                        pte
                    }
                    None => continue,
                },
            };
            any = true;
            self.mark_stale(at.space, vpn, pte);
            if let Target::Frame(pfn) = pte.target
                && self.frames.get(pfn).maps == 0
            {
                match keep {
                    true => self.frames.get(pfn).resting = true,
                    false => self.frames.empty(pfn),
                }
            }
        }
        Flush {
            pending: any.then_some(at),
        }
    }

    /// Changes the entries of the run; true if one of them lost a right.
    fn edit(&mut self, op: &'static str, at: PageRun, change: &dyn Fn(&mut Pte)) -> bool {
        let lost = |old: &Pte, new: &Pte| {
            old.prot.read && !new.prot.read || old.can_write() && !new.can_write()
        };
        let mut any = false;
        if let Some(old) = self.whole_huge(at) {
            let mut new = old;
            change(&mut new);
            self.set_huge(op, at.space, at.start.block(), Some(new));
            if lost(&old, &new) {
                for i in 0..BLOCK_PAGES {
                    let vpn = at.start.add(i as u64);
                    self.mark_stale(at.space, vpn, old.part(i));
                }
                any = true;
            }
            return any;
        }
        for i in 0..at.pages {
            let vpn = at.start.add(i as u64);
            let Some((old, _)) = self.lookup(at.space, vpn) else {
                continue;
            };
            let mut new = old;
            change(&mut new);
            if new != old {
                self.set(op, at.space, vpn, Some(new));
            }
            if lost(&old, &new) {
                self.mark_stale(at.space, vpn, old);
                any = true;
            }
        }
        any
    }

    pub fn protect(
        &mut self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<Flush, PlatformError> {
        if !self.spaces.contains_key(&space) {
            return Err(stop(0, Stop::Gone));
        }
        if self.inject(self.injection.no_memory, 1).is_some() {
            return Err(stop(0, Stop::NoMemory));
        }
        let end = start.0.saturating_add(pages);
        let open = (self.open).range_mut((space, start)..(space, Vpn(end.max(start.0))));
        open.for_each(|(_, rights)| *rights = prot);
        let last = Vpn(end.saturating_sub(1)).block();
        let blocks: Vec<u64> = match pages {
            0 => Vec::new(),
            _ => (self.spaces[&space].blocks.range(start.block().0..=last.0))
                .map(|(&b, _)| b)
                .collect(),
        };
        let mut token = None;
        for block in blocks {
            let first = Vpn(start.0.max(BlockNr(block).start().0));
            let until = end.min(BlockNr(block + 1).start().0);
            let run = PageRun::new(space, first, (until - first.0) as u32);
            if self.edit("protect", run, &|pte| pte.prot = prot) {
                if start.block() == last {
                    token = Some(run);
                } else {
                    // A token speaks of one block only; over several the work is done here.
                    self.flush_run(space, run.start, run.pages as u64);
                }
            }
        }
        Ok(Flush { pending: token })
    }

    pub fn write_protect(&mut self, at: PageRun, on: bool) -> Result<Flush, PlatformError> {
        if !self.check_run("write_protect", at) {
            return Err(stop(0, INVALID));
        }
        if !self.spaces.contains_key(&at.space) {
            return Err(stop(0, Stop::Gone));
        }
        if self.inject(self.injection.no_memory, 1).is_some() {
            return Err(stop(0, Stop::NoMemory));
        }
        let any = self.edit("write_protect", at, &|pte| pte.wp = on);
        Ok(Flush {
            pending: any.then_some(at),
        })
    }

    pub fn release_block(&mut self, space: SpaceId, block: BlockNr) {
        let op = "release_block";
        if !self.check_space(op, space) {
            return;
        }
        if self.spaces[&space].is_empty(block) {
            let table = self.spaces.get_mut(&space).expect("checked above");
            table.blocks.remove(&block.0);
        } else {
            let place = Place::page(space, block.start());
            self.broken(op, Broken::BlockMapped, place);
        }
    }
}
