//! The exec and posix_spawn families, as the program calls them.

use super::environment::with_ours;
use super::outside::{self, By, Held};
use crate::hooks::next;
use crate::limits::for_exec;
use crate::sys::{self, c_result};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;

type Args = *const *const c_char;

unsafe extern "C" {
    static environ: Args;
    fn deckle_execl();
    fn deckle_execlp();
    fn deckle_execle();
}

fn raw_execve(path: *const c_char, args: Args, env: Args) -> c_int {
    // SAFETY: the program's own call, passed on.
    c_result(unsafe {
        sys::call(
            libc::SYS_execve,
            [path as usize, args as usize, env as usize, 0, 0, 0],
        )
    }) as c_int
}

/// Executes a program that was looked at, with our environment and the program's own limits.
///
/// # Safety
/// `env` is a list of strings.
unsafe fn executes(
    seen: Result<Held, c_int>,
    env: Args,
    exec: impl FnOnce(Args) -> c_int,
) -> c_int {
    match seen {
        // SAFETY: the caller's promise. Held until that is back.
        Ok(held) => unsafe { with_ours(env, held.reads(), |env| for_exec(|| exec(env))) },
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// C's `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, args: Args, env: Args) -> c_int {
    // SAFETY: the caller's promise: lists of strings.
    unsafe {
        let seen = outside::check(path, By::Me);
        executes(seen, env, |env| raw_execve(path, args, env))
    }
}

/// For the calls with variable arguments, written in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn deckle_execve(path: *const c_char, args: Args, env: Args) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, args, env) }
}

/// For the calls with variable arguments, written in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn deckle_execvpe(file: *const c_char, args: Args, env: Args) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, args, env) }
}

/// C's `execv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, args: Args) -> c_int {
    // SAFETY: the caller's promise; libc's list of the program's variables.
    unsafe { execve(path, args, environ) }
}

/// GNU's `execvpe`: searches the caller's PATH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, args: Args, env: Args) -> c_int {
    type Call = unsafe extern "C" fn(*const c_char, Args, Args) -> c_int;
    let libc_call = next(c"execvpe");
    if libc_call.is_null() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: libc's function of that signature; the caller's promise.
    unsafe {
        let call = core::mem::transmute::<*mut c_void, Call>(libc_call);
        let seen = outside::check_in_path(file, By::Me);
        executes(seen, env, |env| call(file, args, env))
    }
}

/// C's `execvp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, args: Args) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, args, environ) }
}

/// C's `execl`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execl() {
    core::arch::naked_asm!("jmp {}", sym deckle_execl)
}

/// C's `execlp`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execlp() {
    core::arch::naked_asm!("jmp {}", sym deckle_execlp)
}

/// C's `execle`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execle() {
    core::arch::naked_asm!("jmp {}", sym deckle_execle)
}

/// C's `fexecve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, args: Args, env: Args) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execveat(fd, c"".as_ptr(), args, env, libc::AT_EMPTY_PATH) }
}

/// Linux's `execveat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    args: Args,
    env: Args,
    flags: c_int,
) -> c_int {
    let mut by_number = [0_u8; 32];
    let named = match dir {
        libc::AT_FDCWD => path,
        _ if flags & libc::AT_EMPTY_PATH == 0 => core::ptr::null(),
        _ => {
            let _ = write!(&mut by_number[..31], "/proc/self/fd/{dir}");
            by_number.as_ptr().cast()
        }
    };
    // SAFETY: the caller's promise: lists of strings; what was written here is one.
    unsafe {
        let seen = outside::check(named, By::Me);
        executes(seen, env, |env| {
            let (path, args, env) = (path as usize, args as usize, env as usize);
            let words = [dir as usize, path, args, env, flags as usize, 0];
            c_result(sys::call(libc::SYS_execveat, words)) as c_int
        })
    }
}

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Args,
    Args,
) -> c_int;

unsafe fn spawn(
    name: &CStr,
    pid: *mut libc::pid_t,
    path: *const c_char,
    [actions, attributes]: [*const c_void; 2],
    args: Args,
    env: Args,
    held: Result<Held, c_int>,
) -> c_int {
    let libc_call = next(name);
    if libc_call.is_null() {
        return libc::ENOSYS;
    }
    let held = match held {
        Ok(held) => held,
        Err(errno) => return errno,
    };
    // SAFETY: libc's function of that signature; the caller's promise.
    unsafe {
        let call = core::mem::transmute::<*mut c_void, Spawn>(libc_call);
        let spawn = |env| call(pid, path, actions, attributes, args, env);
        with_ours(env, held.reads(), spawn)
    }
}

/// POSIX's `posix_spawn`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Args,
    env: Args,
) -> c_int {
    let how = [actions, attributes];
    // SAFETY: the caller's promise.
    unsafe {
        let held = outside::check(path, By::Child);
        spawn(c"posix_spawn", pid, path, how, args, env, held)
    }
}

/// POSIX's `posix_spawnp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Args,
    env: Args,
) -> c_int {
    let how = [actions, attributes];
    // SAFETY: the caller's promise.
    unsafe {
        let held = outside::check_in_path(file, By::Child);
        spawn(c"posix_spawnp", pid, file, how, args, env, held)
    }
}
