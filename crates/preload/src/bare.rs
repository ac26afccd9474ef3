//! System calls by number, made with libc's `syscall`: those that have a meaning for managed
//! memory mean the same as the functions.

use crate::exec::exports as exec;
use crate::map::{exports as map, locks, rare};
use crate::{fork, hold, limits, rights, sys};
use core::ffi::{c_int, c_uint};
use libc::{c_long, c_ulong};

/// Linux's `syscall`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let int = |word: usize| word as c_int;
    // SAFETY: the program's own call, with the arguments that it has for the function of that
    // name; which are the same but for the types.
    unsafe {
        match number {
            libc::SYS_mmap => {
                map::mmap(a as _, b, int(c), int(d), int(e), f as i64) as usize as c_long
            }
            libc::SYS_munmap => map::munmap(a as _, b).into(),
            libc::SYS_mprotect => map::mprotect(a as _, b, int(c)).into(),
            libc::SYS_madvise => map::madvise(a as _, b, int(c)).into(),
            libc::SYS_mremap => map::mremap(a as _, b, c, int(d), e as _) as usize as c_long,
            libc::SYS_mlock => locks::mlock(a as _, b).into(),
            libc::SYS_mlock2 => locks::mlock2(a as _, b, c as c_uint).into(),
            libc::SYS_munlock => locks::munlock(a as _, b).into(),
            libc::SYS_mlockall => locks::mlockall(int(a)).into(),
            libc::SYS_munlockall => locks::munlockall().into(),
            libc::SYS_pkey_mprotect => rare::pkey_mprotect(a as _, b, int(c), int(d)).into(),
            libc::SYS_ioctl => rare::ioctl(int(a), b as c_ulong, c as _).into(),
            libc::SYS_process_madvise => {
                rare::process_madvise(int(a), b as _, c, int(d), e as c_uint) as c_long
            }
            libc::SYS_futex => sys::c_result(hold::futex([a, b, c, d, e, f])) as c_long,
            libc::SYS_setrlimit => limits::setrlimit(int(a), b as _).into(),
            libc::SYS_getrlimit => limits::getrlimit(int(a), b as _).into(),
            libc::SYS_prlimit64 => limits::prlimit(int(a), int(b), c as _, d as _).into(),
            libc::SYS_execve => exec::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => exec::execveat(int(a), b as _, c as _, d as _, int(e)).into(),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
                forks(number, [a, b, c, d, e, f])
            }
            _ => sys::c_result(rights::call(number, [a, b, c, d, e, f])) as c_long,
        }
    }
}

type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// One that makes a process, or a thread. By libc's own function, from whose place a child on
/// another stack goes on.
unsafe fn forks(number: c_long, args: [usize; 6]) -> c_long {
    let found = fork::next(c"syscall");
    let [a, b, c, d, e, f] = args;
    // SAFETY: libc's function of that signature, with the program's own arguments.
    let call = || unsafe {
        let real = core::mem::transmute::<*mut core::ffi::c_void, Call>(found);
        real(number, a, b, c, d, e, f)
    };
    if found.is_null() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    match fork::Clone::of(number, args).is_some() {
        true => fork::through_window(-1, call),
        false => call(),
    }
}
