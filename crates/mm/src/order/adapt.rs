//! The adaptive order: what the faults of a VMA have shown (R48).
//!
//! Faults that go on where others ended are a *stream*. The longer it is, the larger the next
//! folio, so that what may be too much at its end is a part of what it has used. A fault that
//! stands alone begins a stream, with one page, unless the streams of the VMA have come to
//! something: then with as much as they have earned. So memory that is hardly touched, or
//! here and there, costs what base pages cost, also beside a stream in the same VMA, and one
//! that is filled in order has huge pages from its fifth block on.
//!
//! `docs/fault-order.md` has the measurements behind the constants.
//!
//! The state is kept by the first page of the VMA, in a small table that may forget: a VMA that
//! merges, moves or meets another in its place of the table starts anew. A mapping made again
//! at the same address starts with what the one before had shown.

use super::{Beside, Window};
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, Vpn, order_pages};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// VMAs that are remembered.
const PLACES: usize = 64;
/// Streams of one VMA that are remembered: threads, or objects of several sizes, that fill
/// parts of it side by side.
const STREAMS: usize = 8;
/// Pages that a stream must have before a fault adds a folio of the order: four times its pages,
/// twice for the smallest.
const NEED: [u64; BLOCK_ORDER as usize + 1] = [0, 8, 8, 32, 64, 128, 256, 512, 1024, 2048];
/// So many times as many where other faults come in between: the end of such a stream is no
/// farther away, but comes later.
const CROWDED: u64 = 4;
/// Faults in a row that make a stream the only one.
const ALONE: u32 = 4;
/// What the order of a fault that stands alone gains when a stream has come to a whole block.
/// Such a fault halves it, and gets it back if it turns out to have begun a stream.
const RAISE: u8 = 3;
/// Bits of a stream's length in its word: above them its first page, below them a flag.
const LEN_BITS: u32 = 23;
const MAX_LEN: u64 = (1 << LEN_BITS) - 1;

/// Pages `[start, start + len)` that faults in sequence have covered; of length 0: none.
#[derive(Clone, Copy)]
struct Stream {
    start: u64,
    len: u64,
    /// Whether it is more than one fault.
    went_on: bool,
}

impl Stream {
    fn of(word: u64) -> Stream {
        Stream {
            start: word >> (LEN_BITS + 1),
            len: word >> 1 & MAX_LEN,
            went_on: word & 1 == 1,
        }
    }

    fn word(self) -> u64 {
        self.start << (LEN_BITS + 1) | self.len << 1 | u64::from(self.went_on)
    }

    /// Whether a fault on `page` goes on at either end.
    fn meets(self, page: Vpn) -> bool {
        self.len > 0 && (page.0 == self.start + self.len || page.0 + 1 == self.start)
    }

    /// Whether it has been on `page` before: the page was given back.
    fn had(self, page: Vpn) -> bool {
        page.0 >= self.start && page.0 < self.start + self.len
    }

    /// With the window added that a fault on `page` got.
    fn with(self, page: Vpn, w: Window) -> Stream {
        let (first, end) = (w.start.0, w.start.0 + u64::from(order_pages(w.order)));
        let down = page.0 < self.start;
        let start = if down { first } else { self.start };
        let end = if down { self.start + self.len } else { end };
        let len = end.saturating_sub(start).min(MAX_LEN);
        let start = if down { start } else { end - len };
        let went_on = true;
        Stream {
            start,
            len,
            went_on,
        }
    }
}

struct Place {
    /// First page of the VMA, plus one; 0: nobody's.
    vma: AtomicU64,
    /// Order of a fault that stands alone.
    first: AtomicU32,
    /// Where the search for a stream to be forgotten goes on, and which of them have been gone
    /// on with since it last came by (one bit each).
    turn: AtomicU32,
    used: AtomicU32,
    /// The stream of the last fault in the low byte; above it how many faults in a row it had.
    row: AtomicU32,
    streams: [AtomicU64; STREAMS],
}

impl Place {
    fn find(&self, is: impl Fn(Stream) -> bool) -> Option<(usize, Stream)> {
        let all = self.streams.iter().enumerate();
        all.map(|(i, s)| (i, Stream::of(s.load(Relaxed))))
            .find(|(_, s)| is(*s))
    }

