//! [`LivePlatform`]: the core's boundary on real memory.

mod adopt;
mod caps;
mod error;
mod fork;
mod gather;
mod kernel;
mod managed;
mod mapped;
mod memory;
mod moves;
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
use std::sync::atomic::AtomicBool;

use deckle_mm::platform::{Flush, PlatformError, Prot, Stop};
use deckle_mm::{BlockNr, FrameRun, PageMask, PageRun, Pfn, SpaceId, Vpn};
use deckle_uffd::{Categories, Errno, PageEntry, Pagemap, PagemapScan, Uffd};

pub use caps::{Capabilities, Capability};
pub use error::LiveError;
pub use managed::Managed;
pub use memory::LiveMemory;
pub(crate) use moves::Move;
pub use moves::Noted;
pub(crate) use nursery::IDLE as NURSERY_IDLE;
pub use nursery::{Account, Nursery};
pub use opened::Opened;
pub use parking::Parking;
pub use place::Place;
use remembered::Remembered;
pub use remembered::Unread;
pub use selftest::self_test;

pub(crate) use error::refused;
pub use kernel::drop_apart;
pub(crate) use kernel::monotonic_ns;
use kernel::{BLOCK, PAGE, Reservation};
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
    /// Called when an operation has waited for a while for a message to be read.
    pub unread: Option<Unread>,
    /// See there.
    pub noted: Option<Noted>,
    /// Whether what the program does unseen is followed.
    pub adopts: bool,
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
    /// Serves what is managed: missing and write-protect faults. The parking range is registered
    /// with it, too, for write-protection only: so the kernel puts off what takes pages out while
    /// a move of managed memory has not been read.
    program: Uffd,
    pagemap: Pagemap,
    /// `/proc/self/mem`, for what cannot be moved.
    memory: Option<File>,
    parking: Parking,
    managed: Managed,
    /// Start and end of a range that is about to be unmapped.
    going: Mutex<Range<usize>>,
    /// The same of one in whose place the program has put something else.
    lost: Mutex<Range<usize>>,
    moved: moves::Moves,
    /// Whether there may be pages that the books do not have, see `zero.rs`.
    strays: AtomicBool,
    adopts: bool,
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
        let program = opened.uffd(caps)?;
        let pagemap = opened.pagemap()?;
        let limit = deckle_sys::process::address_space_limit();
        let most = |share: u64| limit.map_or(usize::MAX, |l| (l / share) as usize);

        let want = config
            .parking_bytes
            .unwrap_or(4 * kernel::ram_bytes() as usize)
            .min(most(4));
        let parking = Parking::new(want, &program).map_err(|e| LiveError::Parking(want, e))?;
        let huge_advice = caps.huge() && !caps.has(Capability::BlockRecipe);
        let managed = Managed::new(huge_advice, config.dont_fork);
        let off = config.limit_pages.is_some_and(|l| l < NURSERY_LEAST);
        let nursery = Nursery::new(caps, off, config.account).map_err(LiveError::Own)?;
        let zeros = Reservation::new(BLOCK, libc::PROT_READ).map_err(LiveError::Own)?;
        Ok(LivePlatform {
            program,
            pagemap,
            memory: opened.memory(),
            parking,
            managed,
            going: Mutex::default(),
            lost: Mutex::default(),
            moved: moves::Moves::new(config.noted),
            strays: AtomicBool::new(false),
            adopts: config.adopts,
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

    /// See [`deckle_mm::Platform::forgotten`].
    pub fn forgotten(&self, at: PageRun) -> PageMask {
        let seen = self.placed_until(|| match self.run(at) {
            Ok((start, len)) => self.unmarked(start, len),
            Err(_) => Some(PageMask::EMPTY),
        });
        seen.unwrap_or_else(|| {
            self.tear();
            PageMask::EMPTY
        })
    }

    /// See [`deckle_mm::Platform::hold`].
    pub fn hold(&self, at: PageRun) {
        self.placed(|| {
            if let Ok((start, len)) = self.run(at) {
                self.remember_taken(start, len);
            }
        });
    }

    /// The page map of this process.
    pub(crate) fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Bytes between two addresses that the program's memory has pages of its own for: they are
    /// there or swapped out by the system, and not the page of zeros.
    ///
    /// # Errors
    /// See [`Pagemap::scan`].
    pub fn touched(&self, start: usize, end: usize) -> Result<usize, Errno> {
        let query = without_zeros(start, end, Categories::PRESENT | Categories::SWAPPED);
        let mut bytes = 0;
        self.pagemap.each(query, |found| bytes += found.bytes())?;
        Ok(bytes)
    }

    /// Bytes between two addresses that are there, and that other processes have too since a fork.
    ///
    /// # Errors
    /// See [`Pagemap::scan`] and [`Pagemap::entries`].
    pub fn shared(&self, start: usize, end: usize) -> Result<usize, Errno> {
        self.shared_of(PagemapScan::any(start, end, Categories::PRESENT))
    }

    /// The same of the pages that a query finds.
    fn shared_of(&self, query: PagemapScan) -> Result<usize, Errno> {
        const AT_ONCE: usize = 256;
        let (mut bytes, mut read) = (0, Ok(()));
        self.pagemap.each(query, |found| {
            let mut entries = [PageEntry::default(); AT_ONCE];
            for at in (found.start()..found.end()).step_by(AT_ONCE * PAGE) {
                let part = &mut entries[..AT_ONCE.min((found.end() - at) / PAGE)];
                read = read.and_then(|()| self.pagemap.entries(at, part));
                let others = |e: &&PageEntry| e.is_present() && !e.is_exclusive();
                bytes += part.iter().filter(others).count() * PAGE;
            }
        })?;
        read.map(|()| bytes)
    }

    /// Wakes who waits for a fault on the pages: needed when a fault turns out to have been
    /// resolved already.
    pub fn wake(&self, start: Vpn, pages: u64) {
        let (start, len) = (start.addr() as usize, pages as usize * PAGE);
        let _ = self.program.wake(start, len);
    }

    /// Address and length in bytes of a run; checked to be managed.
    fn run(&self, at: PageRun) -> Result<(usize, usize), PlatformError> {
        let (start, len) = self.booked(at)?;
        let (at, n) = self.place(start, len);
        match n == len {
            true => Ok((at, len)),
            false => Err(GONE),
        }
    }

    /// A run where the books have it.
    fn booked(&self, at: PageRun) -> Result<(usize, usize), PlatformError> {
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
/// The program moves memory at this moment.
pub(crate) const RETRY: PlatformError = PlatformError {
    at: 0,
    why: Stop::Retry,
};
const FLUSHED: Flush = Flush { pending: None };

/// The kernel's word for rights, as of `mprotect`.
pub fn rights(prot: Prot) -> i32 {
    let bit = |on, flag| if on { flag } else { 0 };
    bit(prot.read, libc::PROT_READ)
        | bit(prot.write, libc::PROT_WRITE)
        | bit(prot.exec, libc::PROT_EXEC)
}

const REFUSED: PlatformError = PlatformError {
    at: 0,
    why: Stop::Refused(libc::EINVAL),
};

/// A query for pages of a range that are `there` by any of these, but for zero pages.
fn without_zeros(start: usize, end: usize, there: Categories) -> PagemapScan {
    let mut query = PagemapScan::any(start, end, there);
    query.inverted = Categories::PFNZERO;
    query.required = Categories::PFNZERO;
    query
}
