//! Calls on limits, and those by which a program takes rights from itself, under their names in C.

use crate::{rights, sys};
use core::ffi::{c_char, c_int, c_uint};
use libc::c_long;

/// The program's own call.
unsafe fn call(number: c_long, [a, b, c, d]: [usize; 4]) -> c_int {
    // SAFETY: the caller's promise.
    sys::c_result(unsafe { rights::call(number, [a, b, c, d, 0, 0]) }) as c_int
}

/// Linux's `prlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    what: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    let args = [pid as usize, what as usize, new as usize, old as usize];
    // SAFETY: the program's own call.
    unsafe { call(libc::SYS_prlimit64, args) }
}

/// The same: limits have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    what: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(pid, what, new, old) }
}

/// C's `setrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(what: c_int, new: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(0, what, new, core::ptr::null_mut()) }
}

/// The same: limits have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(what: c_int, new: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { setrlimit(what, new) }
}

/// C's `getrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(what: c_int, old: *mut libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(0, what, core::ptr::null(), old) }
}

/// The same: limits have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(what: c_int, old: *mut libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { getrlimit(what, old) }
}

/// Linux's `prctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(what: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int {
    // SAFETY: the program's own call.
    sys::c_result(unsafe { rights::call(libc::SYS_prctl, [what as usize, b, c, d, e, 0]) }) as c_int
}

/// Linux's `chroot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    // SAFETY: the program's own call.
    unsafe { call(libc::SYS_chroot, [path as usize, 0, 0, 0]) }
}

/// Linux's `unshare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { call(libc::SYS_unshare, [flags as usize, 0, 0, 0]) }
}

/// Linux's `close_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let args = [first as usize, last as usize, flags as usize, 0];
    // SAFETY: the program's own call.
    unsafe { call(libc::SYS_close_range, args) }
}

/// Linux's `setns`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { call(libc::SYS_setns, [fd as usize, kind as usize, 0, 0]) }
}
