//! futex on a word that is away: operations that write it fail at once, where they should wait.

use crate::{gate, sys};
use core::ffi::c_int;

/// Operations of futex that write the word, and do not wait for it if it is away.
const WRITING: [c_int; 7] = [
    libc::FUTEX_WAKE_OP,
    libc::FUTEX_LOCK_PI,
    libc::FUTEX_UNLOCK_PI,
    libc::FUTEX_TRYLOCK_PI,
    libc::FUTEX_WAIT_REQUEUE_PI,
    libc::FUTEX_CMP_REQUEUE_PI,
    LOCK_PI2,
];
/// `FUTEX_LOCK_PI2` (Linux 5.14).
const LOCK_PI2: c_int = 13;
/// How often such a call is tried: the page may go again in between.
const TRIES: u32 = 16;

/// futex by number.
///
/// # Errors
/// The errno of the call.
pub fn futex(args: [usize; 6]) -> Result<usize, i32> {
    let operation = args[1] as c_int & libc::FUTEX_CMD_MASK;
    let mut left = match WRITING.contains(&operation) {
        true => TRIES,
        false => 0,
    };
    loop {
        // SAFETY: the program's own call.
        let result = unsafe { sys::call(libc::SYS_futex, args) };
        let (Err(libc::EFAULT), 1..) = (result, left) else {
            return result;
        };
        left -= 1;
        for word in [args[0], args[4]] {
            // It comes in and stays. What is no memory stays none, and the call says so.
            gate::hold(word, size_of::<u32>());
        }
    }
}
