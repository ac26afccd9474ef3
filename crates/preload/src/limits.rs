//! The limit on the address space (RLIMIT_AS) means what the program has mapped by itself.
//!
//! In the same memory lies what the service reserves, and the kernel counts that, too. So of a
//! managed program the kernel's limit is higher than its own, by as much; the service refuses
//! calls that would take the program over its own; and the program reads back what it has set.
//! Programs that it executes have its own limit: the soft one is put in force before the call,
//! and the hard one, which could not be raised again if that fails, by the next program's library,
//! to which [`VARIABLE`] tells both.

use crate::{DOOR, gate, rights, sys};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use deckle_door::request::set_mask;
use deckle_door::{Lock, Op};

/// Tells an executed program both limits, in hexadecimal.
pub const VARIABLE: &[u8] = b"DECKLE_LIMIT=";
/// The service may grow so much before the kernel's limit follows.
const SLACK: u64 = 16 << 20;
/// The same for the hard limit, which can be raised but by the mighty.
const HARD_SLACK: u64 = 64 << 30;
const NONE: u64 = libc::RLIM_INFINITY;

/// Soft and hard limit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Limit(u64, u64);

/// The program's own limit, if the kernel has another.
static OWN: [AtomicU64; 2] = [const { AtomicU64::new(NONE) }; 2];
/// What the kernel has been told instead.
static RAISED: [AtomicU64; 2] = [const { AtomicU64::new(NONE) }; 2];
/// What was reserved when the kernel was told.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// Of who changes them.
static CHANGING: Lock<()> = Lock::new(());

fn load(words: &[AtomicU64; 2]) -> Limit {
    Limit(words[0].load(Acquire), words[1].load(Acquire))
}

fn store(words: &[AtomicU64; 2], limit: Limit) {
    words[0].store(limit.0, Release);
    words[1].store(limit.1, Release);
}

/// Whether the kernel has another limit than the program.
#[inline]
pub fn is_raised() -> bool {
    OWN[0].load(Relaxed) != NONE || OWN[1].load(Relaxed) != NONE
}

/// The kernel's limit, and a new one in its place.
fn kernel(new: Option<Limit>) -> Result<Limit, i32> {
    kernel_of(libc::RLIMIT_AS, new)
}

fn kernel_of(what: libc::__rlimit_resource_t, new: Option<Limit>) -> Result<Limit, i32> {
    if !DOOR.may(libc::SYS_prlimit64) {
        return Err(libc::EPERM);
    }
    let mut old = Limit(NONE, NONE);
    let to = [new.unwrap_or(old)].map(|l| [l.0, l.1]);
    let mut from = [0_u64; 2];
    let new_at = new.map_or(0, |_| to.as_ptr() as usize);
    let args = [0, what as usize, new_at, from.as_mut_ptr() as usize, 0, 0];
    // SAFETY: reads and writes two words each.
    unsafe { sys::call(libc::SYS_prlimit64, args) }?;
    (old.0, old.1) = (from[0], from[1]);
    Ok(old)
}

/// Whether this process is the one that the memory belongs to, not a vfork child in it.
fn is_owner() -> bool {
    DOOR.pid.load(Relaxed) == sys::getpid() as i32
}

fn is_mighty() -> bool {
    const SYS_RESOURCE: u32 = 24;
    sys::has_capability(SYS_RESOURCE)
}

/// Runs `work` as the only one; no handler comes meanwhile.
fn alone<T>(work: impl FnOnce() -> T) -> T {
    let mask = set_mask(u64::MAX);
    let held = CHANGING.lock();
    let result = work();
    drop(held);
    set_mask(mask);
    result
}

/// The program's limit. If somebody else has changed what the kernel has, that is the program's.
fn get() -> Result<Limit, i32> {
    let now = kernel(None)?;
    Ok(match is_raised() && now == load(&RAISED) {
        true => load(&OWN),
        false => now,
    })
}

/// The kernel's limit for one of the program's; `most`: the hard limit that the kernel has.
fn raised(own: Limit, most: u64) -> Limit {
    let reserved = DOOR.reserved.load(Relaxed);
    RESERVED.store(reserved, Relaxed);
    let add = |limit: u64, slack: u64| match limit {
        NONE => NONE,
        limit => limit.saturating_add(reserved as u64).saturating_add(slack),
    };
    let hard = match is_mighty() {
        true => add(own.1, HARD_SLACK),
        false => add(own.1, HARD_SLACK).min(most),
    };
    let soft = match own.0 {
        NONE => hard,
        // No whole number of pages, and so none that anybody else would set: see `get`.
        own => (add(own, SLACK) | 1).min(hard.saturating_sub(1)),
    };
    Limit(soft, hard)
}

