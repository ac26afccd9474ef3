//! The heap of this library and its service.

use super::heap::Heap;
use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes that the heap has from the kernel.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Memory by raw system calls.
pub struct Raw(());

// SAFETY: mappings of the kernel, handed out once and given back whole or from the end.
unsafe impl dlmalloc::Allocator for Raw {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match sys::map_anonymous(size) {
            Ok(start) => {
                MAPPED.fetch_add(size, Relaxed);
                (start as *mut u8, size, 0)
            }
            Err(_) => (core::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, ptr: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        let how = if can_move { libc::MREMAP_MAYMOVE } else { 0 } as usize;
        // SAFETY: a mapping of this heap, whose owner asks for the change.
        match unsafe { sys::call(libc::SYS_mremap, [ptr as usize, old, new, how, 0, 0]) } {
            Ok(start) => {
                MAPPED.fetch_add(new.wrapping_sub(old), Relaxed);
                start as *mut u8
            }
            Err(_) => core::ptr::null_mut(),
        }
    }

    fn free_part(&self, ptr: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping of this heap, which the heap does not use any more.
        let done = unsafe { sys::unmap(ptr as usize + new, old - new) };
        if done {
            MAPPED.fetch_sub(old - new, Relaxed);
        }
        done
    }

    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        // SAFETY: a mapping of this heap, which the heap does not use any more.
        let done = unsafe { sys::unmap(ptr as usize, size) };
        if done {
            MAPPED.fetch_sub(size, Relaxed);
        }
        done
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        sys::PAGE
    }
}

/// The heap; for C's calls that libc makes in a service task's name, too.
pub static HEAP: Heap<Raw> = Heap::new(Raw(()));

/// The heap, as Rust's global allocator.
pub struct Internal;

/// Bytes that the heap has from the kernel now, used or not: what the group is charged.
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// From this size on a block is a mapping of its own, so that what is freed goes back and large
/// alignments cost no memory.
const LARGE: usize = 64 << 10;

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

/// A mapping that is to consist of huge pages, where the system has some.
///
/// # Errors
/// The errno of mmap.
pub fn map_huge(bytes: usize) -> Result<usize, i32> {
    let at = map_aligned(bytes, HUGE)?;
    let words = [at, bytes, libc::MADV_HUGEPAGE as usize, 0, 0, 0];
    // SAFETY: the advice changes no byte of the mapping, which is ours.
    let _ = unsafe { sys::call(libc::SYS_madvise, words) };
    Ok(at)
}

/// A mapping for a large block.
fn map_large(layout: Layout) -> *mut u8 {
    let bytes = layout.size().checked_next_multiple_of(sys::PAGE);
    let mapped = bytes.and_then(|bytes| map_aligned(bytes, layout.align()).ok());
    mapped.map_or(core::ptr::null_mut(), |at| at as *mut u8)
}

fn map_aligned(bytes: usize, align: usize) -> Result<usize, i32> {
    let slack = align.max(sys::PAGE) - sys::PAGE;
    let start = sys::map_anonymous(bytes + slack)?;
    let at = start.next_multiple_of(align);
    for (from, to) in [(start, at), (at + bytes, start + bytes + slack)] {
        if to > from {
            // SAFETY: an edge of the mapping just made, which nobody uses.
            unsafe { sys::unmap(from, to - from) };
        }
    }
    MAPPED.fetch_add(bytes, Relaxed);
    Ok(at)
}

/// Gives a large block back.
///
/// # Safety
/// A block of [`map_large`] with this layout, not used any more.
unsafe fn unmap_large(ptr: *mut u8, layout: Layout) {
    let bytes = layout.size().next_multiple_of(sys::PAGE);
    // SAFETY: the caller's promise.
    if unsafe { sys::unmap(ptr as usize, bytes) } {
        MAPPED.fetch_sub(bytes, Relaxed);
    }
}

// SAFETY: mappings of their own, or dlmalloc under a lock; both align as asked and keep blocks
// apart. Which of the two follows from the size, which a layout keeps.
unsafe impl GlobalAlloc for Internal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map_large(layout);
        }
        // SAFETY: the caller's promises are the heap's.
        unsafe { HEAP.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map_large(layout);
        }
        // SAFETY: as above.
        unsafe { HEAP.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe {
            if layout.size() >= LARGE {
                return unmap_large(ptr, layout);
            }
            HEAP.lock().free(ptr, layout.size(), layout.align());
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        if layout.size() < LARGE && new < LARGE {
            // SAFETY: as above.
            return unsafe { HEAP.lock().realloc(ptr, layout.size(), layout.align(), new) };
        }
        // SAFETY: the new layout has the old one's alignment, and the caller's size fits; both
        // blocks have the bytes that are copied.
        unsafe {
            let to = self.alloc(Layout::from_size_align_unchecked(new, layout.align()));
            if !to.is_null() {
                core::ptr::copy_nonoverlapping(ptr, to, new.min(layout.size()));
                self.dealloc(ptr, layout);
            }
            to
        }
    }
}
