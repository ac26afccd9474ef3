//! Memory for the segments of the store.

use core::alloc::Layout;
use core::ptr::NonNull;
use deckle_store::Segments;
use std::alloc::{alloc, dealloc};

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

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
        // SAFETY: the size is above zero.
        let base = NonNull::new(unsafe { alloc(layout(bytes)?) })?;
        let at = base.addr().get();
        let advise = |advice: i32| {
            let words = [at, bytes, advice as usize, 0, 0, 0];
            // SAFETY: neither advice changes a byte of the mapping, which is ours. Where one is
            // refused, pages come when they are touched.
            let _ = unsafe { crate::sys::call(libc::SYS_madvise, words) };
        };
        if bytes.is_multiple_of(HUGE) {
            // A huge page that was just freed is warm, and is what the system gives next.
            advise(libc::MADV_HUGEPAGE);
        }
        advise(libc::MADV_POPULATE_WRITE);
        Some(base)
    }

    unsafe fn unmap(&self, base: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: the caller says `base` came from `map(bytes)`, which used this layout.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}
