//! The next program, and words to `deckle run`.
//!
//! It has the filter, but no handler, and would die at its first call: so `deckle run` hears of
//! the exec before it is made, holds on to the calling thread (ptrace), and puts this door into
//! the new program before its first instruction.

use crate::map::calls::raw;
use crate::{DOOR, sys};
use deckle_door::link::{self, EXEC, UNMANAGED};
use deckle_door::request::set_mask;
use libc::c_long;

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    let _ = raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
}

/// Connects to `deckle run`.
///
/// # Errors
/// The errno: it is out of reach.
pub fn connect() -> Result<i32, i32> {
    link::connect(DOOR.group.get())
}

fn send(fd: i32, message: &[u8]) -> Result<usize, i32> {
    let (at, flags) = (message.as_ptr() as usize, libc::MSG_NOSIGNAL as usize);
    raw(
        libc::SYS_sendto,
        [fd as usize, at, message.len(), flags, 0, 0],
    )
}

/// Says that this program's memory cannot be managed.
pub fn tell_unmanaged(why: &str) {
    let mut message = [0_u8; 1024];
    let (base, path) = (libc::AT_FDCWD as usize, c"/proc/self/exe".as_ptr() as usize);
    let to = message.as_mut_ptr() as usize + 1;
    let read = raw(libc::SYS_readlinkat, [base, path, to, 512, 0, 0]);
    let used = 1 + read.unwrap_or(0);
    message[0] = UNMANAGED;
    let n = why.len().min(message.len() - used - 1);
    message[used + 1..used + 1 + n].copy_from_slice(&why.as_bytes()[..n]);
    let told = connect().and_then(|fd| {
        let sent = send(fd, &message[..used + 1 + n]);
        close(fd);
        sent
    });
    if told.is_err() {
        sys::say(&[
            b"deckle: a program runs outside the limit: ",
            why.as_bytes(),
        ]);
    }
}

/// Has `deckle run` hold on to this thread; an answer of 1: it does.
fn announce() -> Result<(), i32> {
    let fd = connect()?;
    let tid = sys::gettid().to_le_bytes();
    // Filtered, and what is told to be executed is this thread's alone.
    let message = [EXEC, tid[0], tid[1], tid[2], tid[3], 1, 0];
    let mut answer = [0_u8; 8];
    let at = answer.as_mut_ptr() as usize;
    let heard = send(fd, &message).and_then(|_| {
        loop {
            match raw(libc::SYS_recvfrom, [fd as usize, at, answer.len(), 0, 0, 0]) {
                Err(libc::EINTR) => {}
                other => break other,
            }
        }
    });
    close(fd);
    match heard {
        Ok(1..) if answer[0] == 1 => Ok(()),
        Ok(_) => Err(libc::EPERM),
        Err(errno) => Err(errno),
    }
}

/// execve and execveat.
pub fn execute(number: c_long, args: [usize; 6], mask: u64) -> Result<usize, i32> {
    if announce().is_err() {
        sys::say(&[b"deckle: a program is not executed: deckle run cannot reach it"]);
        return Err(libc::EACCES);
    }
    // The new program has the program's mask, not the handler's.
    let ours = set_mask(mask);
    let result = raw(number, args);
    set_mask(ours);
    // It was not made. Who is held on to stops here and is let go.
    // SAFETY: the stop is seen by `deckle run` alone.
    unsafe { core::arch::asm!("int3", options(nomem, nostack)) };
    result
}
