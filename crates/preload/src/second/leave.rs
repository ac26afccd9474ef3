//! The end of a thread.

use crate::caught::Frame;
use crate::fork::{FORKING, on_own_stack};
use crate::map::calls;
use crate::{DOOR, gate, sys};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicU32, AtomicUsize};
use deckle_sys::futex::{self, Scope};

/// Address of the word that the main thread wants cleared at its end; 0: none, or the kernel
/// knows it. Some C libraries give the address of a lock, by which our service could not tell
/// whether that thread has left the memory; so the kernel is told of a word of ours instead.
static WORD: AtomicUsize = AtomicUsize::new(0);

fn is_main() -> bool {
    sys::is_owner() && sys::gettid() == sys::getpid()
}

/// set_tid_address.
pub fn keep_word(address: usize) -> Result<usize, i32> {
    if !is_main() {
        return calls::raw(libc::SYS_set_tid_address, [address, 0, 0, 0, 0, 0]);
    }
    WORD.store(address, Release);
    Ok(sys::gettid() as usize)
}

/// Keeps what the kernel touches of a thread that ends resident: it cannot wait for a fault then.
fn hold(address: usize) {
    /// Between the head of its list and the word that is cleared there are 16 bytes in glibc's
    /// record of a thread.
    const BESIDE: usize = 64;
    gate::hold(address.saturating_sub(BESIDE), 2 * BESIDE);
}

/// set_robust_list.
pub fn keep_list(args: [usize; 6]) -> Result<usize, i32> {
    hold(args[0]);
    calls::raw(libc::SYS_set_robust_list, args)
}

/// The robust mutexes that the calling thread has: the kernel walks their list, and tells who
/// waits for them.
fn hold_mutexes() {
    /// As many as the kernel looks at.
    const MOST: usize = 2048;
    let (mut head, mut bytes) = (0_usize, 0_usize);
    let (at, size) = (&raw mut head as usize, &raw mut bytes as usize);
    let list = || calls::raw(libc::SYS_get_robust_list, [0, at, size, 0, 0, 0]);
    if !DOOR.may(libc::SYS_get_robust_list) || list().is_err() || head == 0 {
        return;
    }
    // SAFETY: what the program has told the kernel: a head (first entry, distance from an entry to
    // its word), and entries that begin with the address of the next, up to the head again.
    unsafe {
        let word = |at: usize| (at as *const usize).read();
        let (distance, mut entry) = (word(head + 8), word(head) & !1);
        for _ in 0..MOST {
            if entry == head || entry == 0 {
                break;
            }
            hold(entry.wrapping_add(distance));
            entry = word(entry) & !1;
        }
    }
}

/// In a child of fork: the kernel knows its word.
pub fn forget_word() {
    WORD.store(0, Release);
}

/// exit, of one thread.
pub fn exit(args: [usize; 6]) -> Result<usize, i32> {
    if gate::is_managed() {
        hold_mutexes();
    }
    let word = WORD.load(Acquire);
    if word != 0 && is_main() {
        // SAFETY: the program's promise to the kernel.
        let word = unsafe { AtomicU32::from_ptr(word as *mut u32) };
        word.store(0, Release);
        futex::wake_in(Scope::Shared, word, 1);
    }
    calls::raw(libc::SYS_exit, args)
}

/// Whether a range that is to be unmapped has the stack of the calling thread in it: a detached
/// thread of musl's does so as its last call but the exit, which follows without any stack.
pub fn is_stack(args: [usize; 6], frame: &Frame) -> bool {
    (core::ptr::from_ref(frame) as usize).wrapping_sub(args[0]) < args[1]
}

/// Unmaps it from another stack, and ends the thread.
pub fn unmap_stack(args: [usize; 6]) -> ! {
    FORKING.acquire();
    // SAFETY: FORKING is ours, and with it the stack; nothing comes back to the old one.
    unsafe { on_own_stack(gone, args.as_ptr() as usize) };
    sys::exit_all(1)
}

extern "C" fn gone(args: *const [usize; 6]) {
    // SAFETY: on the stack that is still there.
    let args = unsafe { args.read() };
    let _ = calls::answer(libc::SYS_munmap, args);
    FORKING.release_and_exit();
}
