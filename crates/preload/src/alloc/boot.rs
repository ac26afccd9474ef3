//! The first megabyte: blocks of the time before the program's own allocator is found, which are
//! the loader's and those of constructors that run before ours.
//!
//! A plain heap in the library's own .bss, which costs no system call and only the pages that are
//! touched; it is not managed (it is part of what the summary calls unmanaged). Blocks that are
//! here stay here until they are freed.

use super::heap::Heap;
use crate::sys::PAGE;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes of the heap.
pub const BYTES: usize = 1 << 20;

#[repr(align(4096))]
struct Room(UnsafeCell<[u8; BYTES]>);
// SAFETY: only its address is used, by the heap below, under its lock.
unsafe impl Sync for Room {}
static ROOM: Room = Room(UnsafeCell::new([0; BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);
/// Bytes kept for what is done when the heap is full: the look-up of the program's allocator, and
/// the start of the service.
const RESERVE: usize = 128 << 10;
static LIMIT: AtomicUsize = AtomicUsize::new(BYTES - RESERVE);

/// Lets the heap use its last bytes.
pub fn open_reserve() {
    LIMIT.store(BYTES, Relaxed);
}

/// Hands out the room from its start; takes nothing back.
pub struct Bump;

// SAFETY: parts of one static range, each handed out once.
unsafe impl dlmalloc::Allocator for Bump {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let used = USED.load(Relaxed);
        match size.checked_next_multiple_of(PAGE) {
            Some(size) if size <= LIMIT.load(Relaxed) - used => {
                USED.store(used + size, Relaxed);
                ((ROOM.0.get() as usize + used) as *mut u8, size, 0)
            }
            _ => (core::ptr::null_mut(), 0, 0),
        }
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        PAGE
    }
}

/// The heap in the room.
pub static HEAP: Heap<Bump> = Heap::new(Bump);

/// Whether the block is in the program's first megabyte.
#[inline]
pub fn owns(ptr: *const u8) -> bool {
    (ptr as usize).wrapping_sub(ROOM.0.get() as usize) < BYTES
}
