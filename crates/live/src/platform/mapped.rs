//! Pages that are read where they are mapped, under write-protection.
//!
//! The copy path takes them out so, and a page that a fork shares is stored so: `UFFDIO_MOVE`
//! refuses it, and a copy takes memory. The mapping goes then; the other processes keep theirs.

use std::os::fd::AsRawFd;

use deckle_mm::Stop;
use deckle_uffd::Errno;

use super::LivePlatform;
use super::kernel::PAGE;

impl LivePlatform {
    /// Reads the program's pages whatever their rights; never waits for a missing page. Returns
    /// whole pages read, in bytes, and why it stopped if short.
    ///
    /// # Safety
    /// The `len` bytes at `dst` are the caller's to write.
    pub(super) unsafe fn read_program(
        &self,
        src: usize,
        dst: *mut u8,
        len: usize,
    ) -> (usize, Stop) {
        let Some(mem) = &self.memory else {
            return (0, Stop::Busy);
        };
        let mut at = 0;
        while at < len {
            let (to, offset) = (dst.wrapping_add(at).cast(), (src + at) as i64);
            // SAFETY: writes within the caller's bytes.
            let got = unsafe { libc::pread64(mem.as_raw_fd(), to, len - at, offset) };
            match got {
                n if n > 0 => at += n as usize,
                -1 if Errno::last() == Errno(libc::EINTR) => {}
                // The page is not there: given back by the program behind our back.
                _ => return (at / PAGE * PAGE, Stop::Gone),
            }
        }
        (len, Stop::Gone)
    }

    /// Reads pages of the program, whatever their rights, as far as they are there; how many.
    pub(super) fn read_shared(&self, start: usize, to: &mut [u8]) -> u32 {
        if !self.is_ours(start, to.len()) {
            return 0;
        }
        // SAFETY: the buffer is borrowed for the call and as long.
        let (bytes, _) = unsafe { self.read_program(start, to.as_mut_ptr(), to.len()) };
        (bytes / PAGE) as u32
    }

    /// Drops pages of the program, as far as they are there, and remembers them; how many.
    ///
    /// # Safety
    /// Their bytes are stored, and no thread can write to them.
    pub(super) unsafe fn drop_shared(&self, start: usize, len: usize) -> u32 {
        if !self.is_ours(start, len) {
            return 0;
        }
        // A page that the program has discarded since it was read holds nothing to bring back.
        let kept = self.kept_from(start, len);
        // SAFETY: the caller's promise; the range is registered, so the next access is a fault.
        if kept == 0 || unsafe { self.drop_booked(start, kept) }.is_err() {
            return 0;
        }
        self.remember_taken(start, kept);
        (kept / PAGE) as u32
    }
}
