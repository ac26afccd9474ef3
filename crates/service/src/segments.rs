//! Memory for the segments of the store.

use crate::heap::{HUGE, map_huge};
use core::alloc::Layout;
use core::ptr::NonNull;
use deckle_store::Segments;
use deckle_sys::Memory;
use deckle_sys::mapping::Advice;
use std::alloc::dealloc;

/// Segments that are mapped whole at once, by the page or as huge pages: they are charged whole,
/// and most are filled within milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Mapped;

/// A segment of huge pages, mapped as the heap maps such blocks.
fn huge(bytes: usize) -> Option<Memory> {
    /// # Safety
    /// What [`huge`] has made, which nobody uses any more.
    unsafe fn free(base: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, HUGE) {
            // SAFETY: the caller's word. A block of huge pages is one that the heap would have
            // mapped likewise.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
    // A huge page that was just freed is warm, and is what the system gives next.
    let base = NonNull::new(map_huge(bytes).ok()? as *mut u8)?;
    // SAFETY: fresh memory of the kernel, whole pages that are ours alone.
    Some(unsafe { Memory::from_raw(base, bytes, free) })
}

impl Segments for Mapped {
    fn map(&self, bytes: usize) -> Option<Memory> {
        let mut memory = match bytes.is_multiple_of(HUGE) && bytes > 0 {
            true => huge(bytes)?,
            false => Memory::heap(bytes)?,
        };
        // Where it is refused, pages come when they are touched.
        let _ = memory.advise(0..bytes, Advice::PopulateWrite);
        Some(memory)
    }
}
