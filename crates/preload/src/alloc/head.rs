//! The word in front of a block of the small heaps: what C's interface needs and dlmalloc's
//! Rust port does not tell.

/// In front of each block.
#[repr(C, align(16))]
struct Head {
    /// Bytes that the caller may use.
    size: usize,
    /// Bytes from the start of the heap's block to the caller's.
    offset: usize,
}

const HEAD: usize = size_of::<Head>();

/// Bytes that the heap's block needs for `size` bytes aligned to `align`.
pub fn total(size: usize, align: usize) -> Option<usize> {
    let extra = if align > HEAD { align } else { 0 };
    size.checked_add(HEAD + extra)
        .filter(|n| *n < isize::MAX as usize)
}

/// Where the caller's block is in the heap's block `base`; null for null.
///
/// # Safety
/// `base` is aligned to 16 and has [`total`] bytes.
pub unsafe fn place(base: *mut u8, size: usize, align: usize) -> *mut u8 {
    if base.is_null() {
        return base;
    }
    let at = (base as usize + HEAD).next_multiple_of(align.max(HEAD));
    let offset = at - base as usize;
    // SAFETY: between the block's start and the caller's part, which is aligned to 16; `total`
    // has room for both.
    unsafe { (at as *mut Head).sub(1).write(Head { size, offset }) };
    at as *mut u8
}

/// Bytes of a block that the caller may use.
///
/// # Safety
/// A live block of [`place`].
pub unsafe fn usable(ptr: *mut u8) -> usize {
    // SAFETY: the head is in front of every block.
    unsafe { (*ptr.cast::<Head>().sub(1)).size }
}

/// The heap's block of a caller's block.
///
/// # Safety
/// A live block of [`place`].
pub unsafe fn base(ptr: *mut u8) -> *mut u8 {
    // SAFETY: the head is in front of every block, and the offset leads to its start.
    unsafe { ptr.sub((*ptr.cast::<Head>().sub(1)).offset) }
}
