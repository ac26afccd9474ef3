//! The model as a [`Platform`].

use crate::frames::FrameState;
use crate::model::{FIRST_FRAME, Model};
use crate::profile::Profile;
use crate::state::{Place, State};
use crate::translate::{INVALID, stop};
use crate::violation::Broken;
use deckle_mm::platform::{FrameSpan, Made};
use deckle_mm::{
    BLOCK_PAGES, BlockNr, Content, Done, Flush, FrameRun, PAGE_SIZE, PageMask, PageRun, Pfn,
    Platform, PlatformError, Prot, SpaceId, Stop, Vpn, Zones,
};

/// Frames that one operation on unmapped frames may take: a folio of the largest order.
const MOST_FRAMES: u32 = 1024;

impl State {
    fn fill_zero(&mut self, frames: FrameRun) -> Result<Done, PlatformError> {
        let op = "fill_zero";
        if !self.check_frames(op, frames, MOST_FRAMES) {
            return Err(stop(0, INVALID));
        }
        let strike = self.inject(self.injection.no_memory, frames.pages);
        for i in 0..frames.pages {
            if strike == Some(i) {
                return Err(stop(i, Stop::NoMemory));
            }
            let pfn = frames.start.add(i);
            self.check_empty(op, pfn).map_err(|why| stop(i, why))?;
            self.frames.page_mut(pfn).fill(0);
            self.frames.get(pfn).resting = true;
        }
        Ok(Done {
            pages: frames.pages,
        })
    }

    /// Whether the frame holds nothing and nobody can reach it; else records a violation.
    pub(crate) fn check_empty(&mut self, op: &'static str, pfn: Pfn) -> Result<(), Stop> {
        self.check_flushed(op, pfn);
        let broken = match self.frames.get(pfn).state() {
            FrameState::Nothing => return Ok(()),
            FrameState::Resting => Broken::FrameNotEmpty,
            FrameState::Mapped => Broken::FrameMapped,
        };
        self.broken(op, broken, Place::frame(pfn));
        Err(INVALID)
    }

    /// Whether the frame holds bytes that nobody can write; else records a violation.
    pub(crate) fn check_unwritable(&mut self, op: &'static str, pfn: Pfn) -> Result<(), Stop> {
        let frame = *self.frames.get(pfn);
        let broken = match frame.state() {
            FrameState::Nothing => Broken::NothingAtRest,
            FrameState::Mapped if frame.writers > 0 => Broken::FrameMapped,
            _ if frame.stale_writers > 0 => Broken::UnflushedFrame,
            _ => return Ok(()),
        };
        self.broken(op, broken, Place::frame(pfn));
        Err(INVALID)
    }

    fn copy(&mut self, dst: FrameRun, src: Pfn) -> Result<Done, PlatformError> {
        let op = "copy";
        let from = FrameRun::new(src, dst.pages);
        if !self.check_frames(op, dst, MOST_FRAMES) || !self.check_frames(op, from, MOST_FRAMES) {
            return Err(stop(0, INVALID));
        }
        let strike = self.inject(self.injection.no_memory, dst.pages);
        for i in 0..dst.pages {
            if strike == Some(i) {
                return Err(stop(i, Stop::NoMemory));
            }
            let (to, from) = (dst.start.add(i), src.add(i));
            self.check_empty(op, to).map_err(|why| stop(i, why))?;
            // Also from a frame that is mapped, as long as nobody can write it: the source
            // of a copy on write stays mapped in the other spaces.
            self.check_unwritable(op, from)
                .map_err(|why| stop(i, why))?;
            self.frames.copy_page(to, from);
            self.frames.get(to).resting = true;
            self.counters.copied += 1;
        }
        Ok(Done { pages: dst.pages })
    }

    /// Records a violation unless the frame has bytes at rest that nobody can reach.
    fn check_resting(&mut self, op: &'static str, pfn: Pfn) {
        self.check_flushed(op, pfn);
        let broken = match self.frames.get(pfn).state() {
            FrameState::Resting => return,
            FrameState::Nothing => Broken::NothingAtRest,
            FrameState::Mapped => Broken::FrameMapped,
        };
        self.broken(op, broken, Place::frame(pfn));
    }

