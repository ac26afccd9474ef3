//! [`LivePlatform`]: the core's boundary on real memory.

mod caps;
mod error;
mod fork;
mod gather;
mod kernel;
mod managed;
mod note;
mod nursery;
mod open;
mod opened;
mod parking;
mod place;
mod remembered;
mod roads;
pub mod scan;
mod selftest;
mod unshare;
mod zero;

use std::fs::File;
use std::ops::Range;
use std::sync::Mutex;

use deckle_mm::platform::{Content, Done, Flush, Made, PlatformError, Prot, Stop, Zones};
use deckle_mm::{BlockNr, FrameRun, PageMask, PageRun, Pfn, Platform, SpaceId, Vpn};
use deckle_uffd::{CopyMode, Pagemap, ProtectMode, Uffd};

pub use caps::{Capabilities, Capability};
pub use error::LiveError;
pub use managed::Managed;
pub(crate) use nursery::IDLE as NURSERY_IDLE;
pub use nursery::{Account, Nursery};
pub use opened::Opened;
pub use parking::Parking;
pub use place::Place;
use remembered::Remembered;
pub use remembered::Unread;
pub use selftest::self_test;

pub(crate) use error::refused;
use error::stop;
pub use kernel::drop_apart;
pub(crate) use kernel::monotonic_ns;
use kernel::{Advice, BLOCK, PAGE, Reservation};
use note::Note;

/// The one address space of a live platform.
pub const SPACE: SpaceId = SpaceId(0);

/// Below this limit no huge page is made ahead of need.
const NURSERY_LEAST: u64 = (64 << 20) / PAGE as u64;

/// What a live platform is built from.
#[derive(Default)]
pub struct LiveConfig {
    /// Bytes of the parking range; `None`: 4 times the RAM, less under `RLIMIT_AS`.
    pub parking_bytes: Option<usize>,
    /// What the system allows; `None`: find out by [`self_test`].
    pub capabilities: Option<Capabilities>,
    /// Keep managed ranges out of forked children but that of a fork that was [prepared
    /// for](LivePlatform::inherit): an access there is then a crash, where without anybody who
    /// serves the child it would be a wrong zero.
    pub dont_fork: bool,
    /// The group's limit in pages; `None`: none.
    pub limit_pages: Option<u64>,
    /// Who pays for huge pages made ahead of need.
    pub account: Option<Box<dyn Account>>,
    /// Who is told when an operation waits for a message to be read that nobody reads.
    pub unread: Option<Unread>,
    /// What is open already.
    pub opened: Opened,
    /// Mappings that the kernel allows the process (`vm.max_map_count`); `None`: its default.
    pub mappings: Option<u32>,
}

/// Real memory of one process.
///
/// Descriptors, ranges and the capabilities found at the start. All operations may be called
/// from any task that shares the memory and the descriptor table of the one that built it.
pub struct LivePlatform {
    /// Serves what is managed: missing and write-protect faults.
    program: Uffd,
    /// Serves the parking range: write-protection only, no events.
    park: Uffd,
    pagemap: Pagemap,
    /// `/proc/self/mem`, for what cannot be moved.
    memory: Option<File>,
    parking: Parking,
    managed: Managed,
    /// Start and end of a range that is about to be unmapped.
    going: Mutex<Range<usize>>,
    nursery: Nursery,
    /// A block of zeros to copy from: never written, so it uses no memory.
    zeros: Reservation,
    note: Note,
    moves: bool,
    most_open: u32,
    remembered: Remembered,
    caps: Capabilities,
}

impl LivePlatform {
    /// Builds the platform; reserves address space, uses next to no memory.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn new(config: LiveConfig) -> Result<LivePlatform, LiveError> {
        let caps = config.capabilities.unwrap_or_else(self_test);
        let mut opened = config.opened;
        let (program, park) = (opened.uffd(caps)?, opened.uffd(caps)?);
        let pagemap = opened.pagemap()?;
        let limit = kernel::address_space_limit();
        let most = |share: u64| limit.map_or(usize::MAX, |l| (l / share) as usize);

