//! Translations of whole runs: platform operations that may stop half-way, made all or nothing,
//! and flushed.

use crate::engine::Engine;
use crate::engine::space::{MapError, Space};
use crate::env::Env;
use crate::platform::{Content, Done, Flush, Platform, PlatformError, Prot, Stop};
use crate::stat::Item;
use crate::table::block::{HugeMap, Presence, Table};
use crate::units::{
    BLOCK_PAGES, BlockNr, FrameRun, PAGE_SIZE, PageMask, PageRun, Pfn, SpaceId, Vpn,
};

/// Times a platform operation is tried again while the address space is changing.
const STOP_RETRIES: u32 = 10_000;

/// Times that a protection is tried while the address space is changing.
const GUARD_RETRIES: u32 = 1000;

/// Does a step on the rest of a run, behind so many pages, until all of it is done: again while the
/// address space is changing. How far it got, and what stopped it.
fn as_far_as_it_goes(
    run: PageRun,
    step: impl Fn(u32) -> Result<Done, PlatformError>,
) -> (u32, Option<Stop>) {
    let (mut done, mut tries) = (0, 0);
    while done < run.pages {
        match step(done) {
            Ok(d) => done += d.pages,
            Err(e) => {
                done += e.at;
                tries += 1;
                if e.why != Stop::Retry || tries > STOP_RETRIES {
                    return (done, Some(e.why));
                }
            }
        }
    }
    (done, None)
}

impl<E: Env> Engine<E> {
    /// Maps a whole run. On an error, parked pages are all at rest again. Of zeros or bytes
    /// the first `at` pages stay mapped, and the caller must book them: the program may have
    /// written to them already.
    pub(crate) fn map_all(
        &self,
        run: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
    ) -> Result<(), PlatformError> {
        self.map_as(run, frames, content, prot, false)
    }

    /// The same, `guarded` or not: who is to be told of writes must miss none.
    pub(crate) fn map_as(
        &self,
        run: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
        guarded: bool,
    ) -> Result<(), PlatformError> {
        let (done, stop) = self.push(run, frames, content, prot, guarded);
        let Some(why) = stop else { return Ok(()) };
        let Content::Parked = content else {
            return Err(PlatformError { at: done, why });
        };
        if done > 0 {
            // The program may have written meanwhile: the bytes go back where they were.
            let (_, stop) = self.pull(PageRun { pages: done, ..run }, frames, prot);
            debug_assert!(stop.is_none(), "cannot undo a partial map: {stop:?}");
        }
        Err(PlatformError { at: 0, why })
    }

    /// Takes a whole run away from the program and flushes. On an error (somebody holds a
    /// page) everything is mapped as it was, protected if `guarded`.
    pub(crate) fn unmap_all(
        &self,
        run: PageRun,
        frames: Pfn,
        prot: Prot,
        guarded: bool,
    ) -> Result<(), PlatformError> {
        let (done, stop) = self.pull(run, frames, prot);
        let Some(why) = stop else { return Ok(()) };
        if done > 0 {
            self.put_back(PageRun { pages: done, ..run }, frames, prot, guarded);
        }
        if guarded {
            // The attempt may have lifted the protection of the page that is held.
            let kept = self.guard(run);
            debug_assert!(kept, "{run:?} is unprotected");
        }
        Err(PlatformError { at: done, why })
    }

    /// Maps a run again whose bytes rest since a moment ago. What the program has unmapped since by
    /// a call that nobody saw has no bytes any more.
    fn put_back(&self, run: PageRun, frames: Pfn, prot: Prot, guarded: bool) {
        let mut at = 0;
        while at < run.pages {
            let (rest, from) = (run.tail(at), frames.add(at));
            let (done, stop) = self.push(rest, from, Content::Parked, prot, guarded);
            at += done;
            let Some(why) = stop else { return };
            if why != Stop::Gone {
                debug_assert!(false, "cannot undo a partial unmap: {why:?}");
                return;
            }
            self.release(FrameRun::new(frames.add(at), 1));
            at += 1;
        }
    }

    /// Maps as much of a run as goes.
    fn push(
        &self,
        run: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
        guarded: bool,
    ) -> (u32, Option<Stop>) {
        as_far_as_it_goes(run, |done| {
            let rest = match content {
                Content::Bytes(b) => Content::Bytes(&b[done as usize * PAGE_SIZE..]),
                c => c,
            };
            let (at, from) = (run.tail(done), frames.add(done));
            match guarded {
                true => self.memory().map_protected(at, from, rest, prot),
                false => self.memory().map(at, from, rest, prot),
            }
        })
    }

