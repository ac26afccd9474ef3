//! What the program discards while it is away.
//!
//! `madvise(MADV_DONTNEED)` by an instruction of the program's own is heard by nobody, and where
//! the page has been taken out it finds nothing to discard. So whoever takes a page out leaves a
//! marker in its page table entry, the one for write-protection of what is not there: a discard,
//! an unmapping and a new mapping in the same place clear it away, and nothing else does. Bytes
//! come back where the marker is; where it is gone the program gets zeros.
//!
//! A page is taken out and marked by two calls, and brought back by a look and a call. A discard
//! of that very page between the two is not noticed: there is no call that does both.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use deckle_mm::{PageMask, PlatformError};
use deckle_sys::futex;
use deckle_uffd::{PageEntry, Partial, ProtectMode, Why, finish};

use super::error::refused;
use super::kernel::{self, Advice, BLOCK, PAGE};
use super::scan;
use super::{LivePlatform, RETRY};
use crate::trace::{Stage, stage};

/// How long a call is repeated that finds the address space changing. A change takes microseconds
/// of a thread of the program's, which may have to wait for a CPU.
const PATIENCE: Duration = Duration::from_secs(10);
/// Times that it is repeated before the task reads what tells of the change itself: all tasks that
/// should may wait for its end in such a call.
const UNREAD: u32 = 100;
/// From then on so often between two reads, for threads that move all the time leave short moments
/// without a change; and it sleeps so long before each, for the thread that wants a CPU.
const UNREAD_AGAIN: u32 = 10;
const NAP: Duration = Duration::from_micros(100);

/// How often a call is repeated that found the address space changing, before the message that
/// stands in the way is read in the place of the tasks that should (P9), and the caller is told.
const SHORT: u32 = 8;

/// Called with locks held: has messages read, or reads them.
pub type Unread = Box<dyn Fn(&LivePlatform) + Send + Sync>;

/// Whether markers can be believed, and who helps where they cannot be set.
pub(super) struct Remembered {
    /// A page could not be marked, so that a page without a marker says nothing.
    forgetful: AtomicBool,
    pub unread: Option<Unread>,
}

impl Remembered {
    pub(super) fn new(unread: Option<Unread>) -> Remembered {
        Remembered {
            forgetful: AtomicBool::new(false),
            unread,
        }
    }
}

impl LivePlatform {
    /// Marks pages of the program that are away.
    pub(super) fn remember(&self, start: usize, len: usize) {
        match self.set_protection(start, len, ProtectMode::WP) {
            Ok(()) => {}
            // A part of it is not ours any more: the program has unmapped it.
            Err(Why::NoEntry) if len > PAGE => {
                (start..start + len)
                    .step_by(PAGE)
                    .for_each(|page| self.remember(page, PAGE));
            }
            Err(Why::NoEntry | Why::Gone) => {
                // Unless it has only moved away.
                if let Some(now) = self.moved_to(start, start) {
                    self.remember(now, len);
                }
            }
            // Bytes that nobody has discarded must not become zeros: from now on all are believed.
            Err(_) => self.remembered.forgetful.store(true, Relaxed),
        }
    }

    /// Marks the holes among the pages of a run from the page `from` on.
    pub(super) fn remember_holes(&self, start: usize, from: u32, len: usize) {
        let start = start + from as usize * PAGE;
        let len = len - from as usize * PAGE;
        for (k, n) in self.holes(start, len).runs((len / PAGE) as u32) {
            self.remember_taken(start + k as usize * PAGE, n as usize * PAGE);
        }
    }

    /// Clears markers away, for an operation that wants nothing there. False: others' may have come
    /// there since the range was [placed](Self::placed).
    pub(super) fn unmark(&self, start: usize, len: usize) -> bool {
        let clear = || self.set_protection(start, len, ProtectMode::DONTWAKE);
        self.unless_moved(start, len, clear).is_some()
    }

    /// The same for those in a row from `start` on; the length in bytes of what was cleared.
    pub(super) fn unmark_from(&self, start: usize, len: usize) -> usize {
        let mut entries = [PageEntry::default(); BLOCK / PAGE];
        let entries = &mut entries[..(len / PAGE).min(BLOCK / PAGE)];
        let is_marker = |e: &&PageEntry| !e.is_present() && e.is_protected();
        let pages = match self.pagemap.entries(start, entries) {
            Ok(()) => entries.iter().take_while(is_marker).count(),
            Err(_) => 0,
        };
        match pages > 0 && self.unmark(start, pages * PAGE) {
            true => pages * PAGE,
            false => 0,
        }
    }

