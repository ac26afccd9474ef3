//! The exec and posix_spawn families, as the program calls them.

use super::environment::with_ours;
use super::outside::{self, By, Held};
use crate::hooks::next;
use crate::limits::for_exec;
use crate::sys::{self, c_result};
use core::ffi::{c_char, c_int, c_void};
use libc::pid_t;
use std::io::Write;

type Args = *const *const c_char;

unsafe extern "C" {
    static environ: Args;
    fn deckle_execl();
    fn deckle_execlp();
    fn deckle_execle();
}

/// Makes a call that executes a program, if it may be executed, with an environment that keeps it
/// inside.
///
/// # Safety
/// `env` is null or a list of strings.
unsafe fn execute(held: Result<Held, i32>, env: Args, call: impl FnOnce(Args) -> c_int) -> c_int {
    match held {
        // SAFETY: the caller's promise.
        Ok(held) => unsafe { with_ours(env, held.reads(), |env| for_exec(|| call(env))) },
        Err(errno) => sys::failed(errno, -1),
    }
}

/// C's `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, args: Args, env: Args) -> c_int {
    // SAFETY: the caller's promise: lists of strings; the program's own call, passed on.
    unsafe {
        execute(outside::check(path, By::Me), env, |env| {
            let words = [path as usize, args as usize, env as usize];
            c_result(sys::call(libc::SYS_execve, words)) as c_int
        })
    }
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
    // SAFETY: its type; the caller's promise.
    unsafe {
        let Some(call) = next::<Call>(c"execvpe") else {
            return sys::failed(libc::ENOSYS, -1);
        };
        let held = outside::check_in_path(file, By::Me);
        execute(held, env, |env| call(file, args, env))
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
    let (dir, path, args, flags) = (dir as usize, path as usize, args as usize, flags as usize);
    // SAFETY: the caller's promise: lists of strings; what was written here is one; the program's
    // own call, passed on.
    unsafe {
        execute(outside::check(named, By::Me), env, |env| {
            let words = [dir, path, args, env as usize, flags];
            c_result(sys::call(libc::SYS_execveat, words)) as c_int
        })
    }
}

/// The functions that spawn: each knows how [`outside`] is to look for the program.
macro_rules! spawns {
    ($($(#[$doc:meta])* $name:ident: $c_name:literal, $check:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            args: Args,
            env: Args,
        ) -> c_int {
            type Ptr = *const c_void;
            type Call =
                unsafe extern "C" fn(*mut pid_t, *const c_char, Ptr, Ptr, Args, Args) -> c_int;
            // SAFETY: its type; the caller's promise.
            unsafe {
                match (outside::$check(path, By::Child), next::<Call>($c_name)) {
                    (Ok(held), Some(call)) => with_ours(env, held.reads(), |env| {
                        call(pid, path, actions, attributes, args, env)
                    }),
                    (held, _) => held.err().unwrap_or(libc::ENOSYS),
                }
            }
        }
    )*};
}

spawns! {
    /// POSIX's `posix_spawn`.
    posix_spawn: c"posix_spawn", check;
    /// POSIX's `posix_spawnp`.
    posix_spawnp: c"posix_spawnp", check_in_path;
}
