//! Moves of managed memory by calls of the program's that nobody saw, until the books follow.
//!
//! The kernel tells of such a move when it is done. Until that is read each operation on the
//! memory is put off; from then on, until the books know the new place, what is done at the old
//! one is done at the new one. So it makes no difference for an operation of several steps that
//! the program moves the pages between two of them.
//!
//! A move may have put its pages in the place of others that are managed: these are gone, and until
//! the books have forgotten them nothing is done there. An operation that was under way while the
//! message of such a move was read may have reached the pages that came: which cannot be told, so
//! that the program is ended then.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use deckle_mm::platform::Stop;
use deckle_mm::{PageRun, PlatformError};
use deckle_uffd::{Errno, Partial, ProtectMode, Why};

use super::error::stop;
use super::kernel::{self, PAGE};
use super::{GONE, LivePlatform, RETRY, Unread};

/// A range has gone from one place to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Address before.
    pub from: usize,
    /// Address since.
    pub to: usize,
    /// Bytes.
    pub len: usize,
}

/// Waits until whoever is reading a message has noted what that tells.
pub type Noted = Box<dyn Fn() + Send + Sync>;

/// A move that the books do not follow yet.
#[derive(Clone, Copy)]
struct Unfollowed {
    of: Move,
    /// How many were noted before it.
    number: u32,
    /// What was managed at the new place is forgotten.
    cleared: bool,
}

impl Unfollowed {
    fn takes(&self, at: usize) -> bool {
        (self.of.from..self.of.from + self.of.len).contains(&at)
    }

    /// Whether something of the range was there before the move, and is gone.
    fn replaces(&self, start: usize, len: usize) -> bool {
        !self.cleared && start < self.of.to + self.of.len && self.of.to < start + len
    }
}

thread_local! {
    /// How many moves had been noted when the range was placed that the task works on.
    static PLACED: Cell<Option<u32>> = const { Cell::new(None) };
    /// The same of a range that the task has read, and will drop.
    static FIRST: Cell<u32> = const { Cell::new(0) };
}

#[derive(Default)]
pub(super) struct Moves {
    any: AtomicBool,
    /// How many there were.
    count: AtomicU32,
    /// In their order.
    list: RwLock<VecDeque<Unfollowed>>,
    noted: Option<Noted>,
    /// Pages were taken out as others came to their place: bytes may be lost.
    torn: AtomicBool,
}

