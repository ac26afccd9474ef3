//! Memory by the system's mappings, and what it is told about them.

use crate::{Errno, Memory, PAGE};
use core::ops::{Deref, Range};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// What the system is told about memory, or asked to do with it. None changes a byte that is
/// looked at by anybody, but for [`Advice::DontNeed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Advice {
    /// The pages are zeros again, and take no memory.
    DontNeed = libc::MADV_DONTNEED,
    /// It will be used soon.
    WillNeed = libc::MADV_WILLNEED,
    /// It will not be used soon.
    Cold = libc::MADV_COLD,
    /// Swaps the pages out.
    PageOut = libc::MADV_PAGEOUT,
    /// Huge pages are welcome.
    HugePage = libc::MADV_HUGEPAGE,
    /// Huge pages are not wanted.
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// Makes huge pages of small ones now.
    Collapse = 25,
    /// Makes all pages be there.
    PopulateWrite = libc::MADV_POPULATE_WRITE,
}

fn map(len: usize) -> Result<NonNull<u8>, Errno> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address of the system's choice.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), len, rights, how, -1, 0) };
    match NonNull::new(at.cast()) {
        Some(base) if at != libc::MAP_FAILED => Ok(base),
        _ => Err(Errno::last()),
    }
}

/// # Safety
/// The range is one that [`map`] gave, or a part of it, and nobody uses it any more.
unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's word. A length of 0 is refused.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

impl Memory {
    /// Maps `len` bytes (not zero), as any program does; the pages come when they are touched.
    /// Errors: ENOMEM: there is none, or the limit on address space is reached.
    pub fn map(len: usize) -> Result<Memory, Errno> {
        // SAFETY: a mapping that is ours alone.
        map(len).map(|base| unsafe { Memory::from_raw(base, len, unmap) })
    }

    /// The same, beginning at a multiple of `align`, which is a power of two above a page.
    /// Errors: as [`Memory::map`].
    pub fn map_aligned(len: usize, align: usize) -> Result<Memory, Errno> {
        let first = Memory::map(len)?;
        if first.as_ptr().addr().is_multiple_of(align) {
            return Ok(first);
        }
        drop(first);
        let whole = len.next_multiple_of(PAGE);
        let start = map(whole + align)?;
        let skip = start.align_offset(align);
        // SAFETY: `skip` is less than `align`, and what is not in the part that is kept is unmapped
        // here, and used by nobody.
        unsafe {
            let base = start.add(skip);
            unmap(start, skip);
            unmap(base.add(whole), align - skip);
            Ok(Memory::from_raw(base, len, unmap))
        }
    }

    /// The words, for threads that write them at the same time.
    ///
    /// # Panics
    /// If it is lent.
    pub fn words(&mut self) -> Words<'_> {
        assert!(!self.is_lent, "memory that is lent is only read");
        Words(self)
    }

    /// Gives advice about `range`, whole pages.
    /// Errors: EINVAL: these are no whole pages of it, or the system has no such advice. EBUSY: it
    /// is lent.
    pub fn advise(&mut self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        match self.is_lent {
            true => Err(Errno(libc::EBUSY)),
            false => self.tell(range, advice),
        }
    }

    fn tell(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        let Range { start, end } = range;
        let is_end = |at: usize| at.is_multiple_of(PAGE) || at == self.len;
        if start > end || end > self.len || !start.is_multiple_of(PAGE) || !is_end(end) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: whole pages that are ours. Who calls this has them borrowed for writing, or as
        // atomics, whose values may become zeros at any time.
        unsafe {
            let at = self.base.add(start).as_ptr().cast();
            Errno::check(libc::madvise(at, end - start, advice as i32))
        }
    }
}

/// The words of a [`Memory`], which it is borrowed for.
pub struct Words<'a>(&'a mut Memory);

impl Words<'_> {
    /// Gives advice about `range` of the memory's bytes, whole pages.
    /// Errors: as [`Memory::advise`].
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        self.0.tell(range, advice)
    }
}

impl Deref for Words<'_> {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: initialized bytes on a page's boundary, which are borrowed for writing as long
        // as this is there, and looked at by these words only.
        unsafe { core::slice::from_raw_parts(self.0.base.as_ptr().cast(), self.0.len / 8) }
    }
}
