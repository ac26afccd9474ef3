//! The mmap family under its names in C.

use super::calls::answer;
use crate::sys::{self, c_result, words};
use core::ffi::{c_int, c_uint, c_ulong, c_void};
use libc::c_long;

type Ptr = *mut c_void;

/// The program's own call; every one that is made here has an answer.
fn call<const N: usize>(number: c_long, args: [usize; N]) -> usize {
    c_result(answer(number, words(args)).unwrap_or(Err(libc::ENOSYS)))
}

/// Functions that are a system call with the same arguments.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $to:ty = $number:ident;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $to {
            call(libc::$number, [$($arg as usize),*]) as $to
        })*
    };
}

calls! {
    /// C's `mmap`.
    mmap(addr: Ptr, len: usize, prot: c_int, flags: c_int, fd: c_int, at: i64) -> Ptr = SYS_mmap;
    /// The same: offsets have 64 bits.
    mmap64(addr: Ptr, len: usize, prot: c_int, flags: c_int, fd: c_int, at: i64) -> Ptr = SYS_mmap;
    /// C's `munmap`.
    munmap(addr: Ptr, len: usize) -> c_int = SYS_munmap;
    /// C's `mprotect`.
    mprotect(addr: Ptr, len: usize, prot: c_int) -> c_int = SYS_mprotect;
    /// C's `madvise`.
    madvise(addr: Ptr, len: usize, advice: c_int) -> c_int = SYS_madvise;
    /// Linux's `mremap`.
    mremap(addr: Ptr, old: usize, new: usize, flags: c_int, to: Ptr) -> Ptr = SYS_mremap;
    /// C's `mlock`.
    mlock(addr: Ptr, len: usize) -> c_int = SYS_mlock;
    /// Linux's `mlock2`.
    mlock2(addr: Ptr, len: usize, flags: c_uint) -> c_int = SYS_mlock2;
    /// C's `munlock`.
    munlock(addr: Ptr, len: usize) -> c_int = SYS_munlock;
    /// C's `mlockall`.
    mlockall(flags: c_int) -> c_int = SYS_mlockall;
    /// C's `munlockall`.
    munlockall() -> c_int = SYS_munlockall;
    /// Linux's `pkey_mprotect`.
    pkey_mprotect(addr: Ptr, len: usize, prot: c_int, key: c_int) -> c_int = SYS_pkey_mprotect;
    /// Linux's `mseal`.
    mseal(addr: Ptr, len: usize, flags: c_ulong) -> c_int = SYS_mseal;
    /// C's `ioctl`.
    ioctl(fd: c_int, request: c_ulong, argument: Ptr) -> c_int = SYS_ioctl;
    /// Linux's `process_madvise`.
    process_madvise(
        pidfd: c_int, list: *const libc::iovec, count: usize, advice: c_int, flags: c_uint
    ) -> isize = SYS_process_madvise;
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

/// Linux's `brk`. As in libc a break that stays higher than asked for is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(end: Ptr) -> c_int {
    if call(libc::SYS_brk, [end as usize]) >= end as usize {
        return 0;
    }
    sys::set_errno(libc::ENOMEM);
    -1
}

/// Linux's `sbrk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(more: isize) -> Ptr {
    let before = call(libc::SYS_brk, []);
    // SAFETY: the program's own call.
    let done = |end: usize| more == 0 || unsafe { brk(end as Ptr) } == 0;
    match before.checked_add_signed(more) {
        Some(end) if done(end) => before as Ptr,
        _ => {
            sys::set_errno(libc::ENOMEM);
            usize::MAX as Ptr
        }
    }
}
