//! `system` and `popen`: libc's own, which start the shell from inside, with whatever environment
//! the program has left. After `clearenv` that would run outside, so ours is put back first.

use super::environment::{is_ours, with_ours};
use super::outside::{self, By};
use crate::hooks::next;
use crate::sys;
use core::ffi::{CStr, c_char, c_int};
use libc::FILE;

unsafe extern "C" {
    static environ: *const *const c_char;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// `PTHREAD_CANCEL_DISABLE`.
const NO_CANCEL: c_int = 1;

/// Sets the variables that keep the next program inside, where they are missing; what it is told
/// as well, if it `reads` that.
fn put_back(reads: bool) {
    // SAFETY: libc's list of the program's variables, and libc's way to change it, which copies.
    unsafe {
        with_ours(environ, reads, |env: *const *const c_char| {
            if env == environ {
                return;
            }
            let mut at = env;
            while !(*at).is_null() && is_ours(*at) {
                let entry = CStr::from_ptr(*at).to_bytes_with_nul();
                let mut name = [0; 32];
                if let Some(end) = entry.iter().position(|b| *b == b'=').filter(|n| *n < 32) {
                    name[..end].copy_from_slice(&entry[..end]);
                    libc::setenv(name.as_ptr().cast(), entry[end + 1..].as_ptr().cast(), 1);
                }
                at = at.add(1);
            }
        });
    }
}

/// Calls libc's function of that name, with the shell looked at as any program; `failed` and
/// `errno` if that may not be.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn with_shell<F, T>(name: &CStr, failed: T, call: impl FnOnce(F) -> T) -> T {
    // SAFETY: a string; the caller's promise.
    let (held, real) = unsafe { (outside::check(c"/bin/sh".as_ptr(), By::Child), next(name)) };
    match (held, real) {
        (Ok(held), Some(real)) => {
            put_back(held.reads());
            let result = call(real);
            let errno = sys::errno();
            drop(held);
            sys::set_errno(errno);
            result
        }
        (held, _) => sys::failed(held.err().unwrap_or(libc::ENOSYS), failed),
    }
}

/// C's `system`. A cancellation waits until the command has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let mut state = 0;
    // SAFETY: the calling thread's own state, put back below; libc's function of that signature,
    // with the program's own argument.
    unsafe {
        pthread_setcancelstate(NO_CANCEL, &raw mut state);
        type Call = unsafe extern "C" fn(*const c_char) -> c_int;
        let status = with_shell(c"system", -1, |real: Call| real(command));
        pthread_setcancelstate(state, core::ptr::null_mut());
        pthread_testcancel();
        status
    }
}

/// POSIX's `popen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, how: *const c_char) -> *mut FILE {
    type Call = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
    // SAFETY: libc's function of that signature, with the program's own arguments.
    unsafe {
        with_shell(c"popen", core::ptr::null_mut(), |real: Call| {
            real(command, how)
        })
    }
}
