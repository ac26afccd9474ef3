//! A small heap with C's interface: dlmalloc over some source of memory, behind one lock.

use super::head;
use crate::lock::{Guard, Lock};
use dlmalloc::{Allocator, Dlmalloc};

/// The heap over the source `A`.
pub struct Heap<A>(Lock<Dlmalloc<A>>);

impl<A: Allocator> Heap<A> {
    /// Empty.
    pub const fn new(source: A) -> Heap<A> {
        Heap(Lock::new(Dlmalloc::new_with_allocator(source)))
    }

    /// The heap itself, locked.
    pub fn lock(&self) -> Guard<'_, Dlmalloc<A>> {
        self.0.lock()
    }

    /// Takes the lock, to be held over a fork so that the child finds the heap whole.
    pub fn acquire(&self) {
        self.0.acquire();
    }

    /// See [`acquire`](Self::acquire).
    pub fn release(&self) {
        self.0.release();
    }

    /// A block of `size` bytes, aligned to `align` (a power of two); null when there is no
    /// memory.
    pub fn alloc(&self, size: usize, align: usize) -> *mut u8 {
        let Some(total) = head::total(size, align) else {
            return core::ptr::null_mut();
        };
        // SAFETY: dlmalloc's natural alignment is 16, and the block has the size that the head
        // wants. A block that is not zero bytes long is the caller's alone.
        unsafe { head::place(self.lock().c_malloc(total), size, align) }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// A live block of [`alloc`](Self::alloc) of this heap, not used any more.
    pub unsafe fn free(&self, ptr: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.lock().c_free(head::base(ptr)) }
    }
}
