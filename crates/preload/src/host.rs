//! What is this door's own of what both doors do.

use crate::alloc::{self, boot};
use crate::exec::outside;
use crate::window::{self, Window};
use crate::{config, sys};
use core::ffi::c_int;
use deckle_group::{Name, proto};

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

/// A connection to `deckle run`, made before the fork, since a child may be where it is out of
/// reach. Ours for the time of the fork; the child's service keeps a copy.
pub struct Link(i32);

impl Link {
    /// Connects. `None` if that is impossible, or if a service of the child could not watch it:
    /// the program may have refused itself these calls.
    pub fn open() -> Option<Link> {
        let before = sys::errno();
        let mut state = 0;
        // SAFETY: the calling thread's own state, put back: what libc does here is no place to
        // be cancelled at.
        unsafe { pthread_setcancelstate(NO_CANCEL, &raw mut state) };
        let name = config::group_name().and_then(|name| Name::new(name).ok());
        let me = sys::getpid() as usize;
        let how = (libc::O_PATH | libc::O_CLOEXEC) as usize;
        let (here, maps) = (
            libc::AT_FDCWD as usize,
            c"/proc/self/maps".as_ptr() as usize,
        );
        // What the child's service will have to open. SAFETY: descriptors, which are closed; a
        // path that ends in NUL.
        let may_watch = unsafe {
            let close = |fd| sys::call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
            sys::call(libc::SYS_pidfd_open, [me, 0, 0, 0, 0, 0])
                .and_then(close)
                .and_then(|_| sys::call(libc::SYS_openat, [here, maps, how, 0, 0, 0]))
                .and_then(close)
        };
        let link = name
            .filter(|_| may_watch.is_ok())
            .and_then(|name| proto::Link::connect(name).ok())
            .map(|link| Link(link.into_raw()));
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(state, &raw mut state) };
        sys::set_errno(before);
        link
    }

    /// Its number.
    pub fn raw(&self) -> i32 {
        self.0
    }
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
