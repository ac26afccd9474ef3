//! The mmap family, as the program calls it.

use super::{locks, rules};
use crate::gate;
use crate::sys::{self, PAGE, c_result};
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use deckle_door::Op;
use libc::c_long;

type Ptr = *mut c_void;

/// Bytes of private anonymous memory that the program has mapped before the service ran.
static EARLY: AtomicUsize = AtomicUsize::new(0);
/// From this on the service is started.
const EARLY_MAX: usize = 1 << 20;

/// A system call as the program made it.
pub fn raw(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the program's own call, passed on.
    unsafe { sys::call(number, args) }
}

/// Runs `inside` on the part of a range that is in the arena, and the system call on the rest.
pub fn by_parts(
    start: usize,
    len: usize,
    inside: impl Fn(usize, usize) -> Result<usize, i32>,
    outside: impl Fn(usize, usize) -> Result<usize, i32>,
) -> Result<usize, i32> {
    let arena = match gate::arena() {
        Some(arena) => arena,
        None => return outside(start, len),
    };
    let aligned = start.is_multiple_of(PAGE);
    let mut last = Ok(0);
    let parts = rules::cut(start, len, arena);
    if !aligned || !parts[1].2 || parts[1].1 == 0 {
        return outside(start, len);
    }
    for (from, bytes, is_inside) in parts {
        if bytes > 0 {
            last = match is_inside {
                true => inside(from, bytes.next_multiple_of(PAGE)),
                false => outside(from, bytes),
            };
            last?;
        }
    }
    last
}

fn map(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<usize, i32> {
    let args = [
        addr,
        len,
        prot as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ];
    if len == 0 || !(offset as usize).is_multiple_of(PAGE) {
        return raw(libc::SYS_mmap, args);
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let managed = rules::managed(prot, flags);
    if managed && !fixed && gate::is_small() {
        let early = EARLY.fetch_add(len, Relaxed).saturating_add(len);
        if early >= EARLY_MAX {
            gate::outgrown();
        }
    }
    let Some(arena) = gate::arena() else {
        return raw(libc::SYS_mmap, args);
    };
    if fixed {
        return map_fixed(arena, managed, args);
    }
    if !managed {
        return raw(libc::SYS_mmap, args);
    }
    let bytes = rules::pages(len)?;
    let hint = if addr.is_multiple_of(PAGE) { addr } else { 0 };
    let lockable = locks::lockable_by_mmap(flags)?;
    gate::request(
        Op::Map,
        [hint, bytes, 0, prot as usize, flags as usize, lockable],
    )
}

/// MAP_FIXED and MAP_FIXED_NOREPLACE: at the program's address.
fn map_fixed(arena: (usize, usize), managed: bool, args: [usize; 6]) -> Result<usize, i32> {
    let [addr, len, prot, flags, _, _] = args;
    let bytes = rules::pages(len)?;
    if !addr.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    let parts = rules::cut(addr, bytes, arena);
    if parts[1].1 == 0 {
        return raw(libc::SYS_mmap, args);
    }
    if managed && parts[1].1 == bytes {
        let lockable = locks::lockable_by_mmap(flags as c_int)?;
        return gate::request(Op::MapFixed, [addr, bytes, 0, prot, flags, lockable]);
    }
    let [from, len_inside] = [parts[1].0, parts[1].1];
    let mut args = args;
    if flags & libc::MAP_FIXED_NOREPLACE as usize != 0 {
        if gate::request(Op::Free, [from, len_inside, 0, 0, 0, 0])? == 0 {
            return Err(libc::EEXIST);
        }
        if len_inside == bytes {
            // Inside the arena everything is mapped already, for the kernel.
            args[3] = flags & !(libc::MAP_FIXED_NOREPLACE as usize) | libc::MAP_FIXED as usize;
        } else {
            // Half in the arena, half out of it: nobody means that.
            return Err(libc::EEXIST);
        }
    }
    // What the kernel refuses changes nothing: tried elsewhere first.
    let mut trial = args;
    trial[0] = 0;
    trial[3] &= !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED) as usize;
    let place = raw(libc::SYS_mmap, trial)?;
    raw(libc::SYS_munmap, [place, bytes, 0, 0, 0, 0])?;
    // Something foreign over managed memory: the part leaves management first.
    gate::request(Op::Leave, [from, len_inside, 0, 0, 0, 0])?;
    raw(libc::SYS_mmap, args)
}

/// C's `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: Ptr,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Ptr {
    c_result(map(addr as usize, len, prot, flags, fd, offset)) as Ptr
}

