//! The main heap (brk) of a program that has outgrown its first megabyte: what is above is
//! managed memory, at the same addresses. Of static programs: libc's heap is libc's own.

use crate::map::calls;
use crate::{gate, host, sys};
use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use deckle_door::Lock;

/// Where the kernel's part ends and ours begins; 0: all is the kernel's.
static FIRST: AtomicUsize = AtomicUsize::new(0);
/// The program's break, once there is a part of ours.
static BREAK: AtomicUsize = AtomicUsize::new(0);
/// Of who changes them; and of who forks, or a child would find it taken for ever.
pub static CHANGING: Lock<()> = Lock::new(());
/// The kernel's part is no larger.
const MOST: usize = 1 << 20;

fn kernel(end: usize) -> usize {
    calls::raw(libc::SYS_brk, [end, 0, 0, 0, 0, 0]).unwrap_or(0)
}

/// brk: the new break, or the old one if that cannot be.
pub fn brk(end: usize) -> usize {
    if host::keeps_heap() {
        return kernel(end);
    }
    sys::alone(&CHANGING, || change(end))
}

fn change(end: usize) -> usize {
    let first = FIRST.load(Acquire);
    let now = match first {
        0 => kernel(0),
        _ => BREAK.load(Relaxed),
    };
    if end == 0 || end == now {
        return now;
    }
    if first == 0 {
        if end < now || end - now < MOST && !gate::is_started() {
            return kernel(end);
        }
        if gate::is_small() {
            gate::outgrown();
        }
        if !gate::is_managed() {
            return kernel(end);
        }
        FIRST.store(now.next_multiple_of(sys::PAGE), Release);
        BREAK.store(now, Relaxed);
    }
    match resize(now, end) {
        Ok(_) => {
            BREAK.store(end, Relaxed);
            end
        }
        Err(_) => now,
    }
}

/// Maps or unmaps what lies between two ends of our part.
fn resize(now: usize, end: usize) -> Result<usize, i32> {
    let first = FIRST.load(Relaxed);
    if end < first {
        // Not below where ours begins: so much is kept.
        return Err(libc::ENOMEM);
    }
    let before = now.max(first).next_multiple_of(sys::PAGE);
    let after = end.next_multiple_of(sys::PAGE);
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let (flags, bytes) = (flags as usize, before.abs_diff(after));
    match before.cmp(&after) {
        Less => calls::answer(
            libc::SYS_mmap,
            [before, bytes, rights, flags, usize::MAX, 0],
        ),
        Equal => Ok(0),
        Greater => calls::answer(libc::SYS_munmap, [after, bytes, 0, 0, 0, 0]),
    }
}
