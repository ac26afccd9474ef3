//! Memory for segments.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// Where segments come from.
///
/// # Safety
/// `map` must return memory of that many bytes, aligned to a page, readable and writable and
/// used by nobody else until it is given to `unmap`.
pub unsafe trait Segments: Send + Sync {
    /// Maps `bytes` (a multiple of 4096) of memory with any content; `None` when there is
    /// none. Called with a lock of the store held: it must not use the store.
    fn map(&self, bytes: usize) -> Option<NonNull<u8>>;
    /// Gives a segment back.
    ///
    /// # Safety
    /// `base` came from `map(bytes)` of this object, was not given back before, and nobody
    /// uses the memory any more.
    unsafe fn unmap(&self, base: NonNull<u8>, bytes: usize);
    /// Told when pages are encoded and are about to be kept, by whose task. Called with no lock.
    fn encoded(&self) {}
    /// Told of each segment to which nothing will be appended any more: of its bytes those of freed
    /// objects become zeros, and no others change, until `unmap` or, where it was emptied, until
    /// it is used anew.
    fn sealed(&self, _base: NonNull<u8>, _bytes: usize) {}
}

/// Segments from the global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the global allocator hands out memory that is exclusive until freed.
unsafe impl Segments for Heap {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, 4096)
            .ok()
            .filter(|l| l.size() > 0)?;
        // SAFETY: the size is above zero, checked above.
        NonNull::new(unsafe { alloc(layout) })
    }
    unsafe fn unmap(&self, base: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, 4096) {
            // SAFETY: the caller says `base` came from `map(bytes)`, which used this layout.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}
