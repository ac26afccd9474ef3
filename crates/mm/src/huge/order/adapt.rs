//! The adaptive order: what the faults of a VMA have shown (R48).
//!
//! A fault that goes on where another ended raises the cap of its VMA, one that stands alone
//! lowers it. A VMA starts with single pages, so one that is hardly touched costs what base
//! pages cost, and one that is filled in order has huge pages before its first block is full.
//!
//! The state is kept by the first page of the VMA, in a small table that may forget: a VMA that
//! merges, moves or meets another in its place of the table starts anew. A mapping made again
//! at the same address starts with what the one before had shown.

use super::Window;
use crate::units::{BLOCK_ORDER, Vpn, order_pages};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// VMAs that are remembered.
const PLACES: usize = 64;
/// Places in one VMA where faults may go on: threads that fill parts of it side by side.
const STREAMS: usize = 4;
/// Orders that a fault in sequence adds: an aligned sequence can use no more, since a window
/// that starts at its end is at most as large as everything before it.
const RAISE: u8 = 2;
/// Faults in a row that stand alone before the cap is halved. One does not count: it is how a
/// new stream begins.
const ALONE: u32 = 2;

struct Place {
    /// First page of the VMA, plus one; 0: nobody's.
    vma: AtomicU64,
    /// Cap in the low byte, faults alone in a row above.
    state: AtomicU32,
    /// Next stream to be forgotten.
    turn: AtomicU32,
    /// Last windows: first page and order (`start << 4 | order`).
    streams: [AtomicU64; STREAMS],
}

/// What the VMAs of a space have shown. Relaxed words without a lock: two faults that race may
/// count as one, which changes a guess and nothing else.
pub struct Adapt([Place; PLACES]);

impl Default for Adapt {
    fn default() -> Adapt {
        Adapt(core::array::from_fn(|_| Place {
            vma: AtomicU64::new(0),
            state: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            streams: [const { AtomicU64::new(u64::MAX) }; STREAMS],
        }))
    }
}

impl Adapt {
    fn place(&self, vma: Vpn) -> &Place {
        // Fibonacci hashing (Knuth): starts of VMAs share their low bits.
        let hash = vma.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.0[hash as usize % PLACES]
    }

    /// The largest order for the next fault of the VMA that starts at `vma`.
    pub fn cap(&self, vma: Vpn) -> u8 {
        let place = self.place(vma);
        match place.vma.load(Relaxed) == vma.0 + 1 {
            true => place.state.load(Relaxed) as u8,
            false => 0,
        }
    }

    /// A write fault on `page` was served with `w`; `near` says that a page beside it was
    /// touched before.
    pub fn note(&self, vma: Vpn, page: Vpn, w: Window, near: bool) {
        let place = self.place(vma);
        if place.vma.swap(vma.0 + 1, Relaxed) != vma.0 + 1 {
            place.state.store(0, Relaxed);
            for stream in &place.streams {
                stream.store(u64::MAX, Relaxed);
            }
        }
        let follows = |word: u64| {
            let (start, order) = (word >> 4, (word & 15) as u8);
            word != u64::MAX
                && (start + u64::from(order_pages(order.min(BLOCK_ORDER))) == page.0
                    || start == page.0 + 1)
        };
        let stream = place.streams.iter().find(|s| follows(s.load(Relaxed)));
        let contiguous = near || stream.is_some();
        let stream = stream.unwrap_or_else(|| {
            let turn = place.turn.fetch_add(1, Relaxed) as usize;
            &place.streams[turn % STREAMS]
        });
        stream.store(w.start.0 << 4 | u64::from(w.order), Relaxed);
        let state = place.state.load(Relaxed);
        let (cap, alone) = (state as u8, state >> 8);
        let state = match contiguous {
            true => u32::from((cap + RAISE).min(BLOCK_ORDER)),
            false if alone + 1 < ALONE => u32::from(cap) | (alone + 1) << 8,
            false => u32::from(cap / 2),
        };
        place.state.store(state, Relaxed);
    }
}
