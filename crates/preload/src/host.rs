//! What is this door's own of what both doors do.

use crate::alloc::{self, boot};
use crate::exec::outside;
use crate::sys;
use crate::window::{self, Window};

/// Who forks.
pub type Caller = &'static Window;

/// Before the service is started.
pub fn opening() {
    boot::open_reserve();
}

/// When it runs.
pub fn opened() {
    alloc::advise_nothing();
}

/// There is no service, for a reason.
pub fn unmanaged(why: &str) {
    outside::unmanaged(why);
}

/// Before a fork, what the child needs whole; whether it was taken.
pub fn before_fork() -> bool {
    boot::HEAP.acquire_for_fork()
}

/// After it, on both sides.
pub fn after_fork(taken: bool) {
    if taken {
        boot::HEAP.release();
    }
}

/// As close to the fork as can be.
pub fn hold() {
    window::hold();
}

/// After it; in the child, whose it is.
pub fn let_go(child: Option<Caller>) {
    window::let_go(child);
}

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
