//! Words that the kernel itself touches where it cannot wait for a fault: they stay resident.
//!
//! - Robust and priority-inheriting mutexes: the kernel reads a list through the first when their
//!   owner ends, and writes the second while it takes them.
//! - The record of a thread: at the thread's end the kernel clears a word of it, for which
//!   `pthread_join` waits. It lies on the thread's stack, which is the program's own, or the C
//!   library's, where it may have been adopted.

use crate::{DOOR, gate, hooks};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Acquire;
use libc::{pthread_attr_t, pthread_mutex_t, pthread_mutexattr_t, pthread_t};

/// Bytes of glibc's record of a thread, which `pthread_t` is the address of: 2304 in 2.36.
const RECORD: usize = 4096;

type Init = unsafe extern "C" fn(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int;

/// POSIX's `pthread_mutex_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut pthread_mutex_t,
    attributes: *const pthread_mutexattr_t,
) -> c_int {
    // SAFETY: its type.
    let Some(real) = (unsafe { hooks::next::<Init>(c"pthread_mutex_init") }) else {
        return libc::ENOSYS;
    };
    // SAFETY: libc's function of that signature with the program's own arguments; the attributes
    // are read as libc reads them.
    unsafe {
        let done = real(mutex, attributes);
        if done == 0 && !attributes.is_null() {
            let (mut protocol, mut robust) = (0, 0);
            libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
            libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
            if protocol == libc::PTHREAD_PRIO_INHERIT || robust == libc::PTHREAD_MUTEX_ROBUST {
                gate::hold(mutex as usize, size_of::<pthread_mutex_t>());
            }
        }
        done
    }
}

type Entry = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Entry, *mut c_void) -> c_int;

/// POSIX's `pthread_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    entry: Entry,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: its type.
    let Some(real) = (unsafe { hooks::next::<Create>(c"pthread_create") }) else {
        return libc::EAGAIN;
    };
    // SAFETY: libc's function of that signature with the program's own arguments; the attributes
    // are read as libc reads them.
    unsafe {
        // Before the thread runs: it may end, and free its stack, before the call is back.
        if !attributes.is_null() {
            let (mut low, mut bytes) = (core::ptr::null_mut(), 0);
            let told = libc::pthread_attr_getstack(attributes, &raw mut low, &raw mut bytes);
            // Without a stack of its own libc computes an address from none.
            let end = (low as usize).wrapping_add(bytes);
            if told == 0 && end != 0 && bytes > RECORD {
                gate::hold(end - RECORD, RECORD);
            }
        }
        let done = real(thread, attributes, entry, argument);
        if done == 0 && DOOR.adopts.load(Acquire) {
            let record = thread.read() as usize;
            if gate::note_held(record, RECORD) {
                gate::hold(record, RECORD);
            }
        }
        done
    }
}
