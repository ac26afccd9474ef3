//! Mappings of the program's that this platform did not make: served from now on, with the pages
//! that are there already; or no more, since the program has put something else in their place.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

use deckle_mm::platform::Made;
use deckle_uffd::{Categories, Errno, PagemapScan, WakeMode, Why};

use super::kernel::{self, BLOCK, PAGE};
use super::{LivePlatform, without_zeros};

impl LivePlatform {
    /// Serves a private anonymous mapping of the program's from now on; what is there, in runs that
    /// lie in one block each: start, bytes, and what of the pages. `around` tells what is mapped
    /// there and beside it; `None`: the mapping is another one by now.
    ///
    /// # Errors
    /// The range is no such mapping any more (`EBUSY`, `EINVAL`), or the kernel's refusal: it is
    /// the kernel's alone then, as before.
    pub(crate) fn adopt<T: PartialEq>(
        &self,
        start: usize,
        len: usize,
        around: impl Fn() -> Option<T>,
    ) -> Result<Vec<(usize, usize, Made)>, Errno> {
        let before = around().ok_or(Errno(libc::EBUSY))?;
        let is_whole = || around().as_ref() == Some(&before) && self.is_private(start, len);
        self.managed.adopt(start, len, &self.program, is_whole)?;
        let found = self.parts_there(start, len);
        if found.is_err() {
            // SAFETY: nothing of the range was taken out.
            let _ = unsafe { self.managed.leave(start, len, &self.program) };
        }
        found
    }

    fn parts_there(&self, start: usize, len: usize) -> Result<Vec<(usize, usize, Made)>, Errno> {
        let mut parts: Vec<(usize, usize)> = Vec::new();
        let there = Categories::PRESENT | Categories::SWAPPED;
        self.pagemap
            .each(PagemapScan::any(start, start + len, there), |found| {
                let mut at = found.start();
                while at < found.end() {
                    let to = found.end().min((at / BLOCK + 1) * BLOCK);
                    match parts.last_mut() {
                        Some((from, end)) if *from / BLOCK == at / BLOCK => *end = to,
                        _ => parts.push((at, to)),
                    }
                    at = to;
                }
            })?;
        let made = |(from, to): (usize, usize)| Ok((from, to - from, self.made(from, to - from)?));
        parts.into_iter().map(made).collect()
    }

    /// The program has moved a managed range, none of which is at the new place: that is managed
    /// from now on, and the old one no more once `follow` is done.
    pub(crate) fn move_along<R>(
        &self,
        (from, to): (usize, usize),
        len: usize,
        follow: impl FnOnce() -> R,
    ) -> R {
        self.managed.note(to, len);
        let done = follow();
        self.managed.remove(from, len);
        done
    }

    /// A new mapping is managed, whatever was there before; `open`: nothing of it is registered,
    /// though it may have been for what was there.
    pub(crate) fn stay(&self, start: usize, len: usize, open: bool) {
        if open {
            // SAFETY: nothing of the new mapping was taken out.
            let _ = unsafe { self.program.unregister(start, len) };
        }
        self.managed.note(start, len);
    }

    /// Says that the program has put something else in the place of a managed range, or nothing: no
    /// operation on the range changes what is there until [`lost_is_done`](Self::lost_is_done).
    pub(crate) fn lost(&self, start: usize, len: usize) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = start..start + len;
    }

    /// The manager has nothing there any more: the range is the kernel's alone.
    pub(crate) fn lost_is_done(&self) {
        let lost = core::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        self.managed.remove(lost.start, lost.len());
    }

    /// Whether all of a range is lost.
    pub(super) fn is_lost(&self, start: usize, len: usize) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.start <= start && start + len <= lost.end
    }

    /// Reads words of the program's memory, as a debugger would: what is not there reads as zeros,
    /// or waits for nobody. False: they cannot be read.
    pub fn read_words(&self, at: usize, to: &mut [u64]) -> bool {
        // SAFETY: the bytes of that slice, of which any are a value.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to))
        };
        let read = |file: &File| file.read_exact_at(bytes, at as u64).is_ok();
        self.memory.as_ref().is_some_and(read)
    }

    /// Whether other processes have a part of a range, too, since a fork, zero pages left out; also
    /// if that cannot be told.
    pub fn shares(&self, start: usize, len: usize) -> bool {
        let query = without_zeros(start, start + len, Categories::PRESENT);
        self.shared_of(query).map_or(true, |bytes| bytes > 0)
    }

    /// Whether a move of managed memory is under way, or done and not read yet.
    pub(crate) fn is_changing(&self) -> bool {
        // SAFETY: not in what is mapped: nothing is.
        let asked = unsafe { self.program.continue_range(0, PAGE, WakeMode::DONTWAKE) };
        matches!(asked, Err(e) if e.why == Why::Again { changing: true })
    }

    /// Gives the kernel what is registered and not managed: all of it is there, since nobody takes
    /// anything out. Who waits for it goes on.
    pub fn let_go(&self, start: usize, len: usize) {
        // SAFETY: the caller has found it foreign, so no byte of it is elsewhere.
        let _ = unsafe { self.managed.free(start, len, &self.program) };
    }

    /// Whether what the program does unseen is followed: else moves end at the kernel, and pages
    /// that it has given back stay in the books.
    pub(crate) fn adopts(&self) -> bool {
        self.adopts
    }

    /// Whether faults of the page are served: it lies in a mapping that is registered.
    pub fn serves(&self, page: usize) -> bool {
        /// Times that it is asked while the program moves memory.
        const MOST: u32 = 1000;
        let ask = |_| {
            let asked = self.registered(page, PAGE);
            if asked.is_none() {
                kernel::yield_now();
            }
            asked
        };
        (0..MOST).find_map(ask).unwrap_or(true)
    }
}
