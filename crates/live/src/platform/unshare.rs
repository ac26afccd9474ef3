//! Pages that the kernel refuses to move as they are: shared since a fork, or swapped out by it.

use std::os::fd::AsRawFd;

use deckle_uffd::{Categories, PageEntry, ProtectMode};

use super::LivePlatform;
use super::kernel::{self, Advice, BLOCK, PAGE};

impl LivePlatform {
    /// Breaks copy-on-write sharing over the run, or of its first page at least: of many the system
    /// may just be swapping one out.
    pub(super) fn unshare_from(&self, start: usize, len: usize) -> bool {
        self.unshare(start, len) || len > PAGE && self.unshare(start, PAGE)
    }

    /// Breaks copy-on-write sharing over the run; false if that was not possible.
    ///
    /// A write to a hole of the program would wait for the fault to be served, perhaps by the
    /// caller: so it is done only where every page is seen to be present, and protection by
    /// userfaultfd is lifted first (waiters stay asleep; the pages are about to leave).
    fn unshare(&self, start: usize, len: usize) -> bool {
        self.swap_in(start, len);
        let none = Categories::empty();
        let present = self
            .pagemap
            .count(start, start + len, Categories::PRESENT, none);
        if present != Ok(len) {
            return false;
        }
        let lifted = self.protect_placed(start, len, ProtectMode::DONTWAKE);
        // A page that has come there meanwhile may be evicted, and its fault would not be served.
        // SAFETY: populating changes no byte.
        lifted.is_ok()
            && self.is_unmoved()
            && unsafe { kernel::madvise(start, len, Advice::PopulateWrite) }.is_ok()
    }

    /// Has the system bring back what it has swapped out of a run. A read by `/proc/self/mem` does
    /// that, and waits for nobody: of what is away it is an error.
    fn swap_in(&self, start: usize, len: usize) {
        let mut entries = [PageEntry::default(); BLOCK / PAGE];
        let entries = &mut entries[..(len / PAGE).min(BLOCK / PAGE)];
        let Some(memory) = &self.memory else { return };
        if self.pagemap.entries(start, entries).is_err() {
            return;
        }
        for (page, _) in (start..)
            .step_by(PAGE)
            .zip(entries)
            .filter(|(_, e)| !e.is_present())
        {
            let mut byte = 0_u8;
            let to = (&raw mut byte).cast();
            // SAFETY: writes at most one byte, to a local.
            unsafe { libc::pread64(memory.as_raw_fd(), to, 1, page as i64) };
        }
    }
}
