//! Calls by which a program takes rights from itself: a filter, another root, namespaces, no
//! descriptors.
//!
//! What deckle needs later is made sure before. A program that may soon be unable to become
//! managed is managed now; and one that may soon be unable to connect keeps a connection to
//! `deckle run`, the *well*: a descriptor with a high number, by which its children get theirs.

use crate::{DOOR, config, filter, fork, gate, host, sys};
use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicI32, AtomicU64};
use deckle_door::request::set_mask;
use deckle_group::Name;
use deckle_group::proto::Link;
use deckle_group::sys::Fd;
use libc::{c_long, sock_fprog};

/// The well's descriptor, and which socket that was: the program may have closed it.
static WELL: AtomicI32 = AtomicI32::new(-1);
static SOCKET: AtomicU64 = AtomicU64::new(0);
/// Its least number, if there is room.
const HIGH: usize = 800;
/// Tells an executed program of the well, and of what filters refuse: numbers in hexadecimal.
pub const VARIABLE: &[u8] = b"DECKLE_WELL=";

/// Which file a descriptor is.
fn identity(fd: i32) -> Option<u64> {
    // SAFETY: plain data, for which zeros are a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let (path, to) = (c"".as_ptr() as usize, &raw mut stat as usize);
    let args = [fd as usize, path, to, libc::AT_EMPTY_PATH as usize, 0, 0];
    // SAFETY: writes one structure.
    let told =
        DOOR.may(libc::SYS_newfstatat) && unsafe { sys::call(libc::SYS_newfstatat, args) }.is_ok();
    told.then_some(stat.st_dev << 32 ^ stat.st_ino)
}

/// The well, if there is one still.
fn well() -> Option<Link> {
    let fd = WELL.load(Acquire);
    let there = fd >= 0 && identity(fd) == Some(SOCKET.load(Acquire));
    there.then(|| Link::of(Fd::own(fd)))
}

/// A connection for a service; `None`: there is none to be had. Of the well, if there is one: it
/// is in reach wherever the program is.
pub fn connection() -> Option<Link> {
    if let Some(well) = well() {
        let spare = with_room_for_files(|| well.spare());
        // It stays.
        well.into_raw();
        if let Ok(spare) = spare {
            return Some(Link::of(spare));
        }
    }
    let may = DOOR.may(libc::SYS_socket) && DOOR.may(libc::SYS_connect);
    may.then(connect).flatten()
}

/// Starts a service, with a connection of the well if there is one.
pub fn with_link<T>(start: impl FnOnce() -> T) -> T {
    let there = host::quietly(|| well().map(Link::into_raw)).is_some();
    let link = there.then(host::Link::open).flatten();
    DOOR.link
        .store(link.as_ref().map_or(-1, host::Link::raw), Release);
    start()
}

/// Runs `work` with a limit on descriptors that lets one come in, if it can be had.
fn with_room_for_files<T>(work: impl FnOnce() -> T) -> T {
    let limit = |new: *const libc::rlimit, old: *mut libc::rlimit| {
        let what = libc::RLIMIT_NOFILE as usize;
        // SAFETY: null, or a structure each.
        unsafe {
            sys::call(
                libc::SYS_prlimit64,
                [0, what, new as usize, old as usize, 0, 0],
            )
        }
    };
    // SAFETY: plain data, for which zeros are a value.
    let mut before: libc::rlimit = unsafe { core::mem::zeroed() };
    let may = DOOR.may(libc::SYS_prlimit64) && limit(core::ptr::null(), &raw mut before).is_ok();
    let high = HIGH as u64;
    let raised = libc::rlimit {
        rlim_cur: high,
        rlim_max: before.rlim_max.max(high),
    };
    let none = core::ptr::null_mut();
    let raises = may && before.rlim_cur < high && limit(&raw const raised, none).is_ok();
    let result = work();
    if raises {
        let _ = limit(&raw const before, none);
    }
    result
}

fn connect() -> Option<Link> {
    let name = config::group_name().and_then(|name| Name::new(name).ok())?;
    Link::connect(name).ok()
}

/// Before a call that takes rights: what will be needed is there. `start`: a service could not be
/// started after it.
pub fn provide(start: bool) {
    // A child of vfork is in its parent's memory.
    if !config::is_managed() || DOOR.pid.load(Acquire) != sys::getpid() as i32 {
        return;
    }
    if start && !gate::is_started() {
        gate::outgrown();
    }
    let mask = set_mask(u64::MAX);
    fork::FORKING.acquire();
    match well() {
        Some(well) => {
            well.into_raw();
        }
        None => host::quietly(|| {
            if let Some(link) = connect() {
                // By the device alone a service is made that may not make the call.
                if !link.ask().is_ok_and(|given| given.device.is_some()) {
                    WITHOUT_DEVICE.store(1, Release);
                }
                keep(link.into_raw());
            }
        }),
    }
    fork::FORKING.release();
    set_mask(mask);
}

