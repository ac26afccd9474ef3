//! Anonymous memory of this process, each piece with one owner.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Bytes, zero at first, on a page's boundary. Given back when dropped.
pub struct Memory {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
    free: unsafe fn(NonNull<u8>, usize),
    /// Somebody reads it by a [`Lent`].
    pub(crate) is_lent: bool,
}

// SAFETY: bytes, which one owner has.
unsafe impl Send for Memory {}
// SAFETY: who has but a reference only reads them.
unsafe impl Sync for Memory {}

/// That of a block of [`Memory::heap`].
fn layout(len: usize) -> Option<Layout> {
    let layout = Layout::from_size_align(len, crate::PAGE).ok()?;
    (len > 0 && len.is_multiple_of(crate::PAGE)).then_some(layout)
}

impl Memory {
    /// Takes `len` bytes, whole pages, from the global allocator; `None` if it has none.
    pub fn heap(len: usize) -> Option<Memory> {
        /// # Safety
        /// A block of [`Memory::heap`], which nobody uses any more.
        unsafe fn free(base: NonNull<u8>, len: usize) {
            if let Some(layout) = layout(len) {
                // SAFETY: the caller's word, and this layout was the block's.
                unsafe { dealloc(base.as_ptr(), layout) }
            }
        }
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout(len)?) })?;
        // SAFETY: whole pages of zeros that are ours alone.
        Some(unsafe { Memory::from_raw(base, len, free) })
    }

    /// What the caller has made.
    ///
    /// # Safety
    /// The bytes are initialized, private and anonymous, begin at a page's boundary, and are, with
    /// the rest of their last page, nobody else's until `free` is called with them.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        free: unsafe fn(NonNull<u8>, usize),
    ) -> Memory {
        Memory {
            base,
            len,
            free,
            is_lent: false,
        }
    }

    /// Lets somebody read it for a time that nobody knows, while its owner only reads it, too;
    /// `None` where that is so already. What never comes back stays lent, and is never given back.
    pub fn lend(&mut self) -> Option<Lent> {
        let (base, len) = (self.base, self.len);
        let first = !core::mem::replace(&mut self.is_lent, true);
        first.then_some(Lent { base, len })
    }

    /// It is its owner's alone again; true unless that was lent by another piece.
    pub fn take_back(&mut self, lent: Lent) -> bool {
        // There is never more than one of a piece, and none of another that is there still has
        // its address.
        let ours = lent.base == self.base;
        self.is_lent &= !ours;
        ours
    }

    /// The bytes, to write; `None` while they are lent.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: that many bytes, which are initialized, ours, and borrowed with `self`.
        let bytes = || unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) };
        (!self.is_lent).then(bytes)
    }

    /// Writes one byte just here, where a caller wants to time it.
    ///
    /// # Panics
    /// If `at` is outside, or it is lent.
    pub fn touch(&mut self, at: usize, byte: u8) {
        // SAFETY: a byte that is borrowed for writing.
        unsafe { core::ptr::from_mut(&mut self[at]).write_volatile(byte) }
    }
}

impl Deref for Memory {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: that many initialized bytes, which are written by who has `&mut self` only.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Memory {
    /// # Panics
    /// If it is lent.
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
            .expect("memory that is lent is only read: take it back first")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.is_lent {
            // SAFETY: what it was made of, once, and nobody has a reference any more.
            unsafe { (self.free)(self.base, self.len) }
        }
    }
}

/// The bytes of a [`Memory`] that is lent.
pub struct Lent {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: bytes that nobody writes, and that stay, until it is taken back.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: that many initialized bytes; they are neither written nor given back before
        // `take_back`, which needs `self` as a value.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}