    fn scan_zero(&mut self, frames: FrameRun) -> PageMask {
        let op = "scan_zero";
        let mut zero = PageMask::EMPTY;
        if !self.check_frames(op, frames, BLOCK_PAGES) {
            return zero;
        }
        for i in 0..frames.pages {
            let pfn = frames.start.add(i);
            self.check_resting(op, pfn);
            match self.frames.content(pfn).iter().position(|&b| b != 0) {
                Some(n) => self.counters.scanned_bytes += n as u64 + 1,
                None => {
                    self.counters.scanned_bytes += PAGE_SIZE as u64;
                    zero.set(i);
                }
            }
        }
        zero
    }

    fn read_frames(&mut self, frames: FrameRun) -> Option<Vec<u8>> {
        let op = "with_bytes";
        if !self.check_frames(op, frames, MOST_FRAMES) {
            return None;
        }
        let mut bytes = Vec::with_capacity(frames.pages as usize * PAGE_SIZE);
        for i in 0..frames.pages {
            let pfn = frames.start.add(i);
            self.check_resting(op, pfn);
            bytes.extend_from_slice(self.frames.content(pfn));
        }
        Some(bytes)
    }

    fn release(&mut self, frames: FrameRun) {
        let op = "release";
        if !self.check_frames(op, frames, MOST_FRAMES) {
            return;
        }
        for i in 0..frames.pages {
            let pfn = frames.start.add(i);
            match self.frames.get(pfn).state() {
                FrameState::Nothing => {}
                FrameState::Mapped => self.broken(op, Broken::FrameMapped, Place::frame(pfn)),
                FrameState::Resting => {
                    self.check_flushed(op, pfn);
                    self.frames.empty(pfn);
                }
            }
        }
    }
}

/// Runs of open pages that there may be on a sparse machine.
const MOST_OPEN: u32 = 1000;

impl<P: Profile> Model<P> {
    /// Whether the core copies on write.
    const CORE: bool = !P::BELOW;
}

impl<P: Profile> Platform for Model<P> {
    type Handle = Self;

    fn handle(&self) -> &Self {
        self
    }
    fn handle_mut(&mut self) -> &mut Self {
        self
    }

    fn zones(&self) -> Zones {
        let span = |first, frames| FrameSpan { first, frames };
        Zones {
            small: span(FIRST_FRAME, self.frames()),
            huge: (!P::RAM).then(|| span(FIRST_FRAME.add(self.frames()), self.frames())),
        }
    }

    fn fill_zero(&self, frames: FrameRun) -> Result<Done, PlatformError> {
        self.turn("fill_zero");
        self.lock().fill_zero(frames)
    }
    fn copy(&self, dst: FrameRun, src: Pfn) -> Result<Done, PlatformError> {
        self.turn("copy");
        self.lock().copy(dst, src)
    }
    fn scan_zero(&self, frames: FrameRun) -> PageMask {
        self.turn("scan_zero");
        self.lock().scan_zero(frames)
    }
    fn with_bytes(&self, frames: FrameRun, read: &mut dyn FnMut(&[u8])) {
        self.turn("with_bytes");
        // Read from a copy, so that no lock of the machine is held while a foreign function
        // runs, which may let another CPU go first.
        let bytes = self.lock().read_frames(frames);
        if let Some(bytes) = bytes {
            read(&bytes);
        }
    }
    fn release(&self, frames: FrameRun) {
        self.turn("release");
        self.lock().release(frames);
    }

