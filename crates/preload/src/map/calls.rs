//! Calls by number: what of those on memory concerns managed memory goes to the service.

use super::{futex, locks, rare, rules};
use crate::sys::{self, PAGE};
use crate::{DOOR, brk, gate, rights};
use core::ffi::c_int;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use deckle_door::Op;
use deckle_door::request::FOREIGN;
use libc::c_long;

/// Bytes of private anonymous memory that the program has mapped before the service ran.
static EARLY: AtomicUsize = AtomicUsize::new(0);
/// From this on the service is started.
const EARLY_MAX: usize = 1 << 20;

/// The answer to a call of the program's; to one that is not on memory as [`rights`] has it.
///
/// # Errors
/// The errno of the call.
pub fn answer(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    let [a, b, c, d, e, _] = args;
    match number {
        libc::SYS_mmap => map(args),
        libc::SYS_munmap => unmap(a, b),
        libc::SYS_mprotect if rare::hides_bytes(c) => rare::protect_by_key(number, args),
        libc::SYS_mprotect => on_range(number, [a, b, c], Op::Protect),
        libc::SYS_madvise => advise(a, b, c as c_int),
        libc::SYS_mremap => remap(args),
        libc::SYS_mlock => locks::lock(number, a, b, 0),
        libc::SYS_mlock2 => locks::lock(number, a, b, c),
        libc::SYS_munlock => locks::lock(number, a, b, 0),
        libc::SYS_mlockall => locks::lock_all(a as c_int),
        libc::SYS_munlockall => locks::unlock_all(),
        libc::SYS_brk => Ok(brk::brk(a)),
        libc::SYS_pkey_mprotect if d as c_int == -1 => answer(libc::SYS_mprotect, args),
        libc::SYS_pkey_mprotect => rare::protect_by_key(number, args),
        libc::SYS_mseal => rare::seal(args),
        libc::SYS_ioctl => rare::ioctl(args),
        libc::SYS_process_madvise => rare::advise_process(a as c_int, b, c, d as c_int, e),
        libc::SYS_futex => futex::futex(args),
        // SAFETY: the program's own call, passed on.
        _ => unsafe { rights::call(number, args) },
    }
}

/// A call on a range and with one word more, with the meaning that the kernel gives it.
fn on_range(number: c_long, args: [usize; 3], op: Op) -> Result<usize, i32> {
    let [start, len, word] = args;
    let ask = |bytes| gate::request(op, [start, bytes, word]);
    by_owner(start, len, ask, || raw(number, args))
}

