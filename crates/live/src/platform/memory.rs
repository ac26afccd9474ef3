//! [`LiveMemory`]: what the engine calls.

use super::error::refused;
use super::kernel::{self, Advice, BLOCK, PAGE};
use super::{FLUSHED, LivePlatform, REFUSED, RETRY, SPACE, rights, scan};
use deckle_mm::platform::{Content, Done, Flush, Made, PlatformError, Prot, Stop, Zones};
use deckle_mm::{BlockNr, FrameRun, PageMask, PageRun, Pfn, Platform, SpaceId, Vpn};
use deckle_uffd::{CopyMode, Errno, ProtectMode};

/// The operations of a live platform, which read, move and drop memory of this process by the
/// numbers of its frames and pages.
pub struct LiveMemory(LivePlatform);

impl LiveMemory {
    /// # Safety
    /// It goes to one [`deckle_mm::Mm`], or its owner keeps the conditions of [`Platform`]: whose
    /// frames they are, that nobody else reads or writes them, and that no reference leads to
    /// pages which are taken away.
    pub unsafe fn new(platform: LivePlatform) -> LiveMemory {
        LiveMemory(platform)
    }
}

impl std::ops::Deref for LiveMemory {
    type Target = LivePlatform;
    fn deref(&self) -> &LivePlatform {
        &self.0
    }
}

impl Platform for LiveMemory {
    type Handle = LivePlatform;

    fn handle(&self) -> &LivePlatform {
        &self.0
    }
    fn handle_mut(&mut self) -> &mut LivePlatform {
        &mut self.0
    }

    fn zones(&self) -> Zones {
        self.parking.zones()
    }

    fn fill_zero(&self, frames: FrameRun) -> Result<Done, PlatformError> {
        let (addr, len) = self.frames(frames.start, frames.pages)?;
        self.parking.note_part(addr, len);
        // SAFETY: populating changes no byte; the range is ours.
        match unsafe { kernel::madvise(addr, len, Advice::PopulateWrite) } {
            Ok(()) => Ok(Done {
                pages: frames.pages,
            }),
            Err(errno) => {
                self.release(frames);
                Err(refused(0, errno))
            }
        }
    }

    fn copy(&self, dst: FrameRun, src: Pfn) -> Result<Done, PlatformError> {
        let (to, len) = self.frames(dst.start, dst.pages)?;
        let (from, _) = self.frames(src, dst.pages)?;
        self.fill_zero(dst)?;
        // SAFETY: both inside the parking range, different frames of the caller's; the
        // destination has pages of its own that have not been in the program.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
        Ok(Done { pages: dst.pages })
    }

    fn gather(&self, dst: Pfn, from: &[Option<Pfn>]) -> Result<(), PlatformError> {
        self.gathered(dst, from)
    }

    fn scan_zero(&self, frames: FrameRun) -> PageMask {
        self.at_rest(frames)
            .map_or(PageMask::EMPTY, scan::zero_pages)
    }

    fn with_bytes(&self, frames: FrameRun, read: &mut dyn FnMut(&[u8])) {
        if let Some((addr, len)) = self.parking.place(frames.start, frames.pages) {
            // SAFETY: as in at_rest.
            read(unsafe { core::slice::from_raw_parts(addr as *const u8, len) });
        }
    }

    fn release(&self, frames: FrameRun) {
        self.release_all(&[frames]);
    }

    fn release_all(&self, runs: &[FrameRun]) {
        // SAFETY: the caller owns the frames and gives their bytes up.
        unsafe { self.parking.release(runs) };
    }

    fn split(&self, page: PageRun, frame: Pfn) {
        self.take_apart(page, frame);
    }

