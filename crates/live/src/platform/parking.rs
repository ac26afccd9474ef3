//! W, the parking range: frame n's bytes rest at `base + 4096 n` while they are not mapped
//! into the program.
//!
//! One reservation: the first half never becomes huge (frames of small folios), the second
//! half takes whole blocks. The bytes of a slot are never overwritten in place after they have
//! been in the program: a slot is emptied with `MADV_DONTNEED`, which leaves the page to
//! whoever still holds an older reference (P29).

use std::sync::atomic::{AtomicU64, Ordering};

use deckle_mm::platform::FrameSpan;
use deckle_mm::{FrameRun, Pfn, Zones};
use deckle_uffd::{Errno, RegisterMode, Uffd};

use super::kernel::{self, Advice, BLOCK, PAGE, Reservation};
use crate::trace::{Stage, stage};

/// Largest number of frames in one half: frame numbers stay well below 2^32.
const MAX_HALF: usize = 1 << 30;
/// Bytes that frames of the largest order cover; halves are multiples of it.
const LARGEST: usize = PAGE << deckle_mm::MAX_ORDER;

/// The parking range.
#[derive(Debug)]
pub struct Parking {
    range: Reservation,
    half: usize,
    /// One bit for each block of the huge half: set if a page table may be in the way of a
    /// huge mapping.
    tables: Box<[AtomicU64]>,
}

/// Where to reserve it: far from where programs, runtimes and the kernel put things. Not at the
/// same place in each program.
fn far() -> usize {
    const FAR: usize = 40 << 40;
    /// Of the address of something that the kernel has put at random.
    static PLACED: u8 = 0;
    FAR + (((&raw const PLACED).addr() >> 12 & 0x3ff) << 30)
}

/// Advises and registers an empty range of twice `half` bytes.
fn prepare(base: usize, half: usize, uffd: &Uffd) -> Result<(), Errno> {
    let len = 2 * half;
    // SAFETY: no advice here drops bytes, and the mapping is ours and new.
    unsafe {
        kernel::madvise(base, len, Advice::DontFork)?;
        kernel::madvise(base, len, Advice::DontDump)?;
        // A kernel without huge pages refuses both; then nothing can become huge.
        let _ = kernel::madvise(base, half, Advice::NoHuge);
        let _ = kernel::madvise(base + half, half, Advice::Huge);
    }
    uffd.register(base, len, RegisterMode::WP)?;
    Ok(())
}

impl Parking {
    /// Reserves up to `want` bytes and registers them with `uffd` for write-protection only:
    /// that is enough for the range to be a destination of moves, while a stray touch is an
    /// ordinary fault on which nothing can hang.
    ///
    /// # Errors
    /// No room for at least 64 MiB, or the registration was refused.
    pub fn new(want: usize, uffd: &Uffd) -> Result<Parking, Errno> {
        let want = want.min(2 * MAX_HALF * PAGE).next_multiple_of(2 * LARGEST);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let range = Reservation::largest(far(), want, 64 << 20, prot)?;
        let half = range.len() / 2 / LARGEST * LARGEST;
        prepare(range.base(), half, uffd)?;
        let words = (half / BLOCK).div_ceil(64);
        let tables = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Parking {
            range,
            half,
            tables,
        })
    }

    /// Takes the range back in a child of fork, which has not inherited it.
    ///
    /// # Errors
    /// Something else is there.
    pub fn reserve_after_fork(&self) -> Result<(), Errno> {
        self.range.again(libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Makes the range anew after it was taken back in a child of fork.
    ///
    /// # Errors
    /// The registration was refused.
    pub fn after_fork(&self, uffd: &Uffd) -> Result<(), Errno> {
        for word in &self.tables {
            word.store(0, Ordering::Relaxed);
        }
        prepare(self.range.base(), self.half, uffd)
    }

    /// The frame numbers of the two halves.
    pub fn zones(&self) -> Zones {
        let frames = (self.half / PAGE) as u32;
        Zones {
            small: FrameSpan {
                first: Pfn(0),
                frames,
            },
            huge: Some(FrameSpan {
                first: Pfn(frames),
                frames,
            }),
        }
    }

    /// Where the range begins, and its length in bytes.
    pub fn range(&self) -> (usize, usize) {
        (self.range.base(), 2 * self.half)
    }

    /// Where a run of frames rests: address and length in bytes; `None` if there are no such
    /// frames.
    pub fn place(&self, start: Pfn, pages: u32) -> Option<(usize, usize)> {
        let (offset, len) = (start.0 as usize * PAGE, pages as usize * PAGE);
        (offset + len <= 2 * self.half).then(|| (self.range.base() + offset, len))
    }

    fn table_bit(&self, addr: usize) -> Option<(&AtomicU64, u64)> {
        let block = addr.checked_sub(self.range.base() + self.half)? / BLOCK;
        Some((self.tables.get(block / 64)?, 1 << (block % 64)))
    }

    /// Notes that a part of a block is about to come or go: a page table will be left there.
    pub fn note_part(&self, addr: usize, len: usize) {
        if len < BLOCK
            && let Some((word, bit)) = self.table_bit(addr)
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Makes an empty block ready to take a huge mapping: frees its page table if it has one.
    ///
    /// # Safety
    /// `addr` is a block of the range whose frames hold nothing and are the caller's.
    pub unsafe fn clear_block(&self, addr: usize) {
        if let Some((word, bit)) = self.table_bit(addr)
            && word.load(Ordering::Relaxed) & bit != 0
        {
            // SAFETY: nothing rests there.
            if unsafe { kernel::madvise(addr, BLOCK, Advice::DontNeed) }.is_ok() {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// Empties the slots of the frames.
    ///
    /// # Safety
    /// Nobody counts on the bytes of the frames.
    pub unsafe fn release(&self, runs: &[FrameRun]) {
        let _traced = stage(Stage::Free);
        let places = runs.iter().filter_map(|r| self.place(r.start, r.pages));
        let places = places.inspect(|&(addr, len)| self.note_part(addr, len));
        // SAFETY: within the range, bytes not needed.
        if let Err(e) = unsafe { kernel::drop_all(places) } {
            debug_assert!(false, "parking range refused MADV_DONTNEED: {e}");
        }
    }
}