    /// Sets or clears write-protection. Tries long while the address space is changing, since no
    /// change lasts longer than milliseconds.
    pub(super) fn set_protection(
        &self,
        start: usize,
        len: usize,
        mode: ProtectMode,
    ) -> Result<(), Why> {
        self.outlast(|| match self.program.write_protect(start, len, mode) {
            Err(Why::Again { .. }) => None,
            other => Some(other),
        })
        .unwrap_or(Err(Why::Again { changing: true }))
    }

    /// Waits until no change of the address space is under way of which nobody has read. False: one
    /// is still, after long.
    pub(super) fn wait_for_changes(&self) -> bool {
        self.outlast(|| (!self.is_changing()).then_some(()))
            .is_some()
    }

    /// Tries long what the address space's changing hinders.
    fn outlast<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let mut since = None;
        for n in 0_u32.. {
            if let Some(done) = attempt() {
                return Some(done);
            }
            if n < UNREAD || n % UNREAD_AGAIN > 0 {
                kernel::yield_now();
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return None;
            }
            futex::wait(&AtomicU32::new(0), 0, Some(NAP));
            self.have_read();
        }
        None
    }

    /// Repeats a range operation over what is left, with bounded patience.
    ///
    /// The kernel may have cut the range into several mappings where the core sees one (rights that
    /// are just being changed, `MADV_DONTDUMP`), and says `ENOENT` to what lies in two of them: so
    /// it is done page by page then.
    pub(super) fn patiently(
        &self,
        len: usize,
        mut step: impl FnMut(usize, usize) -> Result<deckle_uffd::Done, Partial>,
    ) -> Result<deckle_uffd::Done, Partial> {
        let mut left = SHORT;
        let one_by_one = |at, rest| match step(at, rest) {
            Err(partial) if partial.why == Why::NoEntry && partial.done == 0 && rest > PAGE => {
                step(at, PAGE).and(Err(Partial {
                    done: PAGE,
                    why: Why::Again { changing: false },
                }))
            }
            result => result,
        };
        finish(len, one_by_one, || {
            left = left.saturating_sub(1);
            if left == 0 {
                self.have_read();
            }
            kernel::yield_now();
            left > 0
        })
    }

    /// Has messages read: what they tell of hinders the caller.
    pub(super) fn have_read(&self) {
        if let Some(unread) = &self.remembered.unread {
            unread(self);
        }
    }

    /// Which pages, at most a block and none of them present, have no marker: the program has
    /// discarded them. `None`: it has moved something since they were [placed](Self::placed), or is
    /// moving it.
    pub(super) fn unmarked(&self, start: usize, len: usize) -> Option<PageMask> {
        let holes = self.holes(start, len);
        (holes == PageMask::EMPTY || self.is_unmoved()).then_some(holes)
    }

    fn holes(&self, start: usize, len: usize) -> PageMask {
        let _traced = stage(Stage::Look);
        let mut entries = [PageEntry::default(); BLOCK / PAGE];
        let entries = &mut entries[..(len / PAGE).min(BLOCK / PAGE)];
        if self.remembered.forgetful.load(Relaxed) || self.pagemap.entries(start, entries).is_err()
        {
            return PageMask::EMPTY;
        }
        (0..entries.len() as u32)
            .filter(|&i| entries[i as usize].is_hole())
            .collect()
    }

    /// Before pages at rest come back: those that the program has discarded since become zeros.
    /// They are given back, not written to, for whoever holds an older reference to one.
    pub(super) fn forget_at_rest(
        &self,
        dst: usize,
        src: usize,
        len: usize,
    ) -> Result<(), PlatformError> {
        let pages = (len / PAGE) as u32;
        let mut gone = self.unmarked(dst, len).ok_or(RETRY)?;
        if gone == PageMask::EMPTY {
            return Ok(());
        }
        // What holds zeros already need not lose its huge page for that.
        // SAFETY: frames of the caller's, inside the parking range, which nobody writes.
        let rest = unsafe { core::slice::from_raw_parts(src as *const _, len / PAGE) };
        gone = gone.without(&scan::zero_pages(rest));
        for (at, n) in gone.runs(pages) {
            let (start, len) = (src + at as usize * PAGE, n as usize * PAGE);
            self.parking.note_part(start, len);
            // SAFETY: frames of the caller's whose bytes the program has given up.
            unsafe {
                kernel::drop_pages(start, len)
                    .and_then(|()| kernel::madvise(start, len, Advice::PopulateWrite))
            }
            .map_err(|errno| refused(0, errno))?;
        }
        Ok(())
    }
}
