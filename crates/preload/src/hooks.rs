//! The functions of libc by which a program forks, and those that stand behind ours.

use crate::{filter, gate, sequences, sys, window};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

type Fork = unsafe extern "C" fn() -> libc::pid_t;
/// libc's functions, looked up at the program's start: later the loader may be busy, or in a
/// child of fork be locked by nobody.
static REAL: [(&CStr, AtomicUsize); 11] = [
    (c"fork", AtomicUsize::new(0)),
    (c"_Fork", AtomicUsize::new(0)),
    (c"clone", AtomicUsize::new(0)),
    (c"syscall", AtomicUsize::new(0)),
    (c"execvpe", AtomicUsize::new(0)),
    (c"posix_spawn", AtomicUsize::new(0)),
    (c"posix_spawnp", AtomicUsize::new(0)),
    (c"system", AtomicUsize::new(0)),
    (c"popen", AtomicUsize::new(0)),
    (c"pthread_create", AtomicUsize::new(0)),
    (c"pthread_mutex_init", AtomicUsize::new(0)),
];

/// Looks up libc's functions and registers the handlers: at the program's start, so that they
/// are next to the fork.
pub fn register() {
    for (name, to) in &REAL {
        to.store(look_up(name) as usize, Release);
    }
    sequences::look_up(|name| look_up(name) as usize);
    // SAFETY: functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(prepare), Some(done), Some(done));
    }
}

/// The definition behind ours, of libc, as a function of type `F`.
///
/// # Safety
/// `F` is the type of a pointer to that function.
pub unsafe fn next<F>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let known = REAL.iter().find(|(known, _)| *known == name);
    let found = match known.map_or(0, |(_, at)| at.load(Acquire)) {
        0 => look_up(name),
        at => at as *mut c_void,
    };
    // SAFETY: libc's function, of this type, says the caller.
    (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
}

fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: a look-up by name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The last handler before the fork.
unsafe extern "C" fn prepare() {
    window::open();
}

/// The first handler after it, on both sides: the window is still open if there was no fork.
unsafe extern "C" fn done() {
    window::close();
}

/// C's `fork`: the handlers do the work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: its type.
    let Some(real) = (unsafe { next::<Fork>(c"fork") }) else {
        return sys::failed(libc::ENOSYS, -1);
    };
    if is_unseen() {
        return -1;
    }
    // SAFETY: the program's own call.
    unsafe { real() }
}

/// Whether a fork would not be seen, and its child have none of the managed memory: a filter
/// keeps us from opening a window. Then there is none: `errno` is EAGAIN.
fn is_unseen() -> bool {
    let unseen = !filter::lets_forks_be_seen() && gate::is_managed();
    if unseen {
        sys::set_errno(libc::EAGAIN);
    }
    unseen
}

/// POSIX's `_Fork`, which runs no handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    // SAFETY: its type.
    let Some(real) = (unsafe { next::<Fork>(c"_Fork") }) else {
        return sys::failed(libc::ENOSYS, -1);
    };
    // SAFETY: the program's own call.
    through_window(-1, || unsafe { real() })
}

/// Calls what forks, with the calling thread's window open; `failed` and `errno` if that cannot be.
pub fn through_window<T>(failed: T, work: impl FnOnce() -> T) -> T {
    if is_unseen() {
        return failed;
    }
    let opened = window::open();
    let result = work();
    if opened {
        let errno = sys::errno();
        window::close();
        sys::set_errno(errno);
    }
    result
}

type CloneFn = unsafe extern "C" fn(
    extern "C" fn(*mut c_void) -> c_int,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// Linux's `clone`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    area: *mut c_void,
    child: *mut c_void,
) -> c_int {
    // SAFETY: its type.
    let Some(real) = (unsafe { next::<CloneFn>(c"clone") }) else {
        return sys::failed(libc::ENOSYS, -1);
    };
    // SAFETY: the program's own call.
    let call = || unsafe { real(entry, stack, flags, argument, parent, area, child) };
    match flags & libc::CLONE_VM {
        0 => through_window(-1, call),
        _ => call(),
    }
}
