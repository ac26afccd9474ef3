//! mlock and its family.
//!
//! What may be locked depends on the credentials and the limit of the calling thread, which the
//! service does not share: they are looked up here and told with each call.

use super::calls::{by_owner, cover, raw};
use crate::gate;
use crate::sys::{self, PAGE};
use core::ffi::c_int;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use deckle_door::Op;
use libc::c_long;

/// Whether mlockall was called for what comes. True in a forked child too, where it means no
/// more than that the service is told the limit.
static FUTURE: AtomicBool = AtomicBool::new(false);
/// Whether anything was ever locked, which only the service knows.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// Whether nothing is locked.
pub fn none() -> bool {
    !LOCKED.load(Relaxed)
}

/// Whether future mappings are locked.
pub fn is_future() -> bool {
    FUTURE.load(Relaxed)
}

/// Bytes that the calling thread may have locked: RLIMIT_MEMLOCK, or all with CAP_IPC_LOCK.
fn lockable() -> usize {
    const IPC_LOCK: u32 = 14;
    if sys::has_capability(IPC_LOCK) {
        return usize::MAX;
    }
    let limit = sys::limit(libc::RLIMIT_MEMLOCK as usize, None);
    limit.map_or(0, |[soft, _]| soft as usize)
}

/// What a mapping's call has to tell. EPERM for MAP_LOCKED where nothing may be locked.
pub fn lockable_by_mmap(flags: c_int) -> Result<usize, i32> {
    let asked = flags & libc::MAP_LOCKED != 0;
    if asked {
        LOCKED.store(true, Relaxed);
    } else if !FUTURE.load(Relaxed) {
        return Ok(usize::MAX);
    }
    match lockable() {
        0 if asked => Err(libc::EPERM),
        bytes => Ok(bytes),
    }
}

/// Bytes from which on unseen memory is adopted before it is locked: memory that the kernel has
/// locked cannot be adopted.
const LARGE: usize = 256 << 10;

/// mlock, mlock2 and munlock, by number.
pub fn lock(number: c_long, addr: usize, len: usize, flags: usize) -> Result<usize, i32> {
    LOCKED.store(true, Relaxed);
    // The kernel rounds the start down and the end up.
    let start = addr & !(PAGE - 1);
    let len = len.saturating_add(addr - start);
    if number != libc::SYS_munlock && len >= LARGE {
        cover(start, len);
    }
    by_owner(
        start,
        len,
        |bytes| match number {
            libc::SYS_munlock => gate::request(Op::Unlock, [start, bytes]),
            _ => match lockable() {
                0 => Err(libc::EPERM),
                most => gate::request(Op::Lock, [start, bytes, flags, most]),
            },
        },
        || raw(number, [start, len, flags]),
    )
}

/// mlockall. The kernel's would lock where pages rest, all of it; and it must not be on when
/// these are mapped: so from now on the program is managed.
pub fn lock_all(flags: c_int) -> Result<usize, i32> {
    LOCKED.store(true, Relaxed);
    if gate::is_small() {
        gate::outgrown();
    }
    let done = match gate::is_managed() {
        false => raw(libc::SYS_mlockall, [flags as usize]),
        true => gate::request(Op::LockAll, [flags as usize, lockable()]),
    };
    if done.is_ok() {
        FUTURE.store(flags & libc::MCL_FUTURE != 0, Relaxed);
    }
    done
}

/// munlockall.
pub fn unlock_all() -> Result<usize, i32> {
    FUTURE.store(false, Relaxed);
    match gate::is_managed() {
        false => raw(libc::SYS_munlockall, [0; 6]),
        true => gate::request(Op::UnlockAll, [0; 6]),
    }
}
