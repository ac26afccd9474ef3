//! Calls on memory and on limits, and those by which a program takes rights from itself, under
//! their names in C.

use crate::alloc::next;
use crate::map::calls::{advise, answer};
use crate::sys::{c_result, words};
use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use libc::{c_long, pid_t, rlimit};

type Ptr = *mut c_void;

/// The program's own call.
fn call<const N: usize>(number: c_long, args: [usize; N]) -> usize {
    c_result(answer(number, words(args)))
}

/// Functions that are a system call, with the same arguments or those that are listed.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $to:ty
        = $number:ident $([$($word:tt),*])?;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $to {
            call(libc::$number, calls!(@ $([$($word),*])? [$($arg),*])) as $to
        })*
    };
    // The first list that there is.
    (@ [$($word:tt),*] $($other:tt)?) => { [$($word as usize),*] };
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
    /// Linux's `prlimit`.
    prlimit(pid: pid_t, what: c_int, new: *const rlimit, old: *mut rlimit) -> c_int = SYS_prlimit64;
    /// The same: limits have 64 bits.
    prlimit64(pid: pid_t, what: c_int, new: *const rlimit, old: *mut rlimit) -> c_int
        = SYS_prlimit64;
    /// C's `setrlimit`.
    setrlimit(what: c_int, new: *const rlimit) -> c_int = SYS_prlimit64 [0, what, new, 0];
    /// The same: limits have 64 bits.
    setrlimit64(what: c_int, new: *const rlimit) -> c_int = SYS_prlimit64 [0, what, new, 0];
    /// C's `getrlimit`.
    getrlimit(what: c_int, old: *mut rlimit) -> c_int = SYS_prlimit64 [0, what, 0, old];
    /// The same: limits have 64 bits.
    getrlimit64(what: c_int, old: *mut rlimit) -> c_int = SYS_prlimit64 [0, what, 0, old];
    /// Linux's `prctl`.
    prctl(what: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int = SYS_prctl;
    /// Linux's `chroot`.
    chroot(path: *const c_char) -> c_int = SYS_chroot;
    /// Linux's `unshare`.
    unshare(flags: c_int) -> c_int = SYS_unshare;
    /// Linux's `close_range`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = SYS_close_range;
    /// Linux's `setns`.
    setns(fd: c_int, kind: c_int) -> c_int = SYS_setns;
}

/// POSIX's `posix_madvise`: returns the error. POSIX_MADV_DONTNEED must not lose bytes, so, as
/// in glibc, it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: Ptr, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    advise(addr as usize, len, advice).err().unwrap_or(0)
}

/// Linux's `brk`. As in libc a break that stays higher than asked for is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(end: Ptr) -> c_int {
    let more = (end as usize).wrapping_sub(next::sbrk(0) as usize) as isize;
    if next::sbrk(more) as isize == -1 {
        -1
    } else {
        0
    }
}

/// Linux's `sbrk`.
#[unsafe(no_mangle)]
pub extern "C" fn sbrk(more: isize) -> Ptr {
    next::sbrk(more)
}
