//! What is this door's own of what both doors do.

use crate::alloc::{self, boot};
use crate::exec::outside;
use crate::window::{self, Window};
use crate::{rights, sys};
use core::ffi::c_int;
use libc::c_long;

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

/// Why a child of this program cannot be managed whatever is done: a call that is refused.
pub fn hindrance() -> Option<c_long> {
    rights::hindrance()
}

/// Starts a service.
pub fn with_link<T>(start: impl FnOnce() -> T) -> T {
    rights::with_link(start)
}

/// A connection to `deckle run`, made before the fork, since a child may be where it is out of
/// reach. Ours for the time of the fork; the child's service keeps a copy.
pub struct Link(i32);

impl Link {
    /// `None`: there is none to be had.
    pub fn open() -> Option<Link> {
        quietly(|| rights::connection().map(|link| Link(link.into_raw())))
    }

    /// Its number.
    pub fn raw(&self) -> i32 {
        self.0
    }
}

/// Runs what calls libc's functions: it is no place to be cancelled at, and keeps `errno`.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let before = sys::errno();
    let mut state = 0;
    // SAFETY: the calling thread's own state, put back.
    unsafe { pthread_setcancelstate(NO_CANCEL, &raw mut state) };
    let result = work();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(state, &raw mut state) };
    sys::set_errno(before);
    result
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys::call(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const NO_CANCEL: c_int = 1;
