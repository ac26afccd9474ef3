//! Moves of managed memory by calls of the program's that nobody saw, until the books follow.
//!
//! The kernel tells of such a move when it is done. Until that is read each operation on the
//! memory is put off; from then on, until the books know the new place, what is done at the old
//! one is done at the new one. So it makes no difference for an operation of several steps that
//! the program moves the pages between two of them.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use deckle_mm::PlatformError;
use deckle_mm::platform::Stop;

use super::LivePlatform;
use super::kernel::PAGE;

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

#[derive(Default)]
pub(super) struct Moves {
    any: AtomicBool,
    /// In their order.
    list: RwLock<VecDeque<Move>>,
    noted: Option<Noted>,
}

impl Moves {
    pub(super) fn new(noted: Option<Noted>) -> Moves {
        Moves {
            noted,
            ..Moves::default()
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, VecDeque<Move>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, VecDeque<Move>> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LivePlatform {
    /// In a child of fork: its own.
    pub(crate) fn listen(&mut self, noted: Noted) {
        self.moved = Moves::new(Some(noted));
    }

    /// A move has been read: before anybody reads the next message.
    pub(crate) fn note_move(&self, moved: Move) {
        let mut list = self.moved.write();
        list.push_back(moved);
        self.moved.any.store(true, Release);
    }

    /// The first of those that the books do not follow yet.
    pub(crate) fn first_move(&self) -> Option<Move> {
        self.moved.read().front().copied()
    }

    /// The books follow the first.
    pub(crate) fn end_move(&self) {
        let mut list = self.moved.write();
        list.pop_front();
        self.moved.any.store(!list.is_empty(), Release);
    }

    /// Whether the books do not know yet what is at a page.
    pub(crate) fn is_arriving(&self, page: usize) -> bool {
        let is_there = |m: &Move| (m.to..m.to + m.len).contains(&page);
        self.moved.any.load(Acquire) && self.moved.read().iter().any(is_there)
    }

    /// Where a range of the books is now, and how many bytes of it lie there without a gap.
    pub(super) fn place(&self, start: usize, len: usize) -> (usize, usize) {
        let (mut at, mut n) = (start, len);
        if self.moved.any.load(Acquire) {
            for m in self.moved.read().iter() {
                if (m.from..m.from + m.len).contains(&at) {
                    n = n.min(m.from + m.len - at);
                    at = m.to + (at - m.from);
                } else if (at..at + n).contains(&m.from) {
                    n = m.from - at;
                }
            }
        }
        (at, n)
    }

    /// Where the page is now that an operation has not found at `at`, if the program has moved it.
    pub(super) fn moved_to(&self, page: usize, at: usize) -> Option<usize> {
        if !self.adopts {
            return None;
        }
        if let Some(noted) = &self.moved.noted {
            noted();
        }
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
        let (at, n) = self.place(start, len);
        work(at, n).map_err(|e| {
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