    fn map(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        self.in_place(self.booked(at)?, |dst, len| match content {
            Content::Zero if len == BLOCK && dst.is_multiple_of(BLOCK) && self.can_move(prot) => {
                self.map_zero_block(dst)
            }
            Content::Zero => self.copy_in(dst, self.zeros.base() as *const u8, len),
            Content::Bytes(bytes) if bytes.len() >= len => {
                self.copy_back(dst, bytes.as_ptr(), len, CopyMode::empty())
            }
            Content::Bytes(_) => Err(REFUSED),
            Content::Parked => {
                let (src, _) = self.frames(frames, at.pages)?;
                self.bring_in(dst, src, len, prot)
            }
        })
    }

    /// Always by copies: a page that is moved can be written before it is protected.
    fn map_protected(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        _prot: Prot,
    ) -> Result<Done, PlatformError> {
        self.in_place(self.booked(at)?, |dst, len| match content {
            Content::Zero => self.copy_as(dst, self.zeros.base() as *const u8, len, CopyMode::WP),
            Content::Bytes(bytes) if bytes.len() >= len => {
                self.copy_back(dst, bytes.as_ptr(), len, CopyMode::WP)
            }
            Content::Bytes(_) => Err(REFUSED),
            Content::Parked => {
                let (src, _) = self.frames(frames, at.pages)?;
                self.forget_at_rest(dst, src, len)?;
                self.copy_in_parked(dst, src, len, CopyMode::WP)
            }
        })
    }

    fn unmap(&self, at: PageRun, frames: Pfn, prot: Prot) -> Result<(Done, Flush), PlatformError> {
        let (dst, _) = self.frames(frames, at.pages)?;
        let taken = self.in_place(self.booked(at)?, |src, len| {
            self.take_out(src, dst, len, prot)
        });
        let done = taken.or_else(|e| self.pass_over(at, e))?;
        Ok((done, FLUSHED))
    }

    fn read_mapped(&self, at: PageRun, to: &mut [u8]) -> Done {
        self.place_first();
        let pages = match self.run(at) {
            Ok((start, len)) if to.len() >= len => self.read_shared(start, &mut to[..len]),
            _ => 0,
        };
        Done { pages }
    }

    fn drop_stored(&self, at: PageRun) -> (Done, Flush) {
        let drop_it = || match self.run(at) {
            // SAFETY: the caller has stored the bytes, which no CPU can write.
            Ok((start, len)) => unsafe { self.drop_shared(start, len) },
            Err(_) => 0,
        };
        let pages = self.later(drop_it).unwrap_or(0);
        (Done { pages }, FLUSHED)
    }

    fn discard(&self, at: PageRun) -> Flush {
        let is_lost = |(start, len)| self.is_lost(start, len);
        let dropped = self.placed_until(|| {
            if self.booked(at).is_ok_and(is_lost) {
                return Some(());
            }
            let Ok((start, len)) = self.run(at) else {
                return Some(());
            };
            // SAFETY: the caller gives the bytes of the run up; the range stays registered.
            let gone = unsafe { self.drop_booked(start, len) };
            if gone.is_err() && (gone == Err(Errno(libc::EAGAIN)) || !self.is_unmoved()) {
                return None;
            }
            debug_assert!(
                gone.is_ok(),
                "managed memory refused MADV_DONTNEED: {gone:?}"
            );
            Some(())
        });
        if dropped.is_none() {
            self.tear();
        }
        FLUSHED
    }

    /// See `Platform::map_zero`. `Exists` at a page means that it holds bytes nobody has
    /// charged: written while it was a zero page. It keeps them, write-protected; the caller
    /// charges it as a present page and goes on with the rest of the run.
    fn map_zero(&self, at: PageRun) -> Result<Done, PlatformError> {
        self.placed(|| {
            let (start, len) = self.run(at)?;
            let zeros = self.zero_in(start, len);
            if self.is_unmoved() {
                return zeros;
            }
            self.take_zeros_back(start, len);
            Err(RETRY)
        })
    }

