//! Blocks of the time before the program's own allocator is found: of what looks it up, and of
//! constructors that run before ours.
//!
//! Pages of the library's own .bss, which costs no system call, and only the pages that are
//! touched; it is not managed (it is part of what the summary calls unmanaged). Each block has
//! pages of its own and is handed out once, since most programs have none: our constructor, the
//! first, looks the allocator up. A block begins [`HEAD`] bytes into its first page, as one of
//! libc's does that is a mapping by itself, so that `free` tells both from all others by one look.

use crate::sys::PAGE;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// Where a block begins in its first page.
pub const HEAD: usize = 16;

const BYTES: usize = 2 << 20;

#[repr(align(4096))]
struct Room(UnsafeCell<[u8; BYTES]>);
// SAFETY: each part is handed out once.
unsafe impl Sync for Room {}
static ROOM: Room = Room(UnsafeCell::new([0; BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);
/// Bytes kept for what is done when the room is full: the look-up of the program's allocator.
const RESERVE: usize = 1 << 20;

/// A block of `size` bytes, all zeros, aligned to 16, which may take the `reserve`; null where
/// there is no room.
pub fn alloc(size: usize, reserve: bool) -> *mut u8 {
    let whole = size.checked_add(HEAD);
    let bytes = whole.and_then(|bytes| bytes.checked_next_multiple_of(PAGE));
    let limit = if reserve { BYTES } else { BYTES - RESERVE };
    let take = |used: usize| used.checked_add(bytes?).filter(|end| *end <= limit);
    let Ok(used) = USED.fetch_update(Relaxed, Relaxed, take) else {
        return core::ptr::null_mut();
    };
    let first = ROOM.0.get() as usize + used;
    // SAFETY: the first word of pages that are the caller's alone.
    unsafe { (first as *mut usize).write(size) };
    (first + HEAD) as *mut u8
}

/// Bytes of a block that its owner may use.
///
/// # Safety
/// A block of [`alloc`].
pub unsafe fn usable(block: *mut u8) -> usize {
    // SAFETY: the word before each block, in the same page.
    unsafe { block.sub(HEAD).cast::<usize>().read() }
}

/// Whether a block is one of these.
#[inline]
pub fn owns(block: *const u8) -> bool {
    (block as usize).wrapping_sub(ROOM.0.get() as usize) < BYTES
}
