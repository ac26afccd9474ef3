//! Whether the service runs, and starting it when the program needs it.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use deckle_task::futex;

/// The program is small: its memory is the kernel's.
const SMALL: u32 = 0;
/// It is managed by nobody and stays so: not under `deckle run`.
const PLAIN: u32 = 1;
/// A thread is starting the service.
const STARTING: u32 = 2;
/// The service runs.
const MANAGED: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(SMALL);
/// Thread id of who is starting the service.
static STARTER: AtomicU32 = AtomicU32::new(0);
static BASE: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The caller's thread id.
pub fn tid() -> u32 {
    // SAFETY: a system call without arguments.
    unsafe { crate::sys::call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// Whether the program's allocations come from its first megabyte: it has not outgrown it, or
/// the caller is just starting the service, whose set-up allocates.
#[inline]
pub fn is_small() -> bool {
    match STATE.load(Acquire) {
        MANAGED | PLAIN => false,
        SMALL => true,
        _ => STARTER.load(Relaxed) == tid(),
    }
}

/// Start address and bytes of managed memory, if there is any. Waits while another thread is
/// starting the service. Nothing is managed for service tasks: their memory is their own.
pub fn arena() -> Option<(usize, usize)> {
    if deckle_task::in_service_task() {
        return None;
    }
    loop {
        match STATE.load(Acquire) {
            MANAGED => return Some((BASE.load(Relaxed), BYTES.load(Relaxed))),
            STARTING if STARTER.load(Relaxed) != tid() => {
                futex::wait(&STATE, STARTING, None);
            }
            _ => return None,
        }
    }
}

/// The program needs more than a small one may have: starts the service, once.
#[cold]
pub fn outgrown() {
    if STATE
        .compare_exchange(SMALL, STARTING, Acquire, Relaxed)
        .is_err()
    {
        arena();
        return;
    }
    STARTER.store(tid(), Relaxed);
    crate::alloc::boot::open_reserve();
    let state = match super::start() {
        Some((base, bytes)) => {
            BASE.store(base, Relaxed);
            BYTES.store(bytes, Relaxed);
            crate::alloc::advise_nothing();
            MANAGED
        }
        None => PLAIN,
    };
    STATE.store(state, Release);
    futex::wake(&STATE, u32::MAX);
}
