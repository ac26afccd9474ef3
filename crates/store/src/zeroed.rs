//! Boxes of zero bytes whose allocation may fail without ending the process.

use std::alloc::{Layout, alloc_zeroed};

/// Types of which all-zero bytes are a valid value.
///
/// # Safety
/// Only for types that are sized above zero bytes and valid when every byte is zero.
pub(crate) unsafe trait Zeroable: Sized {}

/// A zeroed box, `None` when there is no memory. Never builds the value on the stack.
pub(crate) fn zeroed_box<T: Zeroable>() -> Option<Box<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return None;
    }
    // SAFETY: the layout has a size above zero, checked above.
    let raw = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if raw.is_null() {
        return None;
    }
    // SAFETY: `raw` comes from the global allocator with T's layout, nobody else has it, and
    // zero bytes are a valid T by the trait's contract.
    Some(unsafe { Box::from_raw(raw) })
}
