//! What hardware and kernel do for a memory manager.
//!
//! One narrow boundary with pre- and post-conditions for each operation; the software model
//! and live memory implement the same one. No operation chooses a policy.
//!
//! Who may call: for an operation on pages of a block, the caller holds the block's lock, or
//! the block (or its entries in the run) is marked busy by the caller. For an operation on
//! unmapped frames, the caller owns the frames. An operation never waits for another CPU's
//! locks in the core, never calls back into the core, and never charges.

use crate::units::{FrameRun, PageMask, PageRun, Pfn, SpaceId, Vpn};
use core::fmt;

/// How many pages an operation has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Pages, counted from the start of the run.
    pub pages: u32,
}

/// Why a platform operation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The page cannot be taken now: pinned, or held by somebody outside. Skip it.
    Busy,
    /// The address space is changing; the same call may succeed in a moment.
    Retry,
    /// The address range or the address space is gone.
    Gone,
    /// The destination is occupied already.
    Exists,
    /// No memory for the operation.
    NoMemory,
    /// The system refuses the operation for good (errno); a defect or a broken system.
    Refused(i32),
}

/// A platform operation that stopped before the end of its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlatformError {
    /// Pages done before: the run's first `at` pages are as after success, the rest as before.
    pub at: u32,
    /// Why the next page was not done.
    pub why: Stop,
}

impl fmt::Display for PlatformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped at page {} of the run: {:?}", self.at, self.why)
    }
}

/// What a page holds when it becomes visible to the program.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Zeros. Pre: the frames hold no bytes at rest (fresh from the zone).
    Zero,
    /// These bytes, `4096 * pages` of them. Pre: as for `Zero`.
    Bytes(&'a [u8]),
    /// What the frames hold at rest since `unmap`, `fill_zero` or `copy`.
    Parked,
}

/// Access rights of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prot {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
}

impl Prot {
    /// Reading and writing.
    pub const RW: Prot = Prot {
        read: true,
        write: true,
        exec: false,
    };
    /// Reading only.
    pub const R: Prot = Prot {
        read: true,
        write: false,
        exec: false,
    };
    /// No access.
    pub const NONE: Prot = Prot {
        read: false,
        write: false,
        exec: false,
    };

    /// What either of the two allows.
    pub fn or(self, other: Prot) -> Prot {
        Prot {
            read: self.read || other.read,
            write: self.write || other.write,
            exec: self.exec || other.exec,
        }
    }
}

/// Translations that other CPUs may still hold; must be handed to [`Platform::flush`] before
/// the frames of the run are read, written or reused.
#[must_use = "stale translations stay until the token is flushed"]
#[derive(Debug)]
pub struct Flush {
    /// The run whose translations changed; `None` if the operation flushed already.
    pub pending: Option<PageRun>,
}

/// What the system has made of open pages (bit i: page i of the run).
#[derive(Clone, Copy, Debug, Default)]
pub struct Made {
    /// Pages, mapped as after [`Platform::map`].
    pub pages: PageMask,
    /// Zero pages, mapped as after [`Platform::map_zero`].
    pub zeros: PageMask,
}

/// Which frame numbers exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zones {
    /// Frames for folios below the block order.
    pub small: FrameSpan,
    /// Frames for folios of the block order; `None` if one zone serves all orders.
    pub huge: Option<FrameSpan>,
}

/// A span of frame numbers, `first` aligned to the largest order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameSpan {
    /// First frame.
    pub first: Pfn,
    /// Number of frames.
    pub frames: u32,
}

/// The parts of a list of frames that are one run each, or all none: first and length.
pub fn runs_of(from: &[Option<Pfn>]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut at = 0;
    core::iter::from_fn(move || {
        let first = *from.get(at)?;
        let follows = |n: usize| from[at + n] == first.map(|p| p.add(n as u32));
        let rest = from.len() - at;
        let len = (1..rest).find(|&n| !follows(n)).unwrap_or(rest);
        at += len;
        Some(((at - len) as u32, len as u32))
    })
}

/// Memory and translations of one machine.
///
/// Only the engine calls these operations: it alone knows whose a frame is. So what
/// [`crate::Engine::platform`] hands out is the [`Handle`](Platform::Handle), which has none of
/// them, and who makes a platform of real memory promises (by an unsafe constructor) that it
/// goes to a manager.
pub trait Platform: Send + Sync {
    /// What others than the engine may see and do of it.
    type Handle;

    /// What others may see.
    fn handle(&self) -> &Self::Handle;
    /// The same for who has the manager alone.
    fn handle_mut(&mut self) -> &mut Self::Handle;

    /// The frame numbers; constant.
    fn zones(&self) -> Zones;

    // ---- unmapped frames ----

