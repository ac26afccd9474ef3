//! The mmap family, as the program calls it.

use super::{locks, rules};
use crate::gate;
use crate::sys::{self, PAGE, c_result};
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use deckle_door::Op;
use deckle_door::request::FOREIGN;
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

/// Has the service answer a call on a range (whole pages of it, in bytes, are told), if there may
/// be managed memory; a call on memory of the kernel alone is the caller's.
pub fn by_owner(
    start: usize,
    len: usize,
    ask: impl FnOnce(usize) -> Result<usize, i32>,
    alone: impl FnOnce() -> Result<usize, i32>,
) -> Result<usize, i32> {
    if len == 0 || !start.is_multiple_of(PAGE) || !gate::may_hold(start, len) {
        return alone();
    }
    match ask(len.next_multiple_of(PAGE)) {
        Err(FOREIGN) => alone(),
        result => result,
    }
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
    match (managed, fixed) {
        _ if !gate::is_managed() => raw(libc::SYS_mmap, args),
        (true, _) => map_managed(args),
        (false, true) => map_foreign(args),
        (false, false) => raw(libc::SYS_mmap, args),
    }
}

/// A mapping of managed memory.
fn map_managed(args: [usize; 6]) -> Result<usize, i32> {
    let [addr, len, prot, flags, _, _] = args;
    let bytes = rules::pages(len)?;
    let fixed = flags as c_int & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let aligned = addr.is_multiple_of(PAGE);
    if fixed && (!aligned || addr.saturating_add(bytes) > rules::END) {
        // The kernel says what is wrong.
        return raw(libc::SYS_mmap, args);
    }
    let lockable = locks::lockable_by_mmap(flags as c_int)?;
    let (op, at) = match fixed {
        true => (Op::MapFixed, addr),
        false => (Op::Map, addr & !(PAGE - 1)),
    };
    gate::request(op, [at, bytes, 0, prot, flags, lockable])
}

/// A foreign mapping at an address of the program's, perhaps over managed memory.
fn map_foreign(args: [usize; 6]) -> Result<usize, i32> {
    let [addr, len, _, flags, _, _] = args;
    let pass = || raw(libc::SYS_mmap, args);
    if flags & libc::MAP_FIXED_NOREPLACE as usize != 0 {
        return pass();
    }
    let look = |bytes| gate::request(Op::Look, [addr, bytes, 0, 0, 0, 0]).map(|_| 1);
    if by_owner(addr, len, look, || Ok(0))? == 0 {
        return pass();
    }
    let bytes = rules::pages(len)?;
    // What the kernel refuses changes nothing: tried elsewhere first.
    let mut trial = args;
    trial[0] = 0;
    trial[3] &= !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED) as usize;
    let place = raw(libc::SYS_mmap, trial)?;
    raw(libc::SYS_munmap, [place, bytes, 0, 0, 0, 0])?;
    // Something foreign over managed memory, which leaves management first.
    gate::request(Op::Leave, [addr, bytes, 0, 0, 0, 0])?;
    pass()
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
    let start = addr as usize;
    c_result(by_owner(
        start,
        len,
        |bytes| gate::request(Op::Unmap, [start, bytes, 0, 0, 0, 0]),
        || raw(libc::SYS_munmap, [start, len, 0, 0, 0, 0]),
    )) as c_int
}

/// C's `mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: Ptr, len: usize, prot: c_int) -> c_int {
    let (start, prot) = (addr as usize, prot as usize);
    c_result(by_owner(
        start,
        len,
        |bytes| gate::request(Op::Protect, [start, bytes, prot, 0, 0, 0]),
        || raw(libc::SYS_mprotect, [start, len, prot, 0, 0, 0]),
    )) as c_int
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
    by_owner(
        addr,
        len,
        |bytes| gate::request(Op::Advise, [addr, bytes, advice, 0, 0, 0]),
        || raw(libc::SYS_madvise, [addr, len, advice, 0, 0, 0]),
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
    let args = [addr, old, new, flags_word, to, 0];
    let pass = || raw(libc::SYS_mremap, args);
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let may_hold = gate::may_hold(addr, old) || fixed && gate::may_hold(to, new);
    c_result(match may_hold.then(|| gate::request(Op::Remap, args)) {
        None | Some(Err(FOREIGN)) => pass(),
        Some(result) => result,
    }) as Ptr
}
