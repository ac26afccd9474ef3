//! What is this door's own of what both doors do.

use crate::sys;
use crate::window::Window;

/// Who forks.
pub type Caller = &'static Window;

/// There is no service, for a reason.
pub use crate::exec::outside::unmanaged;
/// As close to the fork as can be, and after it; in the child, whose it is.
pub use crate::window::{hold, let_go};

/// Whether the main heap is libc's, whose break it notes itself, and what comes is found.
pub use crate::alloc::next::is_found as keeps_heap;

/// A word of the program's auxiliary vector.
pub fn auxiliary(what: usize) -> usize {
    // SAFETY: reads the program's own vector, through libc.
    unsafe { libc::getauxval(what as u64) as usize }
}

/// A place for the image.
///
/// # Errors
/// The errno of mmap.
pub fn reserve_image(bytes: usize) -> Result<usize, i32> {
    sys::reserve(0, bytes)
}

/// Before a fork: has the kernel leave the calling thread's restartable sequences alone, whose
/// area, in libc's record of the thread, it writes to whenever the thread was off its CPU. What to
/// return to after; `None`: there are none, or nobody may ask.
pub use crate::sequences::leave as leave_sequences;
/// After it, on both sides.
pub use crate::sequences::return_to as return_to_sequences;
