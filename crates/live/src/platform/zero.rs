//! Zeros: runs of the shared zero page, write-protected so that the first write is delivered, and
//! blocks that are one huge page.
//!
//! Without the protection the kernel would fill the page by itself on a write, nobody would
//! hear of it and any limit could be passed. `ZEROPAGE` cannot install protected pages, so the
//! protection comes second, and a write may slip in between. It is not lost: the wake comes
//! last, and a look at the page map finds the page.

use std::sync::atomic::Ordering::{Acquire, Release};

use deckle_mm::{Done, PlatformError, Stop};
use deckle_uffd::{Categories, PagemapScan, ProtectMode, Region, WakeMode, Why};

use super::LivePlatform;
use super::error::{half_done, refused, stop};
use super::kernel::{BLOCK, PAGE};
use crate::trace::{Stage, stage};

/// Times a block is cleared again because a fault has left a page table in it meanwhile.
const TABLE_RETRIES: u32 = 64;

impl LivePlatform {
    /// Maps the zero page over the holes of the run.
    ///
    /// `Exists` at page p: p holds bytes that were written while it was a zero page (a page of
    /// its own that nobody has charged), or that were there without the core's knowledge. The
    /// page keeps its bytes and is write-protected. Pages after it are as before, except that
    /// others of the same kind may follow: a call for the rest finds them.
    pub(super) fn zero_in(&self, start: usize, len: usize) -> Result<Done, PlatformError> {
        let _traced = stage(Stage::Install);
        let mut at = 0;
        let mut trouble = None;
        while at < len {
            let filled = self.patiently(len - at, |more, rest| {
                let to = start + at + more;
                // SAFETY: the holes are the caller's and hold zeros in the core's books.
                let fill = || unsafe { self.program.zeropage(to, rest, WakeMode::DONTWAKE) };
                self.unmoved([to, to], rest, fill)
            });
            let (filled, why) = match filled {
                Ok(done) => (done.bytes, None),
                Err(partial) => (partial.done, Some(partial.why)),
            };
            if filled > 0
                && let Err(why) = self.set_protection(start + at, filled, ProtectMode::WP)
            {
                // Unprotected zero pages are there and cannot be taken back without risking a
                // write that has just hit one: nothing to go on with, unless they have gone.
                let mut pages = (start + at..start + at + filled).step_by(PAGE);
                let protect = |page| self.set_protection(page, PAGE, ProtectMode::WP);
                let has_gone = why == Why::NoEntry
                    && pages.all(|page| matches!(protect(page), Ok(()) | Err(Why::NoEntry)));
                let why = match has_gone {
                    true => Stop::Gone,
                    false => Stop::Refused(libc::EAGAIN),
                };
                trouble = Some((at, why));
                break;
            }
            at += filled;
            match why {
                None => {}
                // Something is there, unless it was but a marker.
                Some(Why::Exists) if self.unmark_from(start + at, len - at) > 0 => {}
                Some(Why::Exists) => at += PAGE,
                Some(why) => {
                    trouble = Some((at, stop(why)));
                    break;
                }
            }
        }
        let seen = trouble.map_or(len, |(at, _)| at);
        match self.written_zero(start, seen) {
            Ok(None) => {}
            Ok(Some(page)) => {
                self.drop_zeros(start + page + PAGE, start + len);
                trouble = Some((page, Stop::Exists));
            }
            Err(errno) => {
                // What cannot be checked must not stay.
                self.drop_zeros(start, start + len);
                let _ = self.program.wake(start, len);
                return Err(refused(0, errno));
            }
        }
        let _ = self.program.wake(start, len);
        match trouble {
            None => Ok(Done {
                pages: (len / PAGE) as u32,
            }),
            Some((at, why)) => Err(PlatformError {
                at: (at / PAGE) as u32,
                why,
            }),
        }
    }

