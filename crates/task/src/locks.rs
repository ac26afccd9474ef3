//! Real locks in libc.

use core::ffi::{c_char, c_void};
use core::ptr;

extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
    ptr::null_mut()
}

fn single_threaded() -> Option<bool> {
    // SAFETY: a look-up by name.
    let flag = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    // SAFETY: libc documents the symbol as a `char`; it is volatile, because libc writes it.
    (!flag.is_null()).then(|| unsafe { flag.cast::<c_char>().read_volatile() != 0 })
}

/// Makes libc take its locks for real in a program that has one thread. Returns whether it does.
///
/// While a program has never made a thread, glibc skips malloc's lock and takes mutexes without
/// atomic operations. It does not know of service tasks; with them that is a race, and a mutex
/// released in this way wakes nobody. glibc leaves that mode for good at the start of
/// `pthread_create`, before it looks at the arguments: so this asks for a thread with a stack
/// larger than the address space, which is refused, and the program keeps its one thread.
/// [`spawn`](crate::spawn()) calls it. Leaves `errno` alone.
pub fn real_locks() -> bool {
    if single_threaded() == Some(true) {
        keep_errno(refused_thread);
    }
    single_threaded() == Some(false)
}

/// Runs `work` on a thread of the program, whose `errno` is none of our business.
pub(crate) fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the caller's own errno, alive as long as the caller is.
    let before = unsafe { *libc::__errno_location() };
    let result = work();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = before };
    result
}

fn refused_thread() {
    // Never through an interposed pthread_create.
    // SAFETY: only asks for the handle of a library that is loaded; the handle is never closed,
    // which keeps libc loaded.
    let found = unsafe {
        let libc_itself = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if libc_itself.is_null() {
            ptr::null_mut()
        } else {
            libc::dlsym(libc_itself, c"pthread_create".as_ptr())
        }
    };
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> libc::c_int;
    if found.is_null() {
        return;
    }
    // SAFETY: the signature of pthread_create; the attribute is initialised before use. Should
    // the thread be made after all, it ends at once and is joined.
    unsafe {
        let create = core::mem::transmute::<*mut c_void, Create>(found);
        let mut attributes = core::mem::zeroed::<libc::pthread_attr_t>();
        if libc::pthread_attr_init(&mut attributes) != 0 {
            return;
        }
        let mut thread = core::mem::zeroed();
        if libc::pthread_attr_setstacksize(&mut attributes, 1 << 60) == 0
            && create(&mut thread, &attributes, nothing, ptr::null_mut()) == 0
        {
            libc::pthread_join(thread, ptr::null_mut());
        }
        libc::pthread_attr_destroy(&mut attributes);
    }
}