    /// Unmaps as much of a run as goes and flushes it.
    fn pull(&self, run: PageRun, frames: Pfn, prot: Prot) -> (u32, Option<Stop>) {
        as_far_as_it_goes(run, |done| {
            let (at, from) = (run.tail(done), frames.add(done));
            let (done, token) = self.memory().unmap(at, from, prot)?;
            self.memory().flush(&mut core::iter::once(token));
            Ok(done)
        })
    }

    /// Maps a huge page at rest, guarded if it is tracked. On an error it stays at rest. Block
    /// locked (or busy).
    pub(crate) fn show_huge(
        &self,
        space: &Space,
        nr: BlockNr,
        h: &mut HugeMap,
    ) -> Result<(), PlatformError> {
        let run = PageRun::new(space.id, nr.start(), BLOCK_PAGES);
        let guarded = h.marks.any();
        self.map_as(run, h.pfn, Content::Parked, h.prot, guarded)?;
        h.has = Presence::shown(guarded);
        self.moved_in(BLOCK_PAGES);
        Ok(())
    }

    /// Maps the entries `first..first + n`, which rest in the frames from `pfn` on and have equal
    /// rights; guarded if any is tracked. On an error all stay at rest. Block locked.
    pub(crate) fn show_entries(
        &self,
        space: &Space,
        nr: BlockNr,
        table: &mut Table,
        (first, n): (u32, u32),
        pfn: Pfn,
    ) -> Result<(), PlatformError> {
        let run = PageRun::new(space.id, nr.start().add(u64::from(first)), n);
        let guarded = (first..first + n).any(|k| table.get(k).marks().any());
        let prot = table.get(first).prot();
        self.map_as(run, pfn, Content::Parked, prot, guarded)?;
        for k in 0..n {
            let e = table.get(first + k);
            table.set(first + k, e.shown(pfn.add(k), guarded));
        }
        self.moved_in(n);
        Ok(())
    }

    /// Gauges: pages went from inactive to mapped.
    pub(crate) fn moved_in(&self, pages: u32) {
        self.stats().add(Item::NrAnon, pages as u64);
        self.stats().sub(Item::NrInactive, pages as u64);
    }

    /// Gauges: pages went from mapped to inactive.
    pub(crate) fn moved_out(&self, pages: u32) {
        self.stats().sub(Item::NrAnon, pages as u64);
        self.stats().add(Item::NrInactive, pages as u64);
    }

    /// Maps a whole run of pages that several places hold, or may: write-protected. On an error
    /// nothing is mapped, and the bytes are where they were.
    pub(crate) fn map_shared_all(
        &self,
        run: PageRun,
        frames: Pfn,
        prot: Prot,
    ) -> Result<(), PlatformError> {
        let (done, stop) = as_far_as_it_goes(run, |done| {
            let (at, from) = (run.tail(done), frames.add(done));
            self.memory().map_shared(at, from, prot)
        });
        let Some(why) = stop else { return Ok(()) };
        if done > 0 {
            let (_, stop) = self.pull(PageRun { pages: done, ..run }, frames, prot);
            debug_assert!(stop.is_none(), "cannot undo: {stop:?}");
        }
        Err(PlatformError { at: 0, why })
    }

    /// Takes a run away whose frames others may map still, and flushes. On an error it is
    /// mapped as before, but write-protected.
    pub(crate) fn unmap_shared_all(
        &self,
        run: PageRun,
        frames: Pfn,
        prot: Prot,
    ) -> Result<(), PlatformError> {
        let (done, stop) = self.pull(run, frames, prot);
        let Some(why) = stop else { return Ok(()) };
        if done > 0 {
            self.show_again(PageRun { pages: done, ..run }, frames, prot);
        }
        Err(PlatformError { at: done, why })
    }

    /// Maps a run again, write-protected, that was mapped a moment ago: what it needed is
    /// there, so it is tried until it succeeds.
    pub(crate) fn show_again(&self, run: PageRun, frames: Pfn, prot: Prot) {
        let mut last = Ok(());
        for _ in 0..STOP_RETRIES {
            last = self.map_shared_all(run, frames, prot);
            if last.is_ok() {
                return;
            }
        }
        debug_assert!(last.is_ok(), "cannot map again: {last:?}");
    }