    /// Makes the frames hold zeros at rest. Pre: owned, no bytes at rest.
    fn fill_zero(&self, frames: FrameRun) -> Result<Done, PlatformError>;
    /// Copies the bytes of `src` (same length) to `dst`, which holds none before. Pre: nobody
    /// can write `src`: it is at rest, or mapped without the right to write, and what was
    /// writable is flushed.
    fn copy(&self, dst: FrameRun, src: Pfn) -> Result<Done, PlatformError>;
    /// Copies pages from here and there to a whole folio, one after the other; zeros where there
    /// is none. Its frames hold nothing before, and become one huge page where the folio is as
    /// large as a block and the system allows. Pre: as `copy`. On an error some hold bytes.
    fn gather(&self, dst: Pfn, from: &[Option<Pfn>]) -> Result<(), PlatformError> {
        let pages = from.len() as u32;
        for (at, len) in runs_of(from) {
            let to = FrameRun::new(dst.add(at), len);
            let done = match from[at as usize] {
                Some(src) => self.copy(to, src),
                None => self.fill_zero(to),
            };
            done.map_err(|e| PlatformError {
                at: (at + e.at).min(pages),
                ..e
            })?;
        }
        Ok(())
    }
    /// Which of the frames hold only zeros (bit i: `frames.start + i`). Pre: bytes at rest,
    /// unmapped and flushed, so that nobody can write.
    fn scan_zero(&self, frames: FrameRun) -> PageMask;
    /// Calls `read` with the bytes at rest of the frames. Pre: as `scan_zero`.
    fn with_bytes(&self, frames: FrameRun, read: &mut dyn FnMut(&[u8]));
    /// Gives the bytes at rest back; the frames hold none after. Never fails. Frames without
    /// bytes are ignored. Never overwrites in place: whoever still holds an older reference
    /// to a page keeps its bytes.
    fn release(&self, frames: FrameRun);
    /// The same for several runs, which may cost less than one after the other.
    fn release_all(&self, runs: &[FrameRun]) {
        runs.iter().for_each(|&run| self.release(run));
    }
    /// Asks the system to take the huge page apart that `frame` is of, so that it has memory
    /// back when a part is released. `frame` holds bytes: at rest, or mapped at `page`. Where
    /// frames are memory there is nothing to do. A refusal keeps memory longer, no more.
    fn split(&self, page: PageRun, frame: Pfn) {
        let _ = (page, frame);
    }

    // ---- translations ----