/// [`VARIABLE`] with its value.
pub struct Entry([u8; 192]);

impl Entry {
    /// `None`: there is nothing to tell.
    pub fn new() -> Option<Entry> {
        let well = WELL.load(Acquire);
        if well < 0 {
            return None;
        }
        let mut text = [0; 192];
        text[..VARIABLE.len()].copy_from_slice(VARIABLE);
        let numbers = [well as u64, SOCKET.load(Acquire)];
        let all = numbers.into_iter().chain(DOOR.refused());
        for (n, number) in all.enumerate() {
            for digit in 0..16 {
                let value = number >> (60 - 4 * digit) & 15;
                text[VARIABLE.len() + 17 * n + digit] = b"0123456789abcdef"[value as usize];
            }
            text[VARIABLE.len() + 17 * n + 16] = b':';
        }
        Some(Entry(text))
    }

    /// A string.
    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// Takes over what [`VARIABLE`] tells.
pub fn inherit(text: &[u8]) {
    let mut numbers = text.split(|b| *b == b':').map(|digits| {
        let digits = core::str::from_utf8(digits).unwrap_or("");
        u64::from_str_radix(digits, 16).unwrap_or(0)
    });
    let (well, socket) = (numbers.next(), numbers.next());
    SOCKET.store(socket.unwrap_or(0), Release);
    WELL.store(well.unwrap_or(0) as i32, Release);
    for (word, bits) in (0..8).zip(numbers) {
        let refused = (0..64).filter(|bit| bits >> bit & 1 == 1);
        refused.for_each(|bit| DOOR.refuse(64 * word + bit));
    }
}

/// Makes a connection the well. Executed programs have it, too.
fn keep(fd: i32) {
    let high = [fd as usize, libc::F_DUPFD as usize, HIGH, 0, 0, 0];
    // SAFETY: makes a descriptor; closes our own.
    let fd = unsafe {
        match sys::call(libc::SYS_fcntl, high) {
            Ok(high) => {
                let _ = sys::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
                high as i32
            }
            Err(_) => fd,
        }
    };
    SOCKET.store(identity(fd).unwrap_or(0), Release);
    WELL.store(fd, Release);
}

/// Not 0: `deckle run` has no `/dev/userfaultfd` to give.
static WITHOUT_DEVICE: AtomicI32 = AtomicI32::new(0);

/// Why a child of this program cannot be managed whatever is done: a call that is refused.
pub fn hindrance() -> Option<c_long> {
    let device = WITHOUT_DEVICE.load(Acquire) == 0 || DOOR.may(libc::SYS_userfaultfd);
    match device {
        true => filter::hindrance(),
        false => Some(libc::SYS_userfaultfd),
    }
}

/// Makes a call that installs a filter: `program`, or the kernel's strict one.
unsafe fn with_filter(number: c_long, args: [usize; 6], program: usize) -> Result<usize, i32> {
    provide(true);
    // SAFETY: the program's own call.
    let result = unsafe { sys::call(number, args) };
    if result.is_ok() && program != 0 {
        // SAFETY: the kernel has accepted it.
        unsafe { filter::read(program as *const sock_fprog) };
    }
    result
}

/// The calls that take rights, by number.
///
/// # Safety
/// As the call.
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    let is = |place: usize, value: i32| args[place] as i32 == value;
    match number {
        libc::SYS_prctl if is(0, libc::PR_SET_SECCOMP) => {
            // SAFETY: the caller's promise.
            return unsafe { with_filter(number, args, args[2]) };
        }
        libc::SYS_seccomp if args[0] <= 1 => {
            // SAFETY: the caller's promise.
            return unsafe { with_filter(number, args, args[2]) };
        }
        // The first task in a new PID namespace must not be a service.
        libc::SYS_unshare => provide(args[0] as i32 & libc::CLONE_NEWPID != 0),
        libc::SYS_setns => provide(true),
        libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_landlock_restrict_self => {
            provide(false);
        }
        _ => {}
    }
    // SAFETY: the caller's promise.
    unsafe { sys::call(number, args) }
}

/// Before a limit on descriptors, soft and hard, is set.
pub fn limit_files((soft, hard): (u64, u64)) {
    /// More than a service has.
    const MOST: u64 = 64;
    if soft < MOST {
        provide(hard < MOST);
    }
}

unsafe fn c_call(number: c_long, args: [usize; 6]) -> c_int {
    // SAFETY: the caller's promise.
    sys::c_result(unsafe { call(number, args) }) as c_int
}

/// Linux's `prctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(what: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { c_call(libc::SYS_prctl, [what as usize, b, c, d, e, 0]) }
}

/// Linux's `chroot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    // SAFETY: the program's own call.
    unsafe { c_call(libc::SYS_chroot, [path as usize, 0, 0, 0, 0, 0]) }
}

/// Linux's `unshare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { c_call(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]) }
}

/// Linux's `setns`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { c_call(libc::SYS_setns, [fd as usize, kind as usize, 0, 0, 0, 0]) }
}
