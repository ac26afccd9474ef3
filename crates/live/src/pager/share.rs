//! Page-out of a long range by several tasks: the caller and the background loop take blocks
//! of it in turn.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use deckle_mm::{BLOCK_PAGES, Charge, MapError, Store, Vpn};
use deckle_sys::futex;

use super::Pager;
use super::machine::PAGEOUT;

/// Blocks from which on it pays to wake somebody.
const WORTH_SHARING: u64 = 4;

/// The range that is being paged out. One at a time; who finds it taken works alone.
#[derive(Default)]
pub(super) struct Share {
    taken: Mutex<()>,
    /// First page of the range and one past its last.
    start: AtomicU64,
    end: AtomicU64,
    /// First page of the next block to be taken.
    next: AtomicU64,
    /// Helpers at work.
    helpers: AtomicU32,
}

impl Share {
    /// The next part, if any is left.
    fn take(&self) -> Option<(Vpn, u64)> {
        let at = self
            .next
            .fetch_add(u64::from(BLOCK_PAGES), Ordering::AcqRel);
        let end = self.end.load(Ordering::Acquire);
        let first = at.max(self.start.load(Ordering::Acquire));
        let last = (at + u64::from(BLOCK_PAGES)).min(end);
        (first < last).then(|| (Vpn(first), last - first))
    }
}

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Pages a range out (MADV_PAGEOUT), with the background loop's help if it is long.
    ///
    /// # Errors
    /// [`MapError::Hole`] if a part is not mapped (the rest is paged out).
    pub fn page_out(&self, start: Vpn, pages: u64) -> Result<(), MapError> {
        let share = &self.share;
        let taken = share.taken.try_lock();
        if pages < WORTH_SHARING * u64::from(BLOCK_PAGES) || taken.is_err() {
            self.mm.page_out(self.space(), start, pages)?;
        } else {
            share.start.store(start.0, Ordering::Release);
            share.next.store(start.block().start().0, Ordering::Release);
            // With the end set there is something to take.
            share.end.store(start.0 + pages, Ordering::Release);
            self.mm.machine().work.raise(PAGEOUT);
            self.take_parts();
            share.end.store(0, Ordering::Release);
            loop {
                match share.helpers.load(Ordering::Acquire) {
                    0 => break,
                    n => futex::wait(&share.helpers, n, None),
                };
            }
        }
        drop(taken);
        self.mm.covered(self.space(), start, pages)
    }

    /// Takes parts of the shared range until none is left.
    fn take_parts(&self) {
        while let Some((start, pages)) = self.share.take() {
            // The range was checked by its owner; an unmapped part is nothing to do.
            let _ = self.mm.page_out(self.space(), start, pages);
        }
    }

    /// The background loop's part.
    pub(super) fn help_page_out(&self) {
        self.share.helpers.fetch_add(1, Ordering::AcqRel);
        self.take_parts();
        self.share.helpers.fetch_sub(1, Ordering::AcqRel);
        futex::wake(&self.share.helpers, u32::MAX);
    }
}