    /// Offset of the first page that is there and protected but not the zero page: one that was
    /// written before the protection came. The system may have swapped it out since.
    fn written_zero(&self, start: usize, len: usize) -> Result<Option<usize>, deckle_uffd::Errno> {
        if len == 0 {
            return Ok(None);
        }
        let there = Categories::PRESENT | Categories::SWAPPED;
        let mut query = PagemapScan::any(start, start + len, there);
        query.inverted = Categories::PFNZERO | Categories::WRITTEN;
        query.required = query.inverted;
        query.max_pages = 1;
        let mut out = [Region::default(); 1];
        let scanned = self.pagemap.scan(&query, &mut out)?;
        Ok((scanned.regions > 0).then(|| out[0].start() - start))
    }

    /// After the program has moved pages of a run while zero pages were mapped there: drops those,
    /// at their new places, that hold zeros still. One that was written before it was protected
    /// stays: a [stray](Self::strays) page.
    pub(super) fn take_zeros_back(&self, start: usize, len: usize) {
        self.at_new_places(start, len, |page| {
            let _ = self.set_protection(page, PAGE, ProtectMode::WP);
            self.drop_zeros(page, page + PAGE);
            if self.touched(page, page + PAGE) != Ok(0) {
                self.strays.store(true, Release);
            }
            let _ = self.program.wake(page, PAGE);
            self.is_unmoved()
        });
    }

    /// Where pages of a range are present that the books may not have, as the program has moved
    /// them while they were made and written to them since. Empty where that has never been.
    pub(crate) fn strays(&self, start: usize, len: usize) -> Vec<usize> {
        let mut all = Vec::new();
        if self.strays.load(Acquire) {
            let query = PagemapScan::any(start, start + len, Categories::PRESENT);
            let each = |found: &Region| all.extend((found.start()..found.end()).step_by(PAGE));
            let _ = self.pagemap.each(query, each);
        }
        all
    }

    /// Drops the protected zero pages between two addresses, nothing else.
    fn drop_zeros(&self, from: usize, end: usize) {
        let mut query = PagemapScan::any(from, end, Categories::PFNZERO);
        query.inverted = Categories::WRITTEN;
        query.required = Categories::PFNZERO | Categories::WRITTEN;
        query.any_of = Categories::empty();
        let _ = self.pagemap.each(query, |region| {
            // SAFETY: zero pages that nobody can write: no byte is lost.
            let _ = unsafe { self.drop_booked(region.start(), region.bytes()) };
        });
    }

    /// A block of zeros, as one huge page where the system has one.
    pub(super) fn map_zero_block(&self, dst: usize) -> Result<Done, PlatformError> {
        let _traced = stage(Stage::Install);
        self.clear_program_block(dst);
        let mut at = 0;
        if let Some(nursling) = self.nursery.take() {
            let src = nursling.addr();
            let mut tries = 0;
            let moved = loop {
                // The block is a hole of the caller's; the nursling holds zeros that nobody
                // else knows of.
                let moved = self.moved(dst, src, BLOCK);
                // Another thread's fault on the block has left a page table again, between
                // the clearing and the move: nothing is there but the table.
                match moved {
                    Err(e) if e.why == Why::Exists && e.done == 0 && tries < TABLE_RETRIES => {
                        tries += 1;
                        self.clear_program_block(dst);
                    }
                    moved => break moved,
                }
            };
            match moved {
                Ok(_) => {
                    nursling.gone();
                    return Ok(Done {
                        pages: (BLOCK / PAGE) as u32,
                    });
                }
                // Small pages only, or refused: the rest is copied.
                Err(e)
                    if matches!(e.why, Why::NoEntry | Why::Invalid | Why::Busy | Why::Exists) =>
                {
                    at = e.done
                }
                Err(e) => return Err(half_done(e)),
            }
        }
        let zeros = self.zeros.base() as *const u8;
        self.copy_in(dst + at, zeros, BLOCK - at)
            .map(|_| Done {
                pages: (BLOCK / PAGE) as u32,
            })
            .map_err(|e| PlatformError {
                at: e.at + (at / PAGE) as u32,
                ..e
            })
    }
}