    /// Rights for a range that was not mapped; without access again if that is refused.
    pub(crate) fn protect_new(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<(), MapError> {
        let done = self.protect_range(space, start, pages, prot);
        if done.is_err() {
            let _ = self.protect_range(space, start, pages, Prot::NONE);
        }
        done
    }

    pub(crate) fn protect_range(
        &self,
        space: &Space,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<(), MapError> {
        let token = self
            .memory()
            .protect(space.id, start, pages, prot)
            .map_err(MapError::Platform)?;
        self.memory().flush(&mut core::iter::once(token));
        Ok(())
    }

    pub(crate) fn guard(&self, run: PageRun) -> bool {
        self.guarded_by(|| self.memory().write_protect(run, true))
    }

    pub(crate) fn guarded_by(&self, by: impl Fn() -> Result<Flush, PlatformError>) -> bool {
        for _ in 0..GUARD_RETRIES {
            match by() {
                Ok(token) => {
                    self.memory().flush(&mut core::iter::once(token));
                    return true;
                }
                Err(e) if e.why == Stop::Retry => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Lifts the protection of a run and wakes who waits for it. Block locked, so that nobody
    /// counts on the protection now.
    pub(crate) fn unguard(&self, run: PageRun) -> Result<(), PlatformError> {
        let token = self.memory().write_protect(run, false)?;
        self.memory().flush(&mut core::iter::once(token));
        Ok(())
    }

    /// Discards what a run maps, and its bytes; no CPU has any of it any more then. Block locked
    /// (or busy).
    pub(crate) fn discard_run(&self, run: PageRun) {
        let token = self.memory().discard(run);
        self.memory().flush(&mut core::iter::once(token));
    }

    /// Copies the bytes of mapped, write-protected pages to `to`; how many pages there were.
    /// The pages are busy, and the caller's.
    pub(crate) fn read_mapped(&self, run: PageRun, to: &mut [u8]) -> u32 {
        self.memory().read_mapped(run, to).pages
    }

    /// Drops the translations of pages whose bytes are stored; how many pages were still there.
    /// The pages are busy, and the caller's.
    pub(crate) fn drop_stored(&self, run: PageRun) -> u32 {
        let (done, token) = self.memory().drop_stored(run);
        self.memory().flush(&mut core::iter::once(token));
        done.pages
    }

    /// Takes mapped zero pages of a block away, by index. Block locked.
    pub(crate) fn drop_zero_pages(&self, space: SpaceId, nr: BlockNr, pages: &PageMask) {
        for (k, n) in pages.runs(BLOCK_PAGES) {
            let run = PageRun::new(space, nr.start().add(u64::from(k)), n);
            let token = self.memory().drop_zero(run);
            self.memory().flush(&mut core::iter::once(token));
        }
    }

    /// Maps the shared zero page over a run of what is not mapped: how many pages, and why not
    /// more. Block locked.
    pub(crate) fn show_zero_page(&self, run: PageRun) -> (u32, Option<PlatformError>) {
        match self.memory().map_zero(run) {
            Ok(_) => (run.pages, None),
            Err(e) => (e.at, Some(e)),
        }
    }

    /// Maps a page of zeros where something has given back what the books hold, if it is away
    /// still. False: it is there. Block locked.
    pub(crate) fn refill(
        &self,
        page: PageRun,
        frame: Pfn,
        prot: Prot,
        guarded: bool,
    ) -> Result<bool, PlatformError> {
        let filled = match guarded {
            true => (self.memory()).map_protected(page, frame, Content::Zero, prot),
            false => self.memory().map(page, frame, Content::Zero, prot),
        };
        match filled {
            Ok(_) => Ok(true),
            Err(e) if e.why == Stop::Exists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Leaves pages to the system again that it has been told of. Block locked.
    pub(crate) fn open_again(&self, run: PageRun) -> Result<(), PlatformError> {
        self.memory().open(run)
    }

    /// Which pages of a block, all away, the program has discarded by calls that nobody saw.
    pub(crate) fn forgotten(&self, space: SpaceId, nr: BlockNr) -> PageMask {
        let run = PageRun::new(space, nr.start(), BLOCK_PAGES);
        self.memory().forgotten(run)
    }

    /// Protects what is mapped of a run, and has the platform remember what is away. False: it
    /// could not be.
    pub(crate) fn guard_held(&self, run: PageRun) -> bool {
        self.guarded_by(|| self.memory().guard_held(run))
    }

    /// What the platform remembers of a run, all away, holds for the one at `to`.
    pub(crate) fn carry_memory(&self, run: PageRun, to: Vpn) {
        self.memory().carry(run, to);
    }
}
