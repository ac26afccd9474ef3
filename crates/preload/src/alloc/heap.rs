//! A small heap with C's interface: dlmalloc over some source of memory, behind one lock.
//!
//! The lock knows its owner: a signal handler that has interrupted it may fork, and both sides
//! then return to where it was interrupted, with the lock held as it was.

use super::head;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicUsize};
use deckle_sys::futex;
use dlmalloc::{Allocator, Dlmalloc};

/// The heap over the source `A`.
pub struct Heap<A> {
    /// Thread pointer of who has the lock; 0: nobody.
    owner: AtomicUsize,
    waiters: AtomicU32,
    /// Changes when the lock is given back and somebody waits.
    bell: AtomicU32,
    heap: UnsafeCell<Dlmalloc<A>>,
}

// SAFETY: the owner alone uses the heap.
unsafe impl<A: Send> Sync for Heap<A> {}

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
            owner: AtomicUsize::new(0),
            waiters: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            heap: UnsafeCell::new(Dlmalloc::new_with_allocator(source)),
        }
    }

    fn acquire(&self, me: usize) {
        let quick = |_| self.owner.compare_exchange(0, me, SeqCst, Relaxed).is_ok();
        while !(0..64).any(quick) {
            self.waiters.fetch_add(1, SeqCst);
            let bell = self.bell.load(SeqCst);
            // Whoever gives it back after this look sees that somebody waits.
            if self.owner.load(SeqCst) != 0 {
                futex::wait(&self.bell, bell, None);
            }
            self.waiters.fetch_sub(1, SeqCst);
        }
    }

    /// Takes the lock, to be held over a fork so that the child finds the heap whole. False if
    /// the calling thread has it already.
    pub fn acquire_for_fork(&self) -> bool {
        let me = me();
        if self.owner.load(SeqCst) == me {
            return false;
        }
        self.acquire(me);
        true
    }

    /// Gives back what [`acquire_for_fork`](Self::acquire_for_fork) took: in a child, where
    /// nobody waits, too.
    pub fn release(&self) {
        self.owner.store(0, SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            self.bell.fetch_add(1, SeqCst);
            futex::wake(&self.bell, 1);
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc<A>) -> T) -> T {
        self.acquire(me());
        // SAFETY: the lock is ours.
        let result = work(unsafe { &mut *self.heap.get() });
        self.release();
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