/// Puts a limit of the program's in force. Its kernel's rules are kept by the caller.
fn apply(own: Limit) -> Result<(), i32> {
    if gate::is_managed() {
        let reserved = gate::request(Op::Limit, [0; 6])?;
        DOOR.reserved.store(reserved, Relaxed);
    }
    let new = raised(own, kernel(None)?.1);
    kernel(Some(new))?;
    store(&RAISED, new);
    store(&OWN, own);
    DOOR.limit.store(own.0 as usize, Release);
    Ok(())
}

fn set(new: Limit) -> Result<(), i32> {
    // A child that is still in its parent's memory has limits of its own.
    if !gate::is_managed() && !is_raised() || !is_owner() {
        return kernel(Some(new)).map(drop);
    }
    alone(|| {
        let own = get()?;
        if new.0 > new.1 {
            return Err(libc::EINVAL);
        }
        if new.1 > own.1 && !is_mighty() {
            return Err(libc::EPERM);
        }
        apply(new)
    })
}

/// After a call that may have changed what is reserved: the kernel's soft limit follows.
#[cold]
pub fn follow() {
    if DOOR.reserved.load(Relaxed) == RESERVED.load(Relaxed) || !is_owner() {
        return;
    }
    alone(|| {
        let (own, before) = (load(&OWN), load(&RAISED));
        let new = Limit(raised(own, before.1).0.min(before.1), before.1);
        // Not if somebody else has changed it: `get` shall see that.
        if new != before && kernel(None) == Ok(before) && kernel(Some(new)).is_ok() {
            store(&RAISED, new);
        }
    });
}

/// Before a fork: a child does not find the limits changing.
pub fn hold() {
    CHANGING.acquire();
}

/// After it, on both sides.
pub fn let_go() {
    CHANGING.release();
}

/// Makes room for the service, as far as the hard limit allows. The program's own limit.
pub fn lift() -> Option<(u64, u64)> {
    let own = kernel(None).ok().filter(|own| own.0 != NONE)?;
    if !is_mighty() || kernel(Some(Limit(NONE, NONE))).is_err() {
        let _ = kernel(Some(Limit(own.1, own.1)));
    }
    Some((own.0, own.1))
}

/// After [`lift`]: the service runs, or will not.
pub fn settle(own: Option<(u64, u64)>, runs: bool) {
    let Some(own) = own.map(|(soft, hard)| Limit(soft, hard)) else {
        return;
    };
    if !runs || alone(|| apply(own)).is_err() {
        let _ = kernel(Some(own));
    }
}

/// Calls what executes a program, with the program's own soft limit in force.
pub fn for_exec<T>(exec: impl FnOnce() -> T) -> T {
    if !is_raised() {
        return exec();
    }
    let before = kernel(None).ok().filter(|now| *now == load(&RAISED));
    if let Some(before) = before {
        let _ = kernel(Some(Limit(load(&OWN).0.min(before.0), before.1)));
    }
    let result = exec();
    if let Some(before) = before {
        let errno = sys::errno();
        let _ = kernel(Some(before));
        sys::set_errno(errno);
    }
    result
}

/// The entry of the environment for an executed program.
pub struct Entry([u8; 64]);

impl Entry {
    /// `None`: the kernel's limit is the program's.
    pub fn new() -> Option<Entry> {
        if !is_raised() {
            return None;
        }
        let Ok(Limit(soft, hard)) = get() else {
            return None;
        };
        let mut text = [0; 64];
        text[..VARIABLE.len()].copy_from_slice(VARIABLE);
        let mut at = VARIABLE.len();
        for (number, end) in [(soft, b':'), (hard, 0)] {
            for digit in (0..16).rev() {
                text[at] = b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15];
                at += 1;
            }
            text[at] = end;
            at += 1;
        }
        Some(Entry(text))
    }

    /// A string.
    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// At the start of a program: what who has executed it tells is put in force, and taken out of
/// the environment, where it would grow old.
///
/// # Safety
/// Nobody else uses the environment.
pub unsafe fn read() {
    unsafe extern "C" {
        static mut environ: *mut *const c_char;
    }
    let mut said = None;
    // SAFETY: null, or pointers to strings up to a null one, in memory of the process's own; the
    // caller's promise.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while !from.is_null() && !(*from).is_null() {
            let entry = CStr::from_ptr(*from).to_bytes();
            if let Some(text) = entry.strip_prefix(VARIABLE) {
                said = parse(text).or(said);
            } else if let Some(text) = entry.strip_prefix(rights::VARIABLE) {
                rights::inherit(text);
            } else {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        if from != to {
            *to = core::ptr::null();
        }
    }
    if let (Some(said), Ok(now)) = (said, kernel(None)) {
        // It can only be less than what the kernel has.
        let _ = kernel(Some(Limit(said.0.min(now.1), said.1.min(now.1))));
    }
}

