//! The roads between the program and the parking range.
//!
//! The fast road is `UFFDIO_MOVE`: no copy, atomic, keeps a huge page. It demands readable and
//! writable memory on both sides that is not locked or pinned. Everything else takes the copy
//! road: out by reading through `/proc/self/mem` under write-protection and giving the page
//! back, in by `UFFDIO_COPY`, which fills holes of any rights.

use deckle_mm::{Done, PageRun, PlatformError, Prot, Stop, Vpn};
use deckle_uffd::{Categories, CopyMode, MoveMode, PageEntry, Partial, ProtectMode, WakeMode, Why};

use super::error::{half_done, refused, stop};
use super::kernel::{self, BLOCK, PAGE};
use super::{LivePlatform, RETRY, rights};
use crate::trace::{Stage, stage};

/// What is looked at, taken out and marked at once, so that the moment is short in which a discard
/// goes unnoticed (`remembered.rs`).
const PIECE: usize = 16 * PAGE;

fn done(len: usize) -> Done {
    Done {
        pages: (len / PAGE) as u32,
    }
}

impl LivePlatform {
    /// Whether pages with these rights can take the fast road.
    pub(super) fn can_move(&self, prot: Prot) -> bool {
        self.moves && prot == Prot::RW
    }

    /// Copies bytes into holes of the program and wakes who waits for them.
    pub(super) fn copy_in(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
    ) -> Result<Done, PlatformError> {
        self.copy_as(dst, src, len, CopyMode::empty())
    }

    /// The same, write-protected from the first moment on if `mode` says so.
    pub(super) fn copy_as(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
        mode: CopyMode,
    ) -> Result<Done, PlatformError> {
        let _traced = stage(Stage::Install);
        self.patiently(len, |at, rest| {
            let from = src.wrapping_add(at);
            let to = dst + at;
            // SAFETY: the caller owns the run, so nobody else fills the holes, and the source
            // (a caller's slice, frames at rest, or our zeros) is not written meanwhile.
            let copy = || unsafe { self.program.copy(to, from, rest, mode) };
            self.unmoved([from as usize, to], rest, copy)
        })
        .map(|_| done(len))
        .map_err(half_done)
    }

    /// Copies bytes back to pages of the program that are away: zeros to those that it has
    /// discarded since.
    pub(super) fn copy_back(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
        mode: CopyMode,
    ) -> Result<Done, PlatformError> {
        for piece in (0..len).step_by(PIECE) {
            let bytes = PIECE.min(len - piece);
            let Some(gone) = self.unmarked(dst + piece, bytes) else {
                return shift(Err(RETRY), piece, len);
            };
            let (mut at, pages) = (0, (bytes / PAGE) as u32);
            while at < pages {
                let zero = gone.get(at);
                let n = (at..pages).take_while(|&k| gone.get(k) == zero).count();
                let offset = piece + at as usize * PAGE;
                let from = match zero {
                    true => self.zeros.base() as *const u8,
                    false => src.wrapping_add(offset),
                };
                let part = self.copy_as(dst + offset, from, n * PAGE, mode);
                shift(part, offset, len)?;
                at += n as u32;
            }
        }
        Ok(done(len))
    }

    /// Copies frames at rest into holes of the program, then empties the frames.
    pub(super) fn copy_in_parked(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        mode: CopyMode,
    ) -> Result<Done, PlatformError> {
        let result = self.copy_as(dst, src as *const u8, len, mode);
        let pages = match &result {
            Ok(done) => done.pages,
            Err(e) => e.at,
        };
        if pages > 0 {
            self.parking.note_part(src, pages as usize * PAGE);
            // SAFETY: these bytes are in the program now; the frames are the caller's.
            let gone = unsafe { kernel::drop_pages(src, pages as usize * PAGE) };
            debug_assert!(gone.is_ok());
        }
        result
    }

