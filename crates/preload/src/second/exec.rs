//! The next program, and words to `deckle run`.
//!
//! It has the filter, but no handler, and would die at its first call: so `deckle run` hears of
//! the exec before it is made, holds on to the calling thread (ptrace), and puts this door into
//! the new program before its first instruction.

use crate::map::calls::raw;
use crate::{DOOR, limits, rights, sys};
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

/// execve and execveat.
pub fn execute(number: c_long, args: [usize; 6], mask: u64) -> Result<usize, i32> {
    if !rights::announce(true, false) {
        sys::say(&[b"deckle: a program is not executed: deckle run cannot reach it"]);
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