    /// Makes the pages of the run visible to the program, backed by `frames`.
    ///
    /// Pre: no translation exists for the run (zero mappings dropped), the frames are owned
    /// and unmapped. A run of a whole block with 512 frames aligned to a block becomes one
    /// huge mapping where the system allows.
    /// Post: pages done hold `content`, have rights `prot`; their frames hold nothing at rest.
    /// But bytes come back only to a page that is remembered ([`Platform::forgotten`]); another
    /// one holds zeros. `Exists`: the system has a page there that the core does not know of.
    fn map(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
    ) -> Result<Done, PlatformError>;
    /// As [`Platform::map`], but the pages are write-protected from the first moment on, so that
    /// no write goes unheard.
    ///
    /// Post: a write is delivered as a fault; `write_protect(.., false)` permits it.
    fn map_protected(
        &self,
        at: PageRun,
        frames: Pfn,
        content: Content<'_>,
        prot: Prot,
    ) -> Result<Done, PlatformError>;
    /// Makes the pages of the run visible, write-protected, with the bytes that `frames` hold,
    /// at rest or mapped elsewhere: how a fork gives pages to the child, and how pages that
    /// several spaces hold change their place. Called only where the core copies on write.
    ///
    /// Pre: no translation exists for the run; nobody can write the frames, now or by a
    /// translation that is not flushed. A whole block becomes one huge mapping as in `map`.
    /// Post: a write is delivered as a fault; `write_protect(.., false)` permits it.
    fn map_shared(&self, at: PageRun, frames: Pfn, prot: Prot) -> Result<Done, PlatformError>;
    /// Takes the pages away from the program; their bytes rest in `frames` after. Atomic for
    /// each page: a concurrent access sees the page or faults, no write is lost.
    /// Of the pages that are away after an error no CPU holds a translation any more.
    ///
    /// Pre: the run was mapped with these frames and `prot`. A frame that another translation
    /// reaches still is not at rest before that one is gone, too.
    fn unmap(&self, at: PageRun, frames: Pfn, prot: Prot) -> Result<(Done, Flush), PlatformError>;
    /// Copies the bytes of mapped pages to `to`, which is as long as the run; stops at the first
    /// page that is not there. Called only where the kernel copies on write.
    ///
    /// Pre: the pages are write-protected and flushed, so that no CPU can write to them.
    fn read_mapped(&self, at: PageRun, to: &mut [u8]) -> Done {
        let _ = (at, to);
        Done { pages: 0 }
    }
    /// Drops the translations of mapped pages whose bytes the caller has stored, and remembers
    /// the pages; stops at the first page that is not there. Other processes keep the pages
    /// that they share. Called only where the kernel copies on write.
    ///
    /// Pre: as [`read_mapped`](Platform::read_mapped).
    fn drop_stored(&self, at: PageRun) -> (Done, Flush) {
        let _ = at;
        (Done { pages: 0 }, Flush { pending: None })
    }
    /// Drops translations and bytes of the run, zero mappings included; what is not there is
    /// ignored. The frames behind hold nothing after. Where the core copies on write they keep
    /// their bytes until `release`: another translation, a copy in progress or a pin may need
    /// them.
    fn discard(&self, at: PageRun) -> Flush;
    /// Maps the shared zero page, read-only, over the run; pages that have a translation
    /// already are left alone. A later write is delivered as a fault.
    ///
    /// `Exists` at a page: it holds bytes that the program wrote before the protection was
    /// there. It keeps them, write-protected; the caller books it and goes on with the rest.
    fn map_zero(&self, at: PageRun) -> Result<Done, PlatformError>;
    /// Removes zero mappings. Pre: each page of the run is one.
    fn drop_zero(&self, at: PageRun) -> Flush;
    /// Sets the rights of any number of pages of a space (the VMA's), mapped or not.
    fn protect(
        &self,
        space: SpaceId,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<Flush, PlatformError>;
    /// Sets or clears write-protection for tracking; writes are then delivered as faults.
    fn write_protect(&self, at: PageRun, on: bool) -> Result<Flush, PlatformError>;
    /// Runs of open pages that there may be: each may cost the system a mapping or two more.
    fn most_open(&self) -> u32 {
        0
    }
    /// Leaves holes to the system: until [`close`](Platform::close) it makes a page of zeros of
    /// each at its first touch, of which the core hears nothing. Who waits for one goes on.
    ///
    /// # Errors
    /// All are holes as before. Where frames are memory nobody else can fill them: always.
    fn open(&self, at: PageRun) -> Result<(), PlatformError> {
        let _ = at;
        Err(PlatformError {
            at: 0,
            why: Stop::Refused(0),
        })
    }
    /// Ends that; what was made of the pages. The others are holes.
    ///
    /// # Errors
    /// All are open as before; `Gone`: none of them is the core's any more.
    fn close(&self, at: PageRun) -> Result<Made, PlatformError> {
        let _ = at;
        Ok(Made::default())
    }
    /// The same for pages whose bytes are given up: what was made is gone, all are holes after.
    ///
    /// # Errors
    /// As [`close`](Platform::close); all that is left open is empty, too.
    fn close_empty(&self, at: PageRun) -> Result<(), PlatformError> {
        let _ = at;
        Ok(())
    }
    /// The contents of open pages may be dropped until they are written again (MADV_FREE).
    fn free_open(&self, at: PageRun) {
        let _ = at;
    }
    /// Gives the block's own table memory back. Pre: nothing of the block is mapped.
    fn release_block(&self, space: SpaceId, block: crate::units::BlockNr);
    /// Waits until no CPU holds a translation that the tokens speak of.
    fn flush(&self, tokens: &mut dyn Iterator<Item = Flush>);

    // ---- what the program discards behind the core's back ----
    //
    // Where the kernel copies on write there is somebody below who discards pages at the
    // program's word without telling the core. Of a page that is away only the platform can know
    // it: `unmap` makes it remember the page, a discard makes it forget.

    /// Which pages of the run are not remembered: the program has discarded them since they were
    /// unmapped or [held](Platform::hold), or they never were. Pre: none is mapped.
    fn forgotten(&self, at: PageRun) -> PageMask {
        let _ = at;
        PageMask::EMPTY
    }
    /// Remembers pages that are away though this platform has not unmapped them: a child of a
    /// fork finds its parent's.
    fn hold(&self, at: PageRun) {
        let _ = at;
    }
    /// [Holds](Platform::hold) what is away of the run, and write-protects what is mapped.
    fn guard_held(&self, at: PageRun) -> Result<Flush, PlatformError> {
        self.hold(at);
        self.write_protect(at, true)
    }
    /// What is remembered and forgotten of the pages of `at`, all of which are away, holds for
    /// those from `to` on. Both runs lie in one block each.
    fn carry(&self, at: PageRun, to: Vpn) {
        let _ = (at, to);
    }

    // ---- spaces ----

    /// A new, empty address space with this number.
    fn create_space(&self, space: SpaceId) -> Result<(), PlatformError>;
    /// Ends an address space. Pre: nothing is mapped in it.
    fn destroy_space(&self, space: SpaceId);
}
