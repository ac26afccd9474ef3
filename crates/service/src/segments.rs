//! Memory for the segments of the store.

use crate::heap::{self, HUGE};
use core::ptr::NonNull;
use deckle_store::Segments;
use deckle_sys::Memory;
use deckle_sys::mapping::Advice;

/// Segments that are mapped whole at once, by the page or as huge pages: they are charged whole,
/// and most are filled within milliseconds. Each is a mapping of its own, however small: what
/// comes and goes by the thousand would leave holes among the heap's other blocks.
#[derive(Clone, Copy, Debug)]
pub struct Mapped;

impl Segments for Mapped {
    fn map(&self, bytes: usize) -> Option<Memory> {
        /// # Safety
        /// What [`Mapped::map`] has made, which nobody uses any more.
        unsafe fn free(base: NonNull<u8>, bytes: usize) {
            // SAFETY: the caller's word.
            unsafe { heap::unmap(base.as_ptr() as usize, bytes) };
        }
        let start = match bytes.is_multiple_of(HUGE) && bytes > 0 {
            // A huge page that was just freed is warm, and is what the system gives next.
            true => heap::map_huge(bytes),
            false => heap::map_pages(bytes),
        };
        let base = NonNull::new(start.ok()? as *mut u8)?;
        // SAFETY: fresh memory of the kernel, whole pages that are ours alone.
        let mut memory = unsafe { Memory::from_raw(base, bytes, free) };
        // Where it is refused, pages come when they are touched.
        let _ = memory.advise(0..bytes, Advice::PopulateWrite);
        Some(memory)
    }
}