/// A system call as the program made it.
pub fn raw<const N: usize>(number: c_long, args: [usize; N]) -> Result<usize, i32> {
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

fn map(args: [usize; 6]) -> Result<usize, i32> {
    let [_, len, prot, flags, _, offset] = args;
    let (prot, flags) = (prot as c_int, flags as c_int);
    if len == 0 || !offset.is_multiple_of(PAGE) {
        return raw(libc::SYS_mmap, args);
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let managed = rules::managed(prot, flags) && !rare::hides_bytes(prot as usize);
    if managed && flags & libc::MAP_FIXED == 0 && gate::is_small() {
        let early = EARLY.fetch_add(len, Relaxed).saturating_add(len);
        if early >= EARLY_MAX {
            gate::outgrown();
        }
    }
    match (managed, fixed) {
        _ if !gate::is_managed() => raw(libc::SYS_mmap, args),
        (true, false) if is_left(len, prot, flags) => raw(libc::SYS_mmap, args),
        (true, _) => map_managed(args),
        (false, true) => map_foreign(args),
        (false, false) => raw(libc::SYS_mmap, args),
    }
}

/// Whether a mapping of so many bytes stays the kernel's while usage is low: the service looks for
/// no smaller ones later, and has room for huge pages in larger ones.
fn may_be_left(len: usize) -> bool {
    const LEAST: usize = 256 << 10;
    (LEAST..DOOR.large.load(Relaxed)).contains(&len)
}

/// Whether a new mapping stays the kernel's, as blocks of malloc do.
fn is_left(len: usize, prot: c_int, flags: c_int) -> bool {
    let is_plain = prot == libc::PROT_READ | libc::PROT_WRITE
        && flags & !libc::MAP_STACK == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let is_small = is_plain && may_be_left(len) && !locks::is_future();
    is_small && (DOOR.take_room((len / PAGE) as u64) || may_leave(len))
}

/// Whether the service leaves a mapping to the kernel that is about to be made.
fn may_leave(len: usize) -> bool {
    const NEW: usize = 3;
    DOOR.far.load(Relaxed) && gate::request(Op::Cover, [0, len, NEW]) == Ok(1)
}

fn unmap(addr: usize, len: usize) -> Result<usize, i32> {
    let is_left = may_be_left(len) && !gate::may_hold(addr, len);
    let done = on_range(libc::SYS_munmap, [addr, len, 0], Op::Unmap);
    if done.is_ok() && is_left {
        DOOR.give_room((len / PAGE) as u64);
    }
    done
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
    if !addr.is_multiple_of(PAGE) || !gate::holds(addr, len) {
        return pass();
    }
    let bytes = rules::pages(len)?;
    // What the kernel refuses changes nothing: tried elsewhere first.
    let mut trial = args;
    trial[0] = 0;
    trial[3] &= !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED) as usize;
    let place = raw(libc::SYS_mmap, trial)?;
    raw(libc::SYS_munmap, [place, bytes])?;
    // Something foreign over managed memory, which leaves management first.
    gate::request(Op::Leave, [addr, bytes])?;
    pass()
}

/// madvise. What only the mighty may ask for is up to the caller's credentials, which the service
/// does not share.
pub fn advise(addr: usize, len: usize, advice: c_int) -> Result<usize, i32> {
    const SYS_ADMIN: u32 = 21;
    const HWPOISON: c_int = 100;
    const SOFT_OFFLINE: c_int = 101;
    let args = [addr, len, advice as usize];
    if matches!(advice, HWPOISON | SOFT_OFFLINE) && !sys::has_capability(SYS_ADMIN) {
        return raw(libc::SYS_madvise, args);
    }
    if advice == libc::MADV_FREE && DOOR.far.load(Relaxed) && locks::none() {
        // The kernel may take these pages when it needs them; the manager does not, and may have to
        // store them once. Allocators that ask for it do so at each turn.
        return raw(libc::SYS_madvise, args);
    }
    match advice {
        libc::MADV_PAGEOUT | libc::MADV_COLD if len > 0 => take_left(addr, len),
        // The kernel keeps these with the mapping: beside an adoption the service must make the
        // call, or it would not know of it.
        libc::MADV_DONTFORK..=libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK
            if addr.is_multiple_of(PAGE) && len > 0 && adopts() =>
        {
            let bytes = rules::pages(len).map_err(|_| libc::EINVAL)?;
            return gate::request(Op::Advise, [addr, bytes, advice as usize]);
        }
        _ => {}
    }
    on_range(libc::SYS_madvise, args, Op::Advise)
}

/// Whether the service adopts memory that was mapped unseen.
fn adopts() -> bool {
    gate::is_managed() && DOOR.adopts.load(Acquire)
}

/// Has unseen memory adopted that a call is about: the service can only evict managed memory.
fn take_left(addr: usize, len: usize) {
    if adopts() && !gate::holds(addr, len) {
        let _ = gate::request(Op::Adopt, [1]);
    }
}

/// Has unseen memory of a range adopted that is about to be locked, touched or not: what the kernel
/// has locked cannot be.
pub fn cover(addr: usize, len: usize) {
    const RANGE: usize = 2;
    let is_range = addr.checked_add(len).is_some_and(|end| end < 1 << 47);
    if is_range && adopts() {
        let _ = gate::request(Op::Cover, [addr, len, RANGE]);
    }
}

/// mremap. The new address counts only with MREMAP_FIXED (and MREMAP_DONTUNMAP).
fn remap(args: [usize; 6]) -> Result<usize, i32> {
    let [addr, old, new, flags, to, _] = args;
    let fixed = flags as c_int & libc::MREMAP_FIXED != 0;
    let may_hold = gate::may_hold(addr, old) || fixed && gate::may_hold(to, new);
    match may_hold.then(|| gate::request(Op::Remap, args)) {
        None | Some(Err(FOREIGN)) => raw(libc::SYS_mremap, args),
        Some(result) => result,
    }
}
