//! Holes that are left to the kernel, and what it has made of them.

use deckle_mm::platform::Made;
use deckle_mm::{PageMask, PlatformError};
use deckle_uffd::{Categories, Errno, PagemapScan, ProtectMode, WakeMode, Why};

use super::kernel::{self, Advice, PAGE};
use super::managed::register;
use super::{GONE, LivePlatform, refused};

/// Linux' default of `vm.max_map_count`.
const MAPPINGS: u32 = 65530;
/// One run of open pages for so many mappings: each may take two of them.
const SHARE: u32 = 8;

/// Runs of open pages that there may be, where the kernel allows so many mappings.
pub(super) fn most(mappings: Option<u32>) -> u32 {
    mappings.unwrap_or(MAPPINGS) / SHARE
}

impl LivePlatform {
    /// Ends the registration of holes: from here on the kernel fills them.
    pub(super) fn leave_open(&self, start: usize, len: usize) -> Result<(), PlatformError> {
        // SAFETY: holes, says the caller: of none a byte is anywhere.
        unsafe { self.program.unregister(start, len) }.map_err(|errno| refused(0, errno))
    }

    /// Registers them again. `Gone` if they cannot be: the program has put something else in their
    /// place, or in that of some of them.
    fn claim(&self, start: usize, len: usize) -> Result<(), PlatformError> {
        let refusal = match register(&self.program, start, len) {
            Ok(_) if self.is_private(start, len) => return Ok(()),
            Ok(_) | Err(Errno(libc::EINVAL | libc::EBUSY)) => GONE,
            Err(errno) => refused(0, errno),
        };
        // The kernel may have come to a part of it.
        let _ = self.leave_open(start, len);
        Err(refusal)
    }

    /// Whether a registered range is one private mapping. What is shared can be registered as
    /// well, but its bytes are not this process's alone.
    pub(super) fn is_private(&self, start: usize, len: usize) -> bool {
        // SAFETY: refused for private memory; of shared memory it maps what is there, as the
        // program's next access would.
        let asked = unsafe { self.program.continue_range(start, len, WakeMode::DONTWAKE) };
        match asked {
            Err(e) if e.why == Why::Invalid => true,
            // The address space is changing; else a part of what is shared was mapped.
            Err(e) => matches!(e.why, Why::Again { .. }) && e.done == 0,
            Ok(_) => false,
        }
    }

    /// Registers again what may be discarded, and discards it whatever comes of that.
    pub(super) fn take_empty(&self, start: usize, len: usize) -> Result<(), PlatformError> {
        if self.is_lost(start, len) {
            return Ok(());
        }
        if self.is_going(start, len) {
            // It goes with its mapping, for which nobody waits.
            return Ok(());
        }
        let claimed = self.claim(start, len);
        // SAFETY: the program gives the bytes up. Refused where it has unmapped a part by itself.
        let _ = unsafe { kernel::drop_pages(start, len) };
        claimed
    }

    /// Registers them again; what is there. `Gone` as in [`claim`](Self::claim).
    pub(super) fn take_over(&self, start: usize, len: usize) -> Result<Made, PlatformError> {
        self.claim(start, len)?;
        self.made(start, len).map_err(|errno| {
            let _ = self.leave_open(start, len);
            refused(0, errno)
        })
    }

    /// What is there of a range that is registered since a moment ago, in one block.
    pub(super) fn made(&self, start: usize, len: usize) -> Result<Made, Errno> {
        let mut made = self.there(start, len)?;
        if made.zeros != PageMask::EMPTY {
            self.keep_zeros(start, len, &mut made)?;
        }
        Ok(made)
    }

    /// What the program does not need is the kernel's to take, or to leave.
    pub(super) fn free_lazily(&self, start: usize, len: usize) {
        // SAFETY: the program gives the bytes up. A refusal leaves them, which is as good.
        let _ = unsafe { kernel::madvise(start, len, Advice::Free) };
    }

    /// Pages of a range that are there, and which of them are the zero page.
    fn there(&self, start: usize, len: usize) -> Result<Made, Errno> {
        let all = Categories::PRESENT | Categories::SWAPPED;
        let mut query = PagemapScan::any(start, start + len, all);
        query.returned = all | Categories::PFNZERO;
        let mut made = Made::default();
        self.pagemap.each(query, |region| {
            let found = match region.categories().contains(Categories::PFNZERO) {
                true => &mut made.zeros,
                false => &mut made.pages,
            };
            for page in (region.start()..region.end()).step_by(PAGE) {
                found.set(((page - start) / PAGE) as u32);
            }
        })?;
        Ok(made)
    }

    /// Protects the zero pages, so that a write to one is heard. What was written since is a page
    /// like the others.
    fn keep_zeros(&self, start: usize, len: usize, made: &mut Made) -> Result<(), Errno> {
        let pages = (len / PAGE) as u32;
        let zeros = made.zeros;
        for (k, n) in zeros.runs(pages) {
            let (at, len) = (start + k as usize * PAGE, n as usize * PAGE);
            if self.set_protection(at, len, ProtectMode::WP).is_err() {
                return Err(Errno(libc::EAGAIN));
            }
        }
        let now = self.there(start, len)?;
        let written = zeros.without(&now.zeros);
        for (k, n) in written.runs(pages) {
            let (at, len) = (start + k as usize * PAGE, n as usize * PAGE);
            // It can only have become ours to write, or gone.
            let _ = self.program.write_protect(at, len, ProtectMode::empty());
        }
        // Only what was protected is known to be one still.
        made.zeros = zeros.without(&written);
        made.pages = now.pages;
        Ok(())
    }
}
