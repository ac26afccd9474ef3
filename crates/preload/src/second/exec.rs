//! The next program, and words to `deckle run`.
//!
//! It has the filter, but no handler, and would die at its first call: so `deckle run` hears of
//! the exec before it is made, holds on to the calling thread (ptrace), and puts this door into
//! the new program before its first instruction.

use crate::fork::{Stack, on_stack};
use crate::map::calls::raw;
use crate::{DOOR, limits, rights, sys};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use deckle_door::request::set_mask;
use libc::c_long;

/// Says that this program's memory cannot be managed.
pub fn unmanaged(why: &str) {
    let mut path = [0_u8; 512];
    let (base, name) = (libc::AT_FDCWD as usize, c"/proc/self/exe".as_ptr() as usize);
    let to = path.as_mut_ptr() as usize;
    let read = || raw(libc::SYS_readlinkat, [base, name, to, path.len(), 0, 0]).unwrap_or(0);
    let n = DOOR.may(libc::SYS_readlinkat).then(read).unwrap_or(0);
    let told = rights::connection().map(|link| link.unmanaged(&path[..n], why.as_bytes()));
    if !matches!(told, Some(Ok(()))) {
        sys::say(&[
            b"deckle: a program runs outside the limit: ",
            why.as_bytes(),
        ]);
    }
}

/// Stacks of who tells of an exec, each with whether it is in use: the child of musl's
/// `posix_spawn` has 5 KiB, of which the kernel takes most for the handler's frame, and behind them
/// is its parent's stack. A child that is killed here never gives its one back.
static STACKS: [(AtomicBool, Stack<8192>); 4] =
    [const { (AtomicBool::new(false), Stack::new()) }; 4];

/// In a child of fork: none is in use.
pub fn free_stacks() {
    for (used, _) in &STACKS {
        used.store(false, Release);
    }
}

extern "C" fn announce(told: &mut bool) {
    *told = rights::announce(true, false);
    if !*told {
        sys::say(&[b"deckle: a program is not executed: deckle run cannot reach it"]);
    }
}

#[inline(never)]
fn announced() -> bool {
    let mut told = false;
    match STACKS.iter().find(|(used, _)| !used.swap(true, Acquire)) {
        Some((used, stack)) => {
            // SAFETY: it was unused, and we have said that we use it. A program's handler, which
            // might not come back, does not run: all signals are blocked.
            unsafe { on_stack(stack, announce, &raw mut told as usize) };
            used.store(false, Release);
        }
        None => announce(&mut told),
    }
    told
}

/// execve and execveat.
pub fn execute(number: c_long, args: [usize; 6], mask: u64) -> Result<usize, i32> {
    if !announced() {
        return Err(libc::EACCES);
    }
    // The new program has the program's mask, not the handler's.
    let ours = set_mask(mask);
    let result = limits::for_exec(|| raw(number, args));
    set_mask(ours);
    // It was not made. Who is held on to stops here and is let go.
    // SAFETY: the stop is seen by `deckle run` alone.
    unsafe { core::arch::asm!("int3", options(nomem, nostack)) };
    result
}
