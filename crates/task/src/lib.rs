//! Service tasks: tasks that have a program's memory and nothing else of it.
//!
//! A memory manager that lives inside somebody else's program needs a context of its own. A
//! thread of the program would be seen by everybody: `unshare` of a user namespace fails in a
//! program with threads, Python warns at fork, and whatever the program does to its descriptors
//! (closefrom, dup2) it does to the manager's. A *service task* is made by
//! `clone(CLONE_VM | CLONE_SETTLS)` without CLONE_THREAD, CLONE_FILES, CLONE_FS and CLONE_SIGHAND:
//!
//! - it has the program's memory, its own descriptor table (emptied at start), its own working
//!   directory, session and signal state (everything blocked);
//! - it is a child with exit signal 0: the program's `wait` calls do not see it, and its end
//!   sends no signal;
//! - it is not traced when the program is (CLONE_UNTRACED).
//!
//! # What a service task may call
//!
//! It has a TLS block made by the program's own loader, so `errno` and thread-locals work, and
//! with them most of Rust's standard library. It has no descriptor in libc's list of threads.
//! So: no `std::thread`, no `pthread_create`, no `fork`. It shares libc's locks with the program:
//! a program thread that forks, is killed or stopped while it holds one would take the task with
//! it. So: nothing of libc's malloc, stdio, locale, resolver or loader; an allocator of its own.
//! [`real_locks`] makes the locks that cannot be avoided real ones.
//!
//! # What the preloaded allocator must know
//!
//! - [`Area::new`] calls the loader's `_dl_allocate_tls`, which takes a few hundred bytes from
//!   the *interposed* `calloc` in the calling thread. They are copied and never read again, so it
//!   does not matter whether they are managed; but that calloc must work where `Area::new` is
//!   called.
//! - A thread-local with a destructor registers it at its first use through libc, which takes
//!   its record from the interposed `calloc` *in the task*. An allocator whose memory the task
//!   manages must serve such a call from unmanaged memory: ask [`in_service_task`].
//!
//! # What the program can still notice
//!
//! `wait` with `__WALL` or `__WCLONE` sees the task; RLIMIT_NPROC counts it; `unshare(CLONE_VM)`
//! and `setns` to a time namespace are refused by the kernel while another task has the memory.
//!
//! x86-64 and glibc. Elsewhere [`Area::new`] fails with [`SpawnError::Unsupported`] and the caller
//! falls back to threads.

#![warn(missing_docs)]

mod error;
pub use error::SpawnError;

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod area;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
pub mod futex;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod loader;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod locks;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod spawn;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod sys;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod tcb;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
pub mod watch;

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
pub use {
    area::Area,
    locks::real_locks,
    spawn::{Entry, Options, Task, exit, spawn, spawn_thread},
    sys::call,
    tcb::in_service_task,
};

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
mod elsewhere;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
pub use elsewhere::{Area, in_service_task};