    /// Brings frames at rest into the program.
    pub(super) fn bring_in(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        let _traced = stage(Stage::Install);
        self.forget_at_rest(dst, src, len)?;
        if !self.can_move(prot) {
            return self.copy_in_parked(dst, src, len, CopyMode::empty());
        }
        self.parking.note_part(src, len);
        if len == BLOCK && dst.is_multiple_of(BLOCK) && src.is_multiple_of(BLOCK) {
            self.clear_program_block(dst);
        } else if !self.unmark(dst, len) {
            return Err(RETRY);
        }
        let result = match self.moved(dst, src, len) {
            Ok(_) => Ok(done(len)),
            Err(Partial {
                done: at,
                why: Why::Invalid,
            }) => {
                // Locked behind our back, or rights other than said: the copy road takes any.
                let none = CopyMode::empty();
                let rest = self.copy_in_parked(dst + at, src + at, len - at, none);
                shift(rest, at, len)
            }
            Err(partial) => Err(half_done(partial)),
        };
        if let Err(e) = &result {
            self.remember_holes(dst, e.at, len);
        }
        result
    }

    /// Moves pages, and believes what is there rather than what the call admits to.
    ///
    /// Linux 6.17 and 6.18 move in steps of up to a page table. A step that meets contention (a
    /// folio's lock is taken, an entry ages meanwhile) is repeated, but its error is still set
    /// when the repetition has moved its pages: so these are not counted, and the same step
    /// comes once more, finds the destination occupied and ends the call. As many pages as one
    /// step moves are at `dst` then, and nobody was told. A page that nobody knows of would be
    /// cleared away with what the program has written to it.
    pub(super) fn moved(
        &self,
        dst: usize,
        src: usize,
        len: usize,
    ) -> Result<deckle_uffd::Done, Partial> {
        let (mut at, mut hidden) = (0, false);
        let result = loop {
            let result = self.patiently(len - at, |more, rest| {
                let (dst, src) = (dst + at + more, src + at + more);
                // SAFETY: callers of the platform own the run and its frames: nobody else
                // fills the holes at dst, and an access to the program's side finds a
                // registered hole and waits.
                let call = || unsafe { self.program.move_pages(dst, src, rest, MoveMode::empty()) };
                self.unmoved([src, dst], rest, call)
            });
            let Err(partial) = result else {
                break Ok(deckle_uffd::Done { bytes: len });
            };
            at += partial.done;
            let more = self.moved_from(dst + at, src + at, len - at);
            if more > 0 {
                self.tear_if_arrived([src + at, dst + at], more);
            }
            at += more;
            hidden |= more > 0;
            match more {
                _ if at == len => break Ok(deckle_uffd::Done { bytes: len }),
                0 => {
                    break Err(Partial {
                        done: at,
                        ..partial
                    });
                }
                // Its own trace stopped it; the rest may go on.
                _ => {}
            }
        };
        if hidden {
            // Who waits for a page that the call did not admit to was not woken.
            self.wake(Vpn::of_addr(dst as u64), (at / PAGE) as u64);
        }
        result
    }

    /// Bytes that are at `dst` and no longer at `src`, without a gap: moved. The system may have
    /// swapped a page out before or after, which moves like any other; where it was protected it
    /// looks like a marker, but no marker comes to `dst` while the caller has the run.
    fn moved_from(&self, dst: usize, src: usize, len: usize) -> usize {
        let entry = |at: usize| {
            let mut entry = [PageEntry::default()];
            self.pagemap.entries(at, &mut entry).map(|()| entry[0])
        };
        let moved = |at: &usize| {
            let there = entry(dst + at).is_ok_and(|e| !e.is_hole());
            there && entry(src + at).is_ok_and(PageEntry::is_hole)
        };
        (0..len).step_by(PAGE).take_while(moved).count() * PAGE
    }

    /// Frees the page table of an empty block of the program, which the fault that is being
    /// served has just left there: in front of it a huge page would be split (P17).
    pub(super) fn clear_program_block(&self, dst: usize) {
        if !self.is_ours(dst, BLOCK) {
            return;
        }
        // SAFETY: the caller holds the block and found no translation in it, so no byte is
        // lost. A refusal costs a split, nothing else.
        let _ = unsafe { self.drop_booked(dst, BLOCK) };
    }