fn parse(text: &[u8]) -> Option<Limit> {
    let (soft, hard) = core::str::from_utf8(text).ok()?.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Limit(number(soft)?, number(hard)?))
}

/// The program's own limit on data, and what the kernel has been told instead.
static DATA: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(NONE) }; 2] }; 2];

/// The limit on data (RLIMIT_DATA), in which the kernel counts what the service reserves, too: the
/// kernel's is higher by that, and by some more. The one before.
fn data(new: Option<Limit>) -> Result<Limit, i32> {
    const MORE: u64 = 1 << 30;
    if new.is_some_and(|new| new.0 != NONE) {
        // What it reserves is known.
        rights::provide(true);
    }
    let ours = gate::is_managed() && is_owner();
    let reserved = match new {
        Some(_) if ours => gate::request(Op::Limit, [0; 6])? as u64 + MORE,
        _ => 0,
    };
    alone(|| {
        let now = kernel_of(libc::RLIMIT_DATA, None)?;
        let raised = now == load(&DATA[1]) && now.0 != NONE;
        let before = if raised { load(&DATA[0]) } else { now };
        let Some(new) = new else { return Ok(before) };
        let mighty = is_mighty();
        if new.0 > new.1 {
            return Err(libc::EINVAL);
        }
        if new.1 > before.1 && !mighty {
            return Err(libc::EPERM);
        }
        let most = if mighty { NONE } else { now.1 };
        let hard = new.1.saturating_add(reserved).min(most);
        let to = Limit(new.0.saturating_add(reserved).min(hard), hard);
        kernel_of(libc::RLIMIT_DATA, Some(to))?;
        store(&DATA[0], new);
        store(&DATA[1], to);
        Ok(before)
    })
}

/// prlimit64, of whatever process and whatever limit.
///
/// # Safety
/// Null, or a readable and a writable structure.
unsafe fn any(
    pid: libc::pid_t,
    what: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> Result<usize, i32> {
    let own = pid == 0 || pid == sys::getpid() as libc::pid_t;
    if what == libc::RLIMIT_NOFILE as c_int && own && !new.is_null() {
        // SAFETY: the caller's promise.
        rights::limit_files(unsafe { ((*new).rlim_cur, (*new).rlim_max) });
    }
    let ours = [libc::RLIMIT_AS, libc::RLIMIT_DATA].map(|ours| ours as c_int);
    if !ours.contains(&what) || !own {
        let args = [
            pid as usize,
            what as usize,
            new as usize,
            old as usize,
            0,
            0,
        ];
        // SAFETY: the caller's promise.
        return unsafe { sys::call(libc::SYS_prlimit64, args) };
    }
    // The old one is told also where both are the same structure: read first.
    // SAFETY: the caller's promise.
    let wanted = (!new.is_null()).then(|| unsafe { Limit((*new).rlim_cur, (*new).rlim_max) });
    let before = match is_raised() && is_owner() {
        _ if what == libc::RLIMIT_DATA as c_int => data(wanted)?,
        true => alone(get)?,
        false => get()?,
    };
    if let Some(wanted) = wanted.filter(|_| what == libc::RLIMIT_AS as c_int) {
        set(wanted)?;
    }
    if !old.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            old.write(libc::rlimit {
                rlim_cur: before.0,
                rlim_max: before.1,
            });
        }
    }
    Ok(0)
}

/// Linux's `prlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    what: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's promise.
    sys::c_result(unsafe { any(pid, what, new, old) }) as c_int
}

/// The same: limits have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    what: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(pid, what, new, old) }
}

/// C's `setrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(what: c_int, new: *const libc::rlimit) -> c_int {
    if new.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { prlimit(0, what, new, core::ptr::null_mut()) }
}

/// The same: limits have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(what: c_int, new: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { setrlimit(what, new) }
}

/// C's `getrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(what: c_int, old: *mut libc::rlimit) -> c_int {
    if old.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { prlimit(0, what, core::ptr::null(), old) }
}

/// The same: limits have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(what: c_int, old: *mut libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { getrlimit(what, old) }
}