        let want = config
            .parking_bytes
            .unwrap_or(4 * kernel::ram_bytes() as usize)
            .min(most(4));
        let parking = Parking::new(want, &park).map_err(|e| LiveError::Parking(want, e))?;
        let huge_advice = caps.huge() && !caps.has(Capability::BlockRecipe);
        let managed = Managed::new(huge_advice, config.dont_fork);
        let off = config.limit_pages.is_some_and(|l| l < NURSERY_LEAST);
        let nursery = Nursery::new(caps, off, config.account).map_err(LiveError::Own)?;
        let zeros = Reservation::new(BLOCK, libc::PROT_READ).map_err(LiveError::Own)?;
        Ok(LivePlatform {
            program,
            park,
            pagemap,
            memory: opened.memory(),
            parking,
            managed,
            going: Mutex::default(),
            nursery,
            zeros,
            note: Note::new().map_err(LiveError::Own)?,
            moves: caps.has(Capability::Move),
            most_open: open::most(config.mappings),
            remembered: Remembered::new(config.unread),
            caps,
        })
    }

    /// The descriptor that faults of the program are read from. A duplicate of it must stay
    /// open as long as the program runs: with the last one closed, what is away reads as zeros.
    pub fn program_uffd(&self) -> &Uffd {
        &self.program
    }

    /// What is managed.
    pub fn managed(&self) -> &Managed {
        &self.managed
    }

    /// The parking range.
    pub fn parking(&self) -> &Parking {
        &self.parking
    }

    /// The huge pages made ahead of need.
    pub fn nursery(&self) -> &Nursery {
        &self.nursery
    }

    /// What the system allows.
    pub fn capabilities(&self) -> Capabilities {
        self.caps
    }

    /// Whether the block is one huge mapping now, as a fact read from the system.
    pub fn is_huge(&self, space: SpaceId, block: BlockNr) -> bool {
        let found = self.span(space, block.start(), (BLOCK / PAGE) as u64);
        found.is_ok_and(|(start, _)| self.is_whole(start))
    }

    /// The page map of this process.
    pub(crate) fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Wakes who waits for a fault on the pages: needed when a fault turns out to have been
    /// resolved already.
    pub fn wake(&self, start: Vpn, pages: u64) {
        let (start, len) = (start.addr() as usize, pages as usize * PAGE);
        let _ = self.program.wake(start, len);
    }

    /// Address and length in bytes of a run; checked to be managed.
    fn run(&self, at: PageRun) -> Result<(usize, usize), PlatformError> {
        self.span(at.space, at.start, u64::from(at.pages))
    }

    fn span(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
    ) -> Result<(usize, usize), PlatformError> {
        let (start, len) = (start.addr() as usize, pages as usize * PAGE);
        match space == SPACE && self.managed.contains(start, len) {
            true => Ok((start, len)),
            false => Err(GONE),
        }
    }

    fn frames(&self, start: Pfn, pages: u32) -> Result<(usize, usize), PlatformError> {
        self.parking.place(start, pages).ok_or(GONE)
    }

    /// The bytes at rest of frames, as pages.
    fn at_rest(&self, frames: FrameRun) -> Option<&[[u64; PAGE / 8]]> {
        let (addr, _) = self.parking.place(frames.start, frames.pages)?;
        // SAFETY: inside the parking range, which is readable, aligned to pages, and lives as
        // long as self. The caller owns the frames, which are not mapped into the program, so
        // nobody writes them meanwhile.
        Some(unsafe { core::slice::from_raw_parts(addr as *const _, frames.pages as usize) })
    }
}

const GONE: PlatformError = PlatformError {
    at: 0,
    why: Stop::Gone,
};
const FLUSHED: Flush = Flush { pending: None };

fn rights(prot: Prot) -> i32 {
    let bit = |on, flag| if on { flag } else { 0 };
    bit(prot.read, libc::PROT_READ)
        | bit(prot.write, libc::PROT_WRITE)
        | bit(prot.exec, libc::PROT_EXEC)
}

