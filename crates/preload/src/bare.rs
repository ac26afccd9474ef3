//! System calls by number, made with libc's `syscall`: those that have a meaning for managed
//! memory mean the same as the functions.

use crate::exec::exports as exec;
use crate::map::calls::answer;
use crate::{fork, hooks, sys};
use core::ffi::c_int;
use libc::c_long;

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
            libc::SYS_execve => exec::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => exec::execveat(int(a), b as _, c as _, d as _, int(e)).into(),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
                forks(number, [a, b, c, d, e, f])
            }
            _ => sys::c_result(answer(number, [a, b, c, d, e, f])) as c_long,
        }
    }
}

type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// One that makes a process, or a thread. By libc's own function, from whose place a child on
/// another stack goes on.
unsafe fn forks(number: c_long, args: [usize; 6]) -> c_long {
    // SAFETY: its type.
    let Some(real) = (unsafe { hooks::next::<Call>(c"syscall") }) else {
        return sys::failed(libc::ENOSYS, -1);
    };
    let [a, b, c, d, e, f] = args;
    // SAFETY: the program's own call.
    let call = || unsafe { real(number, a, b, c, d, e, f) };
    match fork::Clone::of(number, args).is_some() {
        true => hooks::through_window(-1, call),
        false => call(),
    }
}