    /// Takes pages out of the program to their frames.
    ///
    /// What may be executed, too, is moved as well: a copy would lack what a device writes later to
    /// a page that it has pinned, which the kernel does not move. It moves between mappings of the
    /// same rights alone, so the frames have these for the moment.
    pub(super) fn take_out(
        &self,
        src: usize,
        dst: usize,
        len: usize,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        let _traced = stage(Stage::Unmap);
        if self.can_move(prot) {
            return self.move_out(src, dst, len, prot);
        }
        // SAFETY: frames of the caller's, where nothing rests; rights change no byte.
        let lend = |rights| unsafe { kernel::mprotect(dst, len, rights) };
        let movable = self.moves && prot.read && prot.write;
        if !movable || lend(rights(prot)).is_err() {
            return self.copy_out_from(0, src, dst, len, prot);
        }
        let result = self.move_out(src, dst, len, prot);
        let back = lend(rights(Prot::RW));
        debug_assert!(back.is_ok(), "parking range: {back:?}");
        result
    }

    /// The same by moves, where both sides have the same rights.
    fn move_out(
        &self,
        src: usize,
        dst: usize,
        len: usize,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        if len == BLOCK && dst.is_multiple_of(BLOCK) {
            // SAFETY: the frames of the run hold nothing before (pre-condition of unmap).
            unsafe { self.parking.clear_block(dst) };
        } else {
            self.parking.note_part(dst, len);
        }
        let (mut at, block) = (0, len == BLOCK && self.is_whole(src));
        let (mut cured, mut parted) = (None, None);
        loop {
            let mut rest = if block { len - at } else { PIECE.min(len - at) };
            if !self.is_ours(src + at, rest) {
                rest = PAGE;
                if !self.is_ours(src + at, rest) {
                    return Err(PlatformError {
                        at: (at / PAGE) as u32,
                        why: Stop::Gone,
                    });
                }
            }
            let step = self.moved(dst + at, src + at, rest);
            let bytes = step.map_or_else(|partial| partial.done, |done| done.bytes);
            if bytes > 0 {
                self.remember_taken(src + at, bytes);
            }
            at += bytes;
            match step {
                Ok(_) if at == len => return Ok(done(len)),
                Ok(_) => {}
                Err(partial) => {
                    match partial.why {
                        // Shared since a fork, perhaps by nobody any more: a write gets the
                        // page back. Tried once for each page that is in the way.
                        Why::Busy if cured != Some(at) && self.unshare_from(src + at, len - at) => {
                            cured = Some(at);
                        }
                        // The kernel asks the first page of a huge page whether any page of it is
                        // shared, also one that the program has replaced; a page alone speaks for
                        // itself.
                        Why::Busy if parted != Some(at) && kernel::part(src + at) => {
                            parted = Some(at)
                        }
                        Why::Invalid => {
                            return self.copy_out_from(at, src, dst, len, prot);
                        }
                        // A marker: the program has discarded what was to be protected.
                        Why::Fault => {
                            return Err(PlatformError {
                                at: (at / PAGE) as u32,
                                why: Stop::Gone,
                            });
                        }
                        why => {
                            return Err(PlatformError {
                                at: (at / PAGE) as u32,
                                why: stop(why),
                            });
                        }
                    }
                }
            }
        }
    }

    /// Takes out by copying what of a run begins `at` bytes from its start.
    fn copy_out_from(
        &self,
        at: usize,
        src: usize,
        dst: usize,
        len: usize,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        for at in (at..len).step_by(PIECE) {
            let piece = self.copy_out(src + at, dst + at, PIECE.min(len - at), prot);
            if let Err(e) = shift(piece, at, len) {
                let from = e.at as usize * PAGE;
                // SAFETY: what was copied beyond the pages done is still in the program.
                let _ = unsafe { kernel::drop_pages(dst + from, len - from) };
                return Err(e);
            }
        }
        Ok(done(len))
    }