    fn map(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        self.turn("map");
        self.lock()
            .map(at, frames, content, (prot, false), !Self::CORE)
    }
    fn map_protected(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        self.turn("map_protected");
        self.lock()
            .map(at, frames, content, (prot, true), !Self::CORE)
    }
    fn map_shared(&self, at: PageRun, frames: Pfn, prot: Prot) -> Result<Done, PlatformError> {
        self.turn("map_shared");
        self.lock().map_shared(at, frames, prot)
    }
    fn unmap(&self, at: PageRun, frames: Pfn, prot: Prot) -> Result<(Done, Flush), PlatformError> {
        self.turn("unmap");
        self.lock().unmap(at, frames, prot)
    }
    fn read_mapped(&self, at: PageRun, to: &mut [u8]) -> Done {
        self.turn("read_mapped");
        self.lock().read_mapped(at, to)
    }
    fn drop_stored(&self, at: PageRun) -> (Done, Flush) {
        self.turn("drop_stored");
        self.lock().drop_stored(at)
    }
    fn discard(&self, at: PageRun) -> Flush {
        self.turn("discard");
        self.lock().discard(at, Self::CORE)
    }
    fn map_zero(&self, at: PageRun) -> Result<Done, PlatformError> {
        self.turn("map_zero");
        self.lock().map_zero(at)
    }
    fn drop_zero(&self, at: PageRun) -> Flush {
        self.turn("drop_zero");
        self.lock().drop_zero(at)
    }
    fn protect(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<Flush, PlatformError> {
        self.turn("protect");
        self.lock().protect(space, start, pages, prot)
    }
    fn write_protect(&self, at: PageRun, on: bool) -> Result<Flush, PlatformError> {
        self.turn("write_protect");
        self.lock().write_protect(at, on)
    }
    fn most_open(&self) -> u32 {
        if P::RAM { 0 } else { MOST_OPEN }
    }
    fn open(&self, at: PageRun) -> Result<(), PlatformError> {
        self.turn("open");
        match P::RAM {
            true => Err(stop(0, INVALID)),
            false => self.lock().open(at),
        }
    }
    fn close(&self, at: PageRun) -> Result<Made, PlatformError> {
        self.turn("close");
        self.lock().close(at)
    }
    fn close_empty(&self, at: PageRun) -> Result<(), PlatformError> {
        self.turn("close_empty");
        self.lock().close_empty(at)
    }
    fn free_open(&self, at: PageRun) {
        self.turn("free_open");
        self.lock().free_open(at);
    }
    fn release_block(&self, space: SpaceId, block: BlockNr) {
        self.turn("release_block");
        self.lock().release_block(space, block);
    }
    fn flush(&self, tokens: &mut dyn Iterator<Item = Flush>) {
        self.turn("flush");
        // The tokens are taken before the lock: the iterator is the caller's.
        let runs: Vec<PageRun> = tokens.filter_map(|t| t.pending).collect();
        let mut state = self.lock();
        for run in runs {
            state.flush_run(run.space, run.start, run.pages as u64);
            for i in 0..run.pages {
                let page = state.place(run, i);
                if page != run.start.add(u64::from(i)) {
                    state.flush_run(run.space, page, 1);
                }
            }
        }
    }

    fn forgotten(&self, at: PageRun) -> PageMask {
        self.turn("forgotten");
        let state = self.lock();
        let mut mask = PageMask::EMPTY;
        (0..at.pages)
            .filter(|&i| {
                let page = (at.space, state.place(at, i));
                !Self::CORE && !state.remembered.contains(&page)
            })
            .for_each(|i| mask.set(i));
        mask
    }
    fn hold(&self, at: PageRun) {
        self.turn("hold");
        let mut state = self.lock();
        for i in 0..at.pages {
            let page = (at.space, state.place(at, i));
            state.remembered.insert(page);
        }
    }
    fn carry(&self, at: PageRun, to: Vpn) {
        self.turn("carry");
        let mut state = self.lock();
        for i in 0..u64::from(at.pages) {
            let dst = (at.space, Vpn(to.0 + i));
            match state.remembered.contains(&(at.space, at.start.add(i))) {
                true => state.remembered.insert(dst),
                false => state.remembered.remove(&dst),
            };
        }
    }

    fn create_space(&self, space: SpaceId) -> Result<(), PlatformError> {
        self.turn("create_space");
        let mut state = self.lock();
        if state.spaces.contains_key(&space) {
            state.broken("create_space", Broken::SpaceExists, Place::space(space));
            return Err(stop(0, Stop::Exists));
        }
        let chance = state.injection.no_memory;
        if state.inject(chance, 1).is_some() {
            return Err(stop(0, Stop::NoMemory));
        }
        state.spaces.insert(space, Default::default());
        Ok(())
    }
    fn destroy_space(&self, space: SpaceId) {
        self.turn("destroy_space");
        let mut state = self.lock();
        if !state.check_space("destroy_space", space) {
            return;
        }
        let mapped = (state.spaces[&space].blocks.keys().copied())
            .find(|&b| !state.spaces[&space].is_empty(BlockNr(b)));
        if let Some(block) = mapped {
            let place = Place::page(space, BlockNr(block).start());
            state.broken("destroy_space", Broken::SpaceMapped, place);
            return;
        }
        state.spaces.remove(&space);
        state.pins.retain(|&(s, _)| s != space);
        state.remembered.retain(|&(s, _)| s != space);
        state.open.retain(|&(s, _), _| s != space);
    }
}