    /// Whether all the last faults were of a stream.
    fn is_alone(&self, i: usize) -> bool {
        let row = self.row.load(Relaxed);
        row & 0xff == i as u32 && row >> 8 >= ALONE
    }

    /// Counts a fault of a stream.
    fn count(&self, i: usize) {
        let row = self.row.load(Relaxed);
        let in_row = if row & 0xff == i as u32 { row >> 8 } else { 0 };
        let in_row = (in_row + 1).min(ALONE);
        self.row.store(in_row << 8 | i as u32, Relaxed);
    }

    /// The stream to be forgotten for a new one: the next that was not gone on with (clock).
    fn oldest(&self) -> usize {
        let mut i = 0;
        for _ in 0..=STREAMS {
            i = self.turn.fetch_add(1, Relaxed) as usize % STREAMS;
            if self.used.fetch_and(!(1 << i), Relaxed) & 1 << i == 0 {
                break;
            }
        }
        i
    }
}

/// What the VMAs of a space have shown. Relaxed words without a lock: two faults that race may
/// count as one, which changes a guess and nothing else.
pub struct Adapt([Place; PLACES]);

impl Default for Adapt {
    fn default() -> Adapt {
        Adapt(core::array::from_fn(|_| Place {
            vma: AtomicU64::new(0),
            first: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            used: AtomicU32::new(0),
            row: AtomicU32::new(0),
            streams: [const { AtomicU64::new(0) }; STREAMS],
        }))
    }
}

/// The largest order for a stream of so many pages.
fn order_of(len: u64, alone: bool) -> u8 {
    let len = if alone { len } else { len / CROWDED };
    let fits = |order: &u8| len >= NEED[usize::from(*order)];
    (0..=BLOCK_ORDER).rev().find(fits).unwrap_or(0)
}

impl Adapt {
    fn place(&self, vma: Vpn) -> &Place {
        // Fibonacci hashing (Knuth): starts of VMAs share their low bits.
        let hash = vma.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.0[hash as usize % PLACES]
    }

    /// The largest order for a fault on `page` of the VMA that starts at `vma`, with so many
    /// pages beside it that were touched before.
    pub fn cap(&self, vma: Vpn, page: Vpn, beside: Beside) -> u8 {
        let place = self.place(vma);
        if place.vma.load(Relaxed) != vma.0 + 1 {
            return order_of(beside.most(), false);
        }
        match place.find(|s| s.meets(page)) {
            Some((i, s)) => order_of(s.len.max(beside.most()), place.is_alone(i)),
            None if beside.most() > 0 => order_of(beside.most(), false),
            None => place.first.load(Relaxed) as u8,
        }
    }

    /// A write fault on `page` was served with `w`; `beside` as for [`cap`](Self::cap).
    pub fn note(&self, vma: Vpn, page: Vpn, w: Window, beside: Beside) {
        let place = self.place(vma);
        if place.vma.swap(vma.0 + 1, Relaxed) != vma.0 + 1 {
            place.first.store(0, Relaxed);
            for stream in &place.streams {
                stream.store(0, Relaxed);
            }
        }
        let first = place.first.load(Relaxed) as u8;
        let (first, i, stream) = match place.find(|s| s.meets(page)) {
            Some((i, old)) => {
                place.used.fetch_or(1 << i, Relaxed);
                let (new, block) = (old.with(page, w), u64::from(BLOCK_PAGES));
                let first = match old.len < block && new.len >= block {
                    true => first + RAISE,
                    // What it was given when it began was right.
                    false if !old.went_on => first.max(old.len.ilog2() as u8),
                    false => first,
                };
                (first, i, new)
            }
            None => {
                let again = place.find(|s| s.had(page)).map(|(i, _)| i);
                let (below, above) = (u64::from(beside.below), u64::from(beside.above));
                let begun = Stream {
                    start: w.start.0.saturating_sub(below),
                    len: below + u64::from(order_pages(w.order)) + above,
                    // Beside what is forgotten it does not stand alone.
                    went_on: beside.most() > 0,
                };
                // Given back if it goes on.
                let first = if begun.went_on { first } else { first / 2 };
                (first, again.unwrap_or_else(|| place.oldest()), begun)
            }
        };
        place
            .first
            .store(u32::from(first.min(BLOCK_ORDER)), Relaxed);
        place.streams[i].store(stream.word(), Relaxed);
        place.count(i);
    }
}
