//! What the service's own tables take of the memory that it shares with the program.

use crate::heap;
use crate::process::Process;
use crate::sys::PAGE;
use core::sync::atomic::Ordering::Relaxed;
use deckle_group::LineId;
use deckle_mm::Store;
use deckle_store::Ram;
use std::time::Instant;

/// Of a heap below that, in bytes, the pages count that were touched, since a table of all memory
/// that there can be is room for the most part; to look at them takes microseconds.
const SMALL: usize = 16 << 20;
/// Pages of what never changes much, and a child has anew: data and stacks of the image and data of
/// the program's side, measured: 304 KiB at most.
pub const FIXED: u64 = 76;
/// Of these what are stacks, at most: the rest is 224 KiB.
const STACKS: u64 = 20;
/// A look at which pages others have, too, takes one part in so many of the time: it reads 8 bytes
/// for each page of the heap, with all that is stored.
const SHARE: u32 = 50;

/// What such a look has found for the process of a line: pages, and until when that will do.
pub type Seen = Option<(LineId, Instant, u64)>;

impl Process {
    /// Brings up to date what our own metadata is charged: the tables, which are what the heap has
    /// beside the segments of the store, and what never changes much. What a child has of it
    /// together with others, since neither side has written it, it borrows.
    pub fn settle_tables(&self) {
        let (mapped, far) = (heap::mapped_bytes(), heap::FAR);
        let touched = || self.pager.platform().touched(far.start, far.end).ok();
        let (fixed, there) = match (mapped < SMALL).then(touched).flatten() {
            // The stacks lie beside the heap.
            Some(touched) => (FIXED - STACKS, touched.min(mapped + STACKS as usize * PAGE)),
            None => (FIXED, mapped),
        };
        let stored = self.pager.mm().store().ram_bytes();
        let tables = pages((there as u64).saturating_sub(stored));
        let shared = match self.account.is_borrowing() {
            true => self.shared_tables().min(tables),
            false => 0,
        };
        let left = self.left.load(Relaxed);
        self.account.settle_own(fixed + tables + left, shared);
    }

    /// Pages that the tables take at most.
    pub fn most_tables(&self) -> u64 {
        let mapped = heap::mapped_bytes() as u64;
        pages(mapped.saturating_sub(self.pager.mm().store().ram_bytes()))
    }

    fn shared_tables(&self) -> u64 {
        let (line, now) = (self.account.line(), Instant::now());
        let seen = *self.tables_seen.lock();
        if let Some((of, until, pages)) = seen
            && of == line
            && now < until
        {
            return pages;
        }
        let far = heap::FAR;
        let all = self.pager.platform().shared(far.start, far.end);
        let of_store = self.pager.mm().store().ram(Ram::borrowed);
        let found = pages(all.map_or(0, |bytes| bytes as u64).saturating_sub(of_store));
        let until = Instant::now() + now.elapsed() * SHARE;
        *self.tables_seen.lock() = Some((line, until, found));
        found
    }
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64)
}