    /// Takes pages out by copying: for rights that refuse to be moved, or a kernel without
    /// moves. After an error there may be bytes in frames of pages that are not done.
    fn copy_out(
        &self,
        src: usize,
        dst: usize,
        len: usize,
        prot: Prot,
    ) -> Result<Done, PlatformError> {
        if !self.is_ours(src, len) {
            return Err(PlatformError {
                at: 0,
                why: Stop::Gone,
            });
        }
        self.parking.note_part(dst, 0);
        if prot.write {
            // From here on a writer waits; whoever serves it waits for the caller's block.
            self.protect_placed(src, len, ProtectMode::WP)?;
        }
        // SAFETY: the frames at dst are the caller's, hold nothing, and are as long.
        let (read, error) = unsafe { self.read_program(src, dst as *mut u8, len) };
        // What the program has discarded since it was read is not there any more.
        let copied = self.kept_from(src, read);
        let mut result = Ok(done(len));
        if copied > 0
            // SAFETY: the bytes are at rest in the frames now, nobody could write meanwhile,
            // and the range is registered: the next access is a fault, not a zero.
            && let Err(errno) = unsafe { self.drop_booked(src, copied) }
        {
            result = Err(refused(0, errno));
        } else {
            if copied > 0 {
                self.remember_taken(src, copied);
            }
            if copied < len {
                result = Err(PlatformError {
                    at: (copied / PAGE) as u32,
                    why: error,
                });
            }
        }
        if prot.write {
            let kept = match &result {
                Ok(_) => len,
                Err(e) => e.at as usize * PAGE,
            };
            if kept < len {
                let _ = self.protect_placed(src + kept, len - kept, ProtectMode::empty());
            }
            let _ = self.program.wake(src, len);
        }
        result
    }

    /// Whether a range lies in one registered mapping. The program may have put another in its
    /// place by a call that nobody saw, whose bytes are nobody's to take.
    pub(super) fn is_ours(&self, start: usize, len: usize) -> bool {
        self.registered(start, len) != Some(false)
    }

    /// The same; `None`: the program moves memory at this moment, or of a move the message is not
    /// read yet.
    pub fn registered(&self, start: usize, len: usize) -> Option<bool> {
        // SAFETY: refused for private memory, which is looked for first; nothing is mapped.
        let asked = unsafe { self.program.continue_range(start, len, WakeMode::DONTWAKE) };
        match asked.map_err(|e| e.why) {
            Err(Why::Again { .. }) => None,
            asked => Some(asked != Err(Why::NoEntry)),
        }
    }

    /// Passes over the page at which a run has stopped that is taken out, if the program has given
    /// its bytes back by a call that nobody saw: a frame that holds nothing is what it leaves.
    pub(super) fn pass_over(&self, run: PageRun, e: PlatformError) -> Result<Done, PlatformError> {
        let page = run.start.add(u64::from(e.at)).addr() as usize;
        let (at, there) = self.place(page, PAGE);
        let has_gone = || {
            let mut entry = [PageEntry::default()];
            let read = self.pagemap.entries(at, &mut entry);
            there == 0 || read.is_ok() && entry[0].is_hole() || !self.is_ours(at, PAGE)
        };
        if !self.adopts || e.why != Stop::Gone || e.at >= run.pages || !has_gone() {
            return Err(e);
        }
        // Unless it has only moved away: the kernel counts a move from before anybody can see that
        // the page is not there until it is read, and who reads it notes it before the next one.
        let is_moved = || self.is_changing() || self.moved_to(page, at).is_some();
        match there > 0 && is_moved() {
            true => Err(PlatformError {
                why: Stop::Retry,
                ..e
            }),
            false => Ok(Done { pages: e.at + 1 }),
        }
    }

    /// Whether a block of the program is one huge page.
    pub(super) fn is_whole(&self, start: usize) -> bool {
        let (all, none) = (Categories::PRESENT | Categories::HUGE, Categories::empty());
        self.pagemap.count(start, start + BLOCK, all, none) == Ok(BLOCK)
    }

    /// Bytes from `start` on that were not discarded since they were read, without a gap. The
    /// system may have swapped them out since, protected or not.
    pub(super) fn kept_from(&self, start: usize, len: usize) -> usize {
        let mut entries = [PageEntry::default(); BLOCK / PAGE];
        let entries = &mut entries[..(len / PAGE).min(BLOCK / PAGE)];
        match self.pagemap.entries(start, entries) {
            Ok(()) => entries.iter().take_while(|e| !e.is_hole()).count() * PAGE,
            Err(_) => 0,
        }
    }
}

/// The result for a run whose first `at` bytes were done before.
fn shift(rest: Result<Done, PlatformError>, at: usize, len: usize) -> Result<Done, PlatformError> {
    match rest {
        Ok(_) => Ok(done(len)),
        Err(e) => Err(PlatformError {
            at: e.at + (at / PAGE) as u32,
            why: e.why,
        }),
    }
}