    fn drop_zero(&self, at: PageRun) -> Flush {
        match self.run(at) {
            Ok((start, len)) if self.is_ours(start, len) => self.discard(at),
            Ok(_) if at.pages > 1 => {
                (0..at.pages).for_each(|k| drop(self.drop_zero(at.part(k, 1))));
                FLUSHED
            }
            _ => FLUSHED,
        }
    }

    fn protect(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<Flush, PlatformError> {
        let (start, len) = self.span(space, start, pages)?;
        // SAFETY: rights of the program's memory, as the program asked; none of ours lies there.
        let done = unsafe { kernel::mprotect(start, len, rights(prot)) };
        done.map(|()| FLUSHED).map_err(|errno| refused(0, errno))
    }

    fn write_protect(&self, at: PageRun, on: bool) -> Result<Flush, PlatformError> {
        let mode = if on {
            ProtectMode::WP
        } else {
            ProtectMode::empty()
        };
        self.placed(|| {
            let (start, len) = self.run(at)?;
            self.protect_placed(start, len, mode).map(|()| FLUSHED)
        })
    }

    fn most_open(&self) -> u32 {
        self.most_open
    }

    fn open(&self, at: PageRun) -> Result<(), PlatformError> {
        self.steadily(at, |start, len| self.leave_open(start, len))
    }

    fn close(&self, at: PageRun) -> Result<Made, PlatformError> {
        self.steadily(at, |start, len| self.take_over(start, len))
    }

    fn close_empty(&self, at: PageRun) -> Result<(), PlatformError> {
        let closed = self.steadily(at, |start, len| self.take_empty(start, len));
        closed.inspect_err(|e| {
            if e.why == Stop::Retry {
                // Bytes that are given up might be read again.
                self.tear();
            }
        })
    }

    fn free_open(&self, at: PageRun) {
        let free = |start, len| {
            self.free_lazily(start, len);
            Ok(())
        };
        // What is kept is as good.
        let _ = self.steadily(at, free);
    }

    fn release_block(&self, space: SpaceId, block: BlockNr) {
        let addr = block.start().addr() as usize;
        if self.is_going(addr, BLOCK) || self.is_lost(addr, BLOCK) {
            // Its page table goes with the mapping.
            return;
        }
        self.placed(|| {
            let place = self.span(space, block.start(), (BLOCK / PAGE) as u64);
            // Nothing of it is there where it has moved to.
            if place.is_ok_and(|(start, len)| self.place(start, len) == (start, len)) {
                self.clear_program_block(addr);
            }
        });
    }

    fn flush(&self, tokens: &mut dyn Iterator<Item = Flush>) {
        // The kernel has flushed before each call came back.
        tokens.for_each(drop);
    }

    fn forgotten(&self, at: PageRun) -> PageMask {
        self.0.forgotten(at)
    }

    fn hold(&self, at: PageRun) {
        self.0.hold(at);
    }

    /// One call does both.
    fn guard_held(&self, at: PageRun) -> Result<Flush, PlatformError> {
        self.write_protect(at, true)
    }

    fn carry(&self, at: PageRun, to: Vpn) {
        let (gone, dst) = (self.forgotten(at), to.addr() as usize);
        for (k, n) in gone.not_within(at.pages).runs(at.pages) {
            self.remember(dst + k as usize * PAGE, n as usize * PAGE);
        }
        for (k, n) in gone.runs(at.pages) {
            self.unmark(dst + k as usize * PAGE, n as usize * PAGE);
        }
    }

    fn create_space(&self, space: SpaceId) -> Result<(), PlatformError> {
        match space {
            SPACE => Ok(()),
            _ => Err(REFUSED),
        }
    }

    fn destroy_space(&self, _space: SpaceId) {}

    /// A process has one space; its fork is another process with a platform of its own, and
    /// what they share is the kernel's to copy.
    fn map_shared(&self, _at: PageRun, _frames: Pfn, _prot: Prot) -> Result<Done, PlatformError> {
        Err(REFUSED)
    }
}