impl Moves {
    pub(super) fn new(noted: Option<Noted>) -> Moves {
        Moves {
            noted,
            ..Moves::default()
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, VecDeque<Unfollowed>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, VecDeque<Unfollowed>> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LivePlatform {
    /// In a child of fork: its own.
    pub(crate) fn listen(&mut self, noted: Noted, unread: Unread) {
        self.moved = Moves::new(Some(noted));
        self.remembered.unread = Some(unread);
    }

    /// Whether the books do not follow all moves yet that are noted.
    pub(crate) fn has_moves(&self) -> bool {
        self.moved.any.load(Acquire)
    }

    /// A move has been read: before anybody reads the next message.
    pub(crate) fn note_move(&self, moved: Move) {
        let mut list = self.moved.write();
        let number = self.moved.count.fetch_add(1, AcqRel);
        list.push_back(Unfollowed {
            of: moved,
            number,
            cleared: false,
        });
        self.moved.any.store(true, Release);
    }

    /// The first of those that the books do not follow yet.
    pub(crate) fn first_move(&self) -> Option<Move> {
        self.moved.read().front().map(|m| m.of)
    }

    /// The books have nothing at the new place of the first.
    pub(crate) fn clear_move(&self) {
        if let Some(first) = self.moved.write().front_mut() {
            first.cleared = true;
        }
    }

    /// The books follow the first.
    pub(crate) fn end_move(&self) {
        let mut list = self.moved.write();
        list.pop_front();
        self.moved.any.store(!list.is_empty(), Release);
    }

    /// Whether the books do not know yet what is at a page.
    pub(crate) fn is_arriving(&self, page: usize) -> bool {
        let is_there = |m: &Unfollowed| (m.of.to..m.of.to + m.of.len).contains(&page);
        self.moved.any.load(Acquire) && self.moved.read().iter().any(is_there)
    }

    /// Where a range of the books is now, and how many bytes of it lie there without a gap; none:
    /// it begins with what is gone.
    pub(super) fn place(&self, start: usize, len: usize) -> (usize, usize) {
        let (mut at, mut n) = (start, len);
        if self.moved.any.load(Acquire) {
            for m in self.moved.read().iter() {
                if m.takes(at) {
                    n = n.min(m.of.from + m.of.len - at);
                    at = m.of.to + (at - m.of.from);
                    continue;
                }
                if (at..at + n).contains(&m.of.from) {
                    n = m.of.from - at;
                }
                if m.replaces(at, n) {
                    n = m.of.to.saturating_sub(at);
                }
            }
        }
        (at, n)
    }

    /// Whether something was moved to a range, in the place of what the books have there, since the
    /// range that the task works on was [placed](Self::placed).
    fn has_arrived(&self, start: usize, len: usize) -> bool {
        let placed = PLACED.get();
        placed.is_some_and(|placed| self.has_arrived_since(placed, start, len))
    }

    /// The same since so many moves were noted.
    fn has_arrived_since(&self, placed: u32, start: usize, len: usize) -> bool {
        self.noted_moves() != placed
            && (self.moved.read().iter())
                .any(|m| m.number.wrapping_sub(placed) as i32 >= 0 && m.replaces(start, len))
    }

    /// Does a work on ranges of the books that it looks the place of up. Moves that are noted from
    /// now on concern it.
    pub(super) fn placed<T>(&self, work: impl FnOnce() -> T) -> T {
        PLACED.set(self.adopts.then(|| self.noted_moves()));
        let result = work();
        PLACED.set(None);
        result
    }

    /// Waits until of each move before this the message has been read. False: of one it has not,
    /// after long.
    pub(crate) fn hear_moves(&self) -> bool {
        let heard = self.wait_for_changes();
        self.wait_for_note();
        heard
    }

    /// Waits until whoever is reading a message has noted what that tells.
    fn wait_for_note(&self) {
        if let Some(noted) = &self.moved.noted {
            noted();
        }
    }

    /// Does to a [placed](Self::placed) range what the kernel does not put off while a move is not
    /// read, and what would be wrong for others that have come there. `None`: something was moved
    /// since the range was placed, or is being moved. What is moved while it is done ends the
    /// program if that has come to the range.
    pub(super) fn unless_moved<T>(
        &self,
        start: usize,
        len: usize,
        work: impl FnOnce() -> T,
    ) -> Option<T> {
        if !self.is_unmoved() {
            return None;
        }
        let done = work();
        if PLACED.get().is_some() && (!self.hear_moves() || self.has_arrived(start, len)) {
            self.tear();
        }
        Some(done)
    }

    /// Sets or clears write-protection in a placed range, as [`unless_moved`](Self::unless_moved)
    /// says. Others that it is set for are served at their next write.
    pub(super) fn protect_placed(
        &self,
        start: usize,
        len: usize,
        mode: ProtectMode,
    ) -> Result<(), PlatformError> {
        let set = || self.program.write_protect(start, len, mode);
        let done = match mode.contains(ProtectMode::WP) {
            true => self.is_unmoved().then(set),
            false => self.unless_moved(start, len, set),
        };
        match done {
            Some(Ok(())) if self.is_unmoved() => Ok(()),
            Some(Err(why)) => Err(PlatformError {
                at: 0,
                why: stop(why),
            }),
            // Or it was done where the pages are no more.
            _ => Err(RETRY),
        }
    }

    /// Drops pages of the program's, locked or not. `EAGAIN`: see
    /// [`unless_moved`](Self::unless_moved).
    ///
    /// # Safety
    /// Nobody counts on the bytes that the books have in the range.
    pub(super) unsafe fn drop_booked(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise; of others' bytes it is told.
        let drop_them = || unsafe { kernel::drop_pages(start, len) };
        let gone = self.unless_moved(start, len, drop_them);
        gone.unwrap_or(Err(Errno(libc::EAGAIN)))
    }

    /// Does a work on ranges of the books again and again, until it returns something: nothing was
    /// moved meanwhile. `None`: no task has read of a move after long, or the program is to be
    /// ended.
    pub(super) fn placed_until<T>(&self, mut work: impl FnMut() -> Option<T>) -> Option<T> {
        /// Times. Each but the first is a move of the program's.
        const MOST: u32 = 1000;
        for _ in 0..MOST {
            if self.adopts && (self.is_torn() || !self.hear_moves()) {
                break;
            }
            let done = self.placed(&mut work);
            if done.is_some() {
                return done;
            }
        }
        None
    }

    /// Marks pages of a [placed](Self::placed) range that were taken out, wherever the program has
    /// moved them since. Others that have come to their place are forgotten there soon.
    pub(super) fn remember_taken(&self, start: usize, len: usize) {
        match PLACED.get() {
            Some(placed) if self.noted_moves() != placed => {
                for page in (start..start + len).step_by(PAGE) {
                    let now = self.place_since(placed, page);
                    if now != page || !self.has_arrived(page, PAGE) {
                        self.remember(now, PAGE);
                    }
                }
            }
            _ => self.remember(start, len),
        }
    }

    /// Where the page is now that was at `at` when so many moves were noted.
    fn place_since(&self, placed: u32, at: usize) -> usize {
        let list = self.moved.read();
        let since = (list.iter()).filter(|m| m.number.wrapping_sub(placed) as i32 >= 0);
        since.fold(at, |at, m| match m.takes(at) {
            true => m.of.to + (at - m.of.from),
            false => at,
        })
    }

    /// Does a work on each page of a [placed](Self::placed) range where it is by now, again and
    /// again until all of it is done: it returns false where something was moved meanwhile. Pages
    /// in whose place others have come are passed over.
    pub(super) fn at_new_places(&self, start: usize, len: usize, work: impl Fn(usize) -> bool) {
        let Some(placed) = PLACED.get() else { return };
        let is_done = self.placed_until(|| {
            let mut pages = (start..start + len).step_by(PAGE);
            let all = pages.all(|page| {
                let now = self.place_since(placed, page);
                now == page && self.has_arrived_since(placed, page, PAGE) || work(now)
            });
            all.then_some(())
        });
        PLACED.set(Some(placed));
        if is_done.is_none() {
            self.tear();
        }
    }

    /// Whether nothing was moved since the range was [placed](Self::placed) that the task works on,
    /// and nothing is being moved: what was seen there was what the books have.
    pub(super) fn is_unmoved(&self) -> bool {
        PLACED
            .get()
            .is_none_or(|placed| !self.is_changing() && self.noted_moves() == placed)
    }

    /// Does a work on a run that must be in one piece, as [`unless_moved`](Self::unless_moved)
    /// says.
    pub(super) fn steadily<T>(
        &self,
        at: PageRun,
        mut work: impl FnMut(usize, usize) -> Result<T, PlatformError>,
    ) -> Result<T, PlatformError> {
        self.placed_until(|| match self.run(at) {
            Ok((start, len)) => self.unless_moved(start, len, || work(start, len)),
            Err(e) => Some(Err(e)),
        })
        .unwrap_or(Err(RETRY))
    }

    /// Makes a call of the kernel's that takes the pages of the first range to the second. The
    /// kernel puts it off while a move is not read, and it is put off here if one was noted since
    /// the range was [placed](Self::placed). One that was read during the call may have been before
    /// it: the program is ended if that came to one of the ranges.
    pub(super) fn unmoved(
        &self,
        [from, to]: [usize; 2],
        len: usize,
        call: impl FnOnce() -> Result<deckle_uffd::Done, Partial>,
    ) -> Result<deckle_uffd::Done, Partial> {
        let Some(placed) = PLACED.get() else {
            return call();
        };
        if self.noted_moves() != placed {
            return Err(Partial {
                done: 0,
                why: Why::Again { changing: true },
            });
        }
        let result = call();
        if result.as_ref().map_or_else(|e| e.done, |done| done.bytes) > 0 {
            self.tear_if_arrived([from, to], len);
        }
        result
    }

    /// After something was done: ends the program if others may have come to one of the ranges.
    pub(super) fn tear_if_arrived(&self, ranges: [usize; 2], len: usize) {
        if ranges.iter().any(|&at| self.has_arrived(at, len)) {
            self.tear();
        }
    }

    /// Keeps in mind that a range is placed now, for what the task does there [later](Self::later).
    pub(super) fn place_first(&self) {
        FIRST.set(self.noted_moves());
    }

    /// Does a work on a range that was placed [first](Self::place_first); `None`: something was
    /// moved since.
    pub(super) fn later<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.placed(|| {
            let is_same = || PLACED.get() == Some(FIRST.get()) && !self.is_changing();
            (!self.adopts || is_same()).then(work)
        })
    }

    /// How many moves have been noted, when all are that have been read.
    fn noted_moves(&self) -> u32 {
        self.wait_for_note();
        self.moves_so_far()
    }

    /// How many moves have been noted; one that is being read may be missing.
    pub(crate) fn moves_so_far(&self) -> u32 {
        self.moved.count.load(Acquire)
    }

    /// Others may have come to a place while its pages were taken or dropped, or of a move the
    /// message has not been read after long.
    pub(super) fn tear(&self) {
        self.moved.torn.store(true, Release);
        // The program is ended by a task that has no lock.
        self.have_read();
    }

    /// Whether that has been.
    pub(crate) fn is_torn(&self) -> bool {
        self.moved.torn.load(Acquire)
    }

    /// Where the page is now that an operation has not found at `at`, if the program has moved it.
    pub(super) fn moved_to(&self, page: usize, at: usize) -> Option<usize> {
        if !self.adopts {
            return None;
        }
        self.wait_for_note();
        let (now, _) = self.place(page, PAGE);
        (now != at).then_some(now)
    }

    /// Does a work on a range of the books where it is now, as far as that goes in one piece. What
    /// is moved away meanwhile is to be tried again.
    pub(super) fn in_place(
        &self,
        (start, len): (usize, usize),
        work: impl FnOnce(usize, usize) -> Result<deckle_mm::platform::Done, PlatformError>,
    ) -> Result<deckle_mm::platform::Done, PlatformError> {
        let (at, n, result) = self.placed(|| match self.place(start, len) {
            (at, 0) => (at, 0, Err(GONE)),
            (at, n) => (at, n, work(at, n)),
        });
        result.map_err(|e| {
            let done = e.at as usize * PAGE;
            let is_moved =
                || self.is_changing() || self.moved_to(start + done, at + done).is_some();
            match self.adopts && e.why == Stop::Gone && done < n && is_moved() {
                true => PlatformError {
                    why: Stop::Retry,
                    ..e
                },
                false => e,
            }
        })
    }
}

#[cfg(test)]
mod tests;
