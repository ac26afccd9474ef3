//! Small pages become a huge one, and it falls apart again.
//!
//! Collapse by refill: the kernel refuses to collapse the program's memory, which is advised
//! against huge pages for ever, so the pages of a block are copied to a huge page in the parking
//! range, which then is moved into the program whole. A huge page of the nursery is one already;
//! else a touch of the block in the parking range makes one.

use deckle_mm::platform::{Platform, PlatformError, runs_of};
use deckle_mm::{FrameRun, PageRun, Pfn};

use super::LiveMemory;
use super::kernel::{self, BLOCK, PAGE};

impl LiveMemory {
    /// See [`Platform::split`]. The kernel gives nothing of a huge page back before all of it is
    /// gone or its own memory is short.
    pub(super) fn take_apart(&self, page: PageRun, frame: Pfn) {
        let places = [self.run(page), self.frames(frame, 1)];
        for (addr, len) in places.into_iter().flatten() {
            self.parking.note_part(addr, len);
            let _ = kernel::part(addr);
        }
    }

    /// See [`Platform::gather`].
    pub(super) fn gathered(&self, dst: Pfn, from: &[Option<Pfn>]) -> Result<(), PlatformError> {
        let whole = FrameRun::new(dst, from.len() as u32);
        let (to, len) = self.frames(whole.start, whole.pages)?;
        if len == BLOCK && to.is_multiple_of(BLOCK) {
            // SAFETY: the frames hold nothing (pre-condition).
            unsafe { self.parking.clear_block(to) };
            if let Some(nursling) = self.nursery.take()
                && self.moved(to, nursling.addr(), BLOCK).is_ok()
            {
                nursling.gone();
            }
        }
        // What is there stays, what is not becomes zeros.
        self.fill_zero(whole)?;
        for (at, n) in runs_of(from) {
            let Some(src) = from[at as usize] else {
                continue;
            };
            let (src, bytes) = self.frames(src, n)?;
            let to = to + at as usize * PAGE;
            // SAFETY: both inside the parking range, different frames of the caller's; the
            // destination has pages of its own that have not been in the program.
            unsafe { core::ptr::copy_nonoverlapping(src as *const u8, to as *mut u8, bytes) };
        }
        Ok(())
    }
}
