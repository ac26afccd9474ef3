//! A small heap with C's interface: dlmalloc over some source of memory, behind one lock.

use super::head;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use deckle_door::Lock;
use dlmalloc::{Allocator, Dlmalloc};

/// The heap over the source `A`.
pub struct Heap<A> {
    lock: Lock<Dlmalloc<A>>,
    /// Thread pointer of who has the lock; 0: nobody.
    owner: AtomicUsize,
}

/// What tells the calling thread from all others, for the price of a load.
fn me() -> usize {
    let pointer: usize;
    // SAFETY: the ABI has the thread pointer's own address there.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) pointer,
            options(nostack, readonly, preserves_flags));
    }
    pointer
}

impl<A: Allocator> Heap<A> {
    /// Empty.
    pub const fn new(source: A) -> Heap<A> {
        Heap {
            lock: Lock::new(Dlmalloc::new_with_allocator(source)),
            owner: AtomicUsize::new(0),
        }
    }

    /// Takes the lock, to be held over a fork so that the child finds the heap whole. False if
    /// the calling thread has it already: a signal handler that interrupted it forks, and both
    /// sides return to where it was interrupted.
    pub fn acquire_for_fork(&self) -> bool {
        if self.owner.load(Relaxed) == me() {
            return false;
        }
        self.lock.acquire();
        true
    }

    /// Gives back what [`acquire_for_fork`](Self::acquire_for_fork) took.
    pub fn release(&self) {
        self.lock.release();
    }

    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc<A>) -> T) -> T {
        let mut heap = self.lock.lock();
        self.owner.store(me(), Relaxed);
        let result = work(&mut heap);
        self.owner.store(0, Relaxed);
        result
    }

    /// A block of `size` bytes, aligned to `align` (a power of two); null when there is no
    /// memory.
    pub fn alloc(&self, size: usize, align: usize) -> *mut u8 {
        let Some(total) = head::total(size, align) else {
            return core::ptr::null_mut();
        };
        // SAFETY: dlmalloc's natural alignment is 16, and the block has the size that the head
        // wants. A block that is not zero bytes long is the caller's alone.
        unsafe { head::place(self.with(|heap| heap.c_malloc(total)), size, align) }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// A live block of [`alloc`](Self::alloc) of this heap, not used any more.
    pub unsafe fn free(&self, ptr: *mut u8) {
        // SAFETY: the caller's promise.
        self.with(|heap| unsafe { heap.c_free(head::base(ptr)) });
    }
}