/// The same: offsets have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: Ptr,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Ptr {
    c_result(map(addr as usize, len, prot, flags, fd, offset)) as Ptr
}

/// C's `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: Ptr, len: usize) -> c_int {
    c_result(by_parts(
        addr as usize,
        len,
        |start, bytes| gate::request(Op::Unmap, [start, bytes, 0, 0, 0, 0]),
        |start, bytes| raw(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]),
    )) as c_int
}

/// C's `mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: Ptr, len: usize, prot: c_int) -> c_int {
    let grows = prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) != 0;
    let prot = prot as usize;
    c_result(
        by_parts(
            addr as usize,
            len,
            // Managed memory is no stack that grows.
            |_, _| match rules::rights(prot as c_int) && !grows {
                true => Ok(0),
                false => Err(libc::EINVAL),
            },
            |_, _| Ok(0),
        )
        .and_then(|_| {
            by_parts(
                addr as usize,
                len,
                |start, bytes| gate::request(Op::Protect, [start, bytes, prot, 0, 0, 0]),
                |start, bytes| raw(libc::SYS_mprotect, [start, bytes, prot, 0, 0, 0]),
            )
        }),
    ) as c_int
}

/// madvise. What only the mighty may ask for is up to the caller's credentials, which the service
/// does not share.
pub fn advise(addr: usize, len: usize, advice: c_int) -> Result<usize, i32> {
    const SYS_ADMIN: u32 = 21;
    const HWPOISON: c_int = 100;
    const SOFT_OFFLINE: c_int = 101;
    if matches!(advice, HWPOISON | SOFT_OFFLINE) && !sys::has_capability(SYS_ADMIN) {
        return Err(libc::EPERM);
    }
    let advice = advice as usize;
    by_parts(
        addr,
        len,
        |start, bytes| gate::request(Op::Advise, [start, bytes, advice, 0, 0, 0]),
        |start, bytes| raw(libc::SYS_madvise, [start, bytes, advice, 0, 0, 0]),
    )
}

/// C's `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: Ptr, len: usize, advice: c_int) -> c_int {
    c_result(advise(addr as usize, len, advice)) as c_int
}

/// POSIX's `posix_madvise`: returns the error. POSIX_MADV_DONTNEED must not lose bytes, so, as
/// in glibc, it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: Ptr, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    advise(addr as usize, len, advice).err().unwrap_or(0)
}

/// Linux's `mremap`; `new_addr` counts only with MREMAP_FIXED (and MREMAP_DONTUNMAP).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    addr: Ptr,
    old: usize,
    new: usize,
    flags: c_int,
    new_addr: Ptr,
) -> Ptr {
    let (addr, to) = (addr as usize, new_addr as usize);
    let flags_word = flags as usize;
    let pass = || raw(libc::SYS_mremap, [addr, old, new, flags_word, to, 0]);
    c_result(match gate::arena() {
        Some(arena) => {
            let inside =
                |start: usize, len: usize| rules::cut(start, len.max(1), arena)[1].1 == len.max(1);
            let fixed = flags & libc::MREMAP_FIXED != 0;
            match (inside(addr, old), fixed && inside(to, new)) {
                (true, _) => gate::request(Op::Remap, [addr, old, new, flags_word, to, 0]),
                // Foreign memory moved over managed memory by force.
                (false, true) => {
                    gate::request(Op::Leave, [to, new, 0, 0, 0, 0]).and_then(|_| pass())
                }
                (false, false) => pass(),
            }
        }
        _ => pass(),
    }) as Ptr
}
