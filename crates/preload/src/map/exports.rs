//! The mmap family under its names in C.

use super::calls::answer;
use crate::sys::{c_result, words};
use core::ffi::{c_int, c_uint, c_ulong, c_void};
use libc::c_long;

type Ptr = *mut c_void;

/// The program's own call; every one that is made here has an answer.
fn call<const N: usize>(number: c_long, args: [usize; N]) -> usize {
    c_result(answer(number, words(args)).unwrap_or(Err(libc::ENOSYS)))
}

/// C's `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: Ptr,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Ptr {
    let (prot, flags, fd) = (prot as usize, flags as usize, fd as usize);
    let args = [addr as usize, len, prot, flags, fd, offset as usize];
    call(libc::SYS_mmap, args) as Ptr
}

/// The same: offsets have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: Ptr,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Ptr {
    // SAFETY: the caller's promise.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// C's `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: Ptr, len: usize) -> c_int {
    call(libc::SYS_munmap, [addr as usize, len]) as c_int
}

/// C's `mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: Ptr, len: usize, prot: c_int) -> c_int {
    let args = [addr as usize, len, prot as usize];
    call(libc::SYS_mprotect, args) as c_int
}

/// C's `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: Ptr, len: usize, advice: c_int) -> c_int {
    let args = [addr as usize, len, advice as usize];
    call(libc::SYS_madvise, args) as c_int
}

/// POSIX's `posix_madvise`: returns the error. POSIX_MADV_DONTNEED must not lose bytes, so, as
/// in glibc, it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: Ptr, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let done = super::calls::advise(addr as usize, len, advice);
    done.err().unwrap_or(0)
}

/// Linux's `mremap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(addr: Ptr, old: usize, new: usize, flags: c_int, to: Ptr) -> Ptr {
    let args = [addr as usize, old, new, flags as usize, to as usize];
    call(libc::SYS_mremap, args) as Ptr
}

/// C's `mlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: Ptr, len: usize) -> c_int {
    call(libc::SYS_mlock, [addr as usize, len]) as c_int
}

/// Linux's `mlock2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: Ptr, len: usize, flags: c_uint) -> c_int {
    let args = [addr as usize, len, flags as usize];
    call(libc::SYS_mlock2, args) as c_int
}

/// C's `munlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: Ptr, len: usize) -> c_int {
    call(libc::SYS_munlock, [addr as usize, len]) as c_int
}

/// C's `mlockall`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    call(libc::SYS_mlockall, [flags as usize]) as c_int
}

/// C's `munlockall`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    call(libc::SYS_munlockall, [0; 6]) as c_int
}

/// Linux's `pkey_mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(addr: Ptr, len: usize, prot: c_int, key: c_int) -> c_int {
    let args = [addr as usize, len, prot as usize, key as usize];
    call(libc::SYS_pkey_mprotect, args) as c_int
}

/// Linux's `mseal`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mseal(addr: Ptr, len: usize, flags: c_ulong) -> c_int {
    call(libc::SYS_mseal, [addr as usize, len, flags as usize]) as c_int
}

/// C's `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: Ptr) -> c_int {
    let args = [fd as usize, request as usize, argument as usize];
    call(libc::SYS_ioctl, args) as c_int
}

/// Linux's `process_madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    list: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let (list, advice, flags) = (list as usize, advice as usize, flags as usize);
    let args = [pidfd as usize, list, count, advice, flags];
    call(libc::SYS_process_madvise, args) as isize
}