impl Platform for LivePlatform {
    const CONTIGUITY: bool = false;

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
        let (dst, len) = self.run(at)?;
        match content {
            Content::Zero if len == BLOCK && self.can_move(prot) => self.map_zero_block(dst),
            Content::Zero => self.copy_in(dst, self.zeros.base() as *const u8, len),
            Content::Bytes(bytes) if bytes.len() == len => {
                self.copy_back(dst, bytes.as_ptr(), len, CopyMode::empty())
            }
            Content::Bytes(_) => Err(REFUSED),
            Content::Parked => {
                let (src, _) = self.frames(frames, at.pages)?;
                self.bring_in(dst, src, len, prot)
            }
        }
    }

    /// Always by copies: a page that is moved can be written before it is protected.
    fn map_protected(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        _prot: Prot,
    ) -> Result<Done, PlatformError> {
        let (dst, len) = self.run(at)?;
        match content {
            Content::Zero => self.copy_as(dst, self.zeros.base() as *const u8, len, CopyMode::WP),
            Content::Bytes(bytes) if bytes.len() == len => {
                self.copy_back(dst, bytes.as_ptr(), len, CopyMode::WP)
            }
            Content::Bytes(_) => Err(REFUSED),
            Content::Parked => {
                let (src, _) = self.frames(frames, at.pages)?;
                self.forget_at_rest(dst, src, len)?;
                self.copy_in_parked(dst, src, len, CopyMode::WP)
            }
        }
    }

    fn unmap(&self, at: PageRun, frames: Pfn, prot: Prot) -> Result<(Done, Flush), PlatformError> {
        let (src, len) = self.run(at)?;
        let (dst, _) = self.frames(frames, at.pages)?;
        Ok((self.take_out(src, dst, len, prot)?, FLUSHED))
    }

    fn discard(&self, at: PageRun) -> Flush {
        if let Ok((start, len)) = self.run(at) {
            // SAFETY: the caller gives the bytes of the run up; the range stays registered.
            let gone = unsafe { kernel::drop_pages(start, len) };
            debug_assert!(
                gone.is_ok(),
                "managed memory refused MADV_DONTNEED: {gone:?}"
            );
        }
        FLUSHED
    }

    /// See `Platform::map_zero`. `Exists` at a page means that it holds bytes nobody has
    /// charged: written while it was a zero page. It keeps them, write-protected; the caller
    /// charges it as a present page and goes on with the rest of the run.
    fn map_zero(&self, at: PageRun) -> Result<Done, PlatformError> {
        let (start, len) = self.run(at)?;
        self.zero_in(start, len)
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
        let (start, len) = self.run(at)?;
        let mode = if on {
            ProtectMode::WP
        } else {
            ProtectMode::empty()
        };
        let done = self.program.write_protect(start, len, mode);
        done.map(|()| FLUSHED).map_err(|why| PlatformError {
            at: 0,
            why: stop(why),
        })
    }

    fn most_open(&self) -> u32 {
        self.most_open
    }

    fn open(&self, at: PageRun) -> Result<(), PlatformError> {
        self.run(at)
            .and_then(|(start, len)| self.leave_open(start, len))
    }

    fn close(&self, at: PageRun) -> Result<Made, PlatformError> {
        self.run(at)
            .and_then(|(start, len)| self.take_over(start, len))
    }

    fn close_empty(&self, at: PageRun) -> Result<(), PlatformError> {
        self.run(at)
            .and_then(|(start, len)| self.take_empty(start, len))
    }

    fn free_open(&self, at: PageRun) {
        let _ = self
            .run(at)
            .map(|(start, len)| self.free_lazily(start, len));
    }

    fn release_block(&self, space: SpaceId, block: BlockNr) {
        let addr = block.start().addr() as usize;
        if self.is_going(addr, BLOCK) {
            // Its page table goes with the mapping.
            return;
        }
        if let Ok((start, _)) = self.span(space, block.start(), (BLOCK / PAGE) as u64) {
            self.clear_program_block(start);
        }
    }

    fn flush(&self, tokens: &mut dyn Iterator<Item = Flush>) {
        // The kernel has flushed before each call came back.
        tokens.for_each(drop);
    }

    fn forgotten(&self, at: PageRun) -> PageMask {
        match self.run(at) {
            Ok((start, len)) => self.unmarked(start, len),
            Err(_) => PageMask::EMPTY,
        }
    }

    fn hold(&self, at: PageRun) {
        if let Ok((start, len)) = self.run(at) {
            self.remember(start, len);
        }
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

const REFUSED: PlatformError = PlatformError {
    at: 0,
    why: Stop::Refused(libc::EINVAL),
};
