//! Memory for the segments of the store.

use crate::heap::{HUGE, map_huge};
use core::alloc::Layout;
use core::ptr::NonNull;
use deckle_store::Segments;
use std::alloc::{alloc, dealloc};

/// Segments that are mapped whole at once, by the page or as huge pages: they are charged whole,
/// and most are filled within milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Mapped;

fn layout(bytes: usize) -> Option<Layout> {
    let align = match bytes.is_multiple_of(HUGE) {
        true => HUGE,
        false => crate::sys::PAGE,
    };
    let layout = Layout::from_size_align(bytes, align).ok()?;
    (layout.size() > 0).then_some(layout)
}

// SAFETY: the internal heap's blocks are exclusive until freed, and aligned to a page by their
// layout.
unsafe impl Segments for Mapped {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let base = match bytes.is_multiple_of(HUGE) && bytes > 0 {
            // A huge page that was just freed is warm, and is what the system gives next.
            true => map_huge(bytes).ok()? as *mut u8,
            // SAFETY: the size is above zero.
            false => unsafe { alloc(layout(bytes)?) },
        };
        let base = NonNull::new(base)?;
        let whole = libc::MADV_POPULATE_WRITE as usize;
        // SAFETY: changes no byte of the mapping, which is ours. Where it is refused, pages come
        // when they are touched.
        let _ = unsafe { crate::sys::call(libc::SYS_madvise, [base.addr().get(), bytes, whole]) };
        Some(base)
    }

    unsafe fn unmap(&self, base: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: the caller says `base` came from `map(bytes)`, which used this layout; a
            // block of huge pages is one that the heap would have mapped likewise.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}
