//! System calls without libc's wrappers, which this library interposes itself.

use crate::DOOR;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use deckle_door::Lock;
use deckle_door::request::set_mask;

pub use deckle_sys::{PAGE, call, exit_all, map_anonymous, unmap, words};

/// Sets the caller's `errno`.
#[cfg(target_env = "gnu")]
pub fn set_errno(errno: i32) {
    // SAFETY: libc returns the address of the calling thread's own word.
    unsafe { *libc::__errno_location() = errno };
}

/// The caller's `errno`.
#[cfg(target_env = "gnu")]
pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// What a function of C's returns that fails with `errno`.
#[cfg(target_env = "gnu")]
pub fn failed<T>(errno: i32, value: T) -> T {
    set_errno(errno);
    value
}

/// The result of an interposed call in C's way: -1 and `errno` on failure.
#[cfg(target_env = "gnu")]
pub fn c_result(result: Result<usize, i32>) -> usize {
    match result {
        Ok(value) => value,
        Err(errno) => failed(errno, usize::MAX),
    }
}

/// Runs `work` with the lock held. No handler comes meanwhile: it might wait for itself.
pub fn alone<T>(lock: &Lock<()>, work: impl FnOnce() -> T) -> T {
    let mask = set_mask(u64::MAX);
    let held = lock.lock();
    let result = work();
    drop(held);
    set_mask(mask);
    result
}

/// Whether the calling thread has a capability (one of the first 32) in effect.
pub fn has_capability(number: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let head = [VERSION_3, 0];
    let mut data = [0_u32; 6];
    let (head, data_at) = (head.as_ptr() as usize, data.as_mut_ptr() as usize);
    // SAFETY: reads the one, and writes the other, which is as long as this version's answer.
    let asked = || unsafe { call(libc::SYS_capget, [head, data_at]) };
    DOOR.may(libc::SYS_capget) && asked().is_ok() && data[0] >> number & 1 == 1
}

/// A limit of the calling process, soft and hard, and a new one in its place.
///
/// # Errors
/// The errno; EPERM if a filter hinders it.
pub fn limit(what: usize, new: Option<[u64; 2]>) -> Result<[u64; 2], i32> {
    if !DOOR.may(libc::SYS_prlimit64) {
        return Err(libc::EPERM);
    }
    let mut old = [0_u64; 2];
    let new = new.as_ref().map_or(0, |new| new.as_ptr() as usize);
    let args = [0, what, new, old.as_mut_ptr() as usize];
    // SAFETY: reads and writes two words each.
    unsafe { call(libc::SYS_prlimit64, args) }.map(|_| old)
}

/// Reserves `bytes` of address space without access, which no core dump looks at: at `place`, if
/// it is not 0.
///
/// # Errors
/// The errno of mmap.
pub fn reserve(place: usize, bytes: usize) -> Result<usize, i32> {
    let mut flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    if place != 0 {
        flags |= libc::MAP_FIXED_NOREPLACE as usize;
    }
    // SAFETY: a new mapping, which changes no other; advice that changes no byte.
    unsafe {
        let at = call(libc::SYS_mmap, [place, bytes, 0, flags, usize::MAX])?;
        let _ = call(libc::SYS_madvise, [at, bytes, libc::MADV_DONTDUMP as usize]);
        Ok(at)
    }
}

/// Id of the calling process; of the memory's, if nobody may ask.
pub fn getpid() -> u32 {
    if !DOOR.may(libc::SYS_getpid) {
        return DOOR.pid.load(Relaxed) as u32;
    }
    // SAFETY: a system call without arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// Whether the calling process is the one that the memory belongs to, not a vfork child in it.
pub fn is_owner() -> bool {
    DOOR.pid.load(Relaxed) == getpid() as i32
}

/// Id of the calling thread; 0 if nobody may ask.
pub fn gettid() -> u32 {
    if !DOOR.may(libc::SYS_gettid) {
        return 0;
    }
    // SAFETY: a system call without arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// Address of the word that the kernel clears when the main thread, which is the caller, leaves
/// the memory: libc's, or if nobody has asked for one (a child of a bare call), ours.
pub fn main_thread_word() -> usize {
    const PR_GET_TID_ADDRESS: usize = 40;
    static OURS: AtomicU32 = AtomicU32::new(0);
    let mut word = 0_usize;
    let args = [PR_GET_TID_ADDRESS, &raw mut word as usize];
    // SAFETY: writes one word.
    let told = || unsafe { call(libc::SYS_prctl, args) }.is_ok();
    if DOOR.may(libc::SYS_prctl) && told() && word != 0 {
        return word;
    }
    OURS.store(gettid(), Relaxed);
    let own = OURS.as_ptr() as usize;
    // SAFETY: a word that lives as long as the memory, which the kernel may write to.
    let _ = unsafe { call(libc::SYS_set_tid_address, [own]) };
    own
}

/// Writes a line to the standard error, as far as it goes: a last word, not a channel.
pub fn say(parts: &[&[u8]]) {
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in parts {
        let n = part.len().min(line.len() - len - 1);
        line[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    line[len] = b'\n';
    if DOOR.may(libc::SYS_write) {
        // SAFETY: reads a buffer on this stack.
        let _ = unsafe { call(libc::SYS_write, [2, line.as_ptr() as usize, len + 1]) };
    }
}
