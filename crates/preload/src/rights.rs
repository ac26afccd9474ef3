//! Calls by which a program takes rights from itself: a filter, another root, namespaces, no
//! descriptors.
//!
//! What deckle needs later is made sure before. A program that may soon be unable to become
//! managed is managed now; and one that may soon be unable to connect keeps a connection to
//! `deckle run`, the *well*: a descriptor with a high number, by which its children get theirs.

use crate::{DOOR, config, filter, fork, gate, limits, sys};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicI32, AtomicU64};
use deckle_door::entry::{NOTHING, Told};
use deckle_door::link::Link;
use deckle_sys::Fd;
use libc::{c_long, sock_fprog};

/// The well's descriptor, and which socket that was: the program may have closed it.
static WELL: AtomicI32 = AtomicI32::new(-1);
static SOCKET: AtomicU64 = AtomicU64::new(0);
/// Its least number, if there is room.
const HIGH: usize = 800;

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
    // SAFETY: it names the well, which this library has made; who calls this gives the number back
    // before it drops anything.
    there.then(|| Link::of(unsafe { Fd::own(fd) }))
}

/// A connection for a service; `None`: there is none to be had. Of the well, if there is one: it
/// is in reach wherever the program is.
pub fn connection() -> Option<Link> {
    if !filter::lets_us_talk() {
        return None;
    }
    if let Some(well) = well() {
        let spare = with_room_for_files(|| well.spare());
        // It stays.
        well.into_raw();
        if let Ok(spare) = spare {
            return Some(Link::of(spare));
        }
    }
    filter::lets_us_connect().then(connect).flatten()
}

/// Starts a service, with a connection of the well if there is one.
pub fn with_link<T>(start: impl FnOnce() -> T) -> T {
    let there = well().map(Link::into_raw).is_some();
    let link = there.then(connection).flatten();
    let raw = link.as_ref().map_or(-1, |link| link.fd().raw());
    DOOR.link.store(raw, Release);
    start()
}

/// Runs `work` with a limit on descriptors that lets one come in, if it can be had.
fn with_room_for_files<T>(work: impl FnOnce() -> T) -> T {
    let limit = |new| sys::limit(libc::RLIMIT_NOFILE as usize, new);
    let high = HIGH as u64;
    let before = limit(None).ok().filter(|before| before[0] < high);
    let raised = before.filter(|before| limit(Some([high, before[1].max(high)])).is_ok());
    let result = work();
    if raised.is_some() {
        let _ = limit(raised);
    }
    result
}

fn connect() -> Option<Link> {
    Link::connect(config::group_name()?).ok()
}

/// Before a call that takes rights: what will be needed is there. `start`: a service could not be
/// started after it.
pub fn provide(start: bool) {
    // A child of vfork is in its parent's memory.
    if !config::is_managed() || !sys::is_owner() {
        return;
    }
    if start && !gate::is_started() {
        gate::outgrown();
    }
    sys::alone(&fork::FORKING, || {
        if well().map(Link::into_raw).is_some() {
            return;
        }
        if let Some(link) = filter::lets_us_connect().then(connect).flatten() {
            // By the device alone a service is made that may not make the call.
            if !link.ask().is_ok_and(|given| given.device.is_some()) {
                WITHOUT_DEVICE.store(1, Release);
            }
            keep(link);
        }
    });
}

/// Has `deckle run` hold on to who executes a program that needs the second door: whether who does
/// is `filtered`, and whether it is a `child` that the calling thread makes. False: it cannot.
#[inline(never)]
pub fn announce(filtered: bool, child: bool) -> bool {
    let link = filter::lets_the_second_door_in().then(connection).flatten();
    link.is_some_and(|link| link.announce(sys::gettid(), [filtered, child], &told()) == Ok(true))
}

/// What an executed program is told.
pub fn told() -> Told {
    let mut told = NOTHING;
    if let Some(well) = well().map(Link::into_raw) {
        (told[0], told[1]) = (well as u64, SOCKET.load(Acquire));
        // Who closes all descriptors at its exec did not mean this one.
        let stay = [well as usize, libc::F_SETFD as usize, 0, 0, 0, 0];
        // SAFETY: a flag of a descriptor of ours.
        let _ = DOOR.may(libc::SYS_fcntl) && unsafe { sys::call(libc::SYS_fcntl, stay) }.is_ok();
    }
    told[2..10].copy_from_slice(&DOOR.refused());
    told[10..].copy_from_slice(limits::told().as_flattened());
    told
}

/// At the start of a program: takes over what it is told.
pub fn take(told: &Told) {
    WELL.store(told[0] as i32, Release);
    SOCKET.store(told[1], Release);
    for (word, bits) in (0..8).zip(&told[2..10]) {
        let refused = (0..64).filter(|bit| bits >> bit & 1 == 1);
        refused.for_each(|bit| DOOR.refuse(64 * word + bit));
    }
    limits::take(&told[10..]);
}

/// Makes a connection the well. Executed programs have it, too.
fn keep(link: Link) {
    let args = [link.fd().raw() as usize, libc::F_DUPFD as usize, HIGH];
    // SAFETY: makes a descriptor.
    let high = unsafe { sys::call(libc::SYS_fcntl, args) };
    let fd = high.map_or_else(|_| link.into_raw(), |high| high as i32);
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

const PR_SET_VMA: i32 = 0x5356_4d41;

/// The calls that take rights, and those on limits, by number; any other as it is.
///
/// # Errors
/// The errno of the call.
///
/// # Safety
/// As the call.
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, i32> {
    let is = |place: usize, value: i32| args[place] as i32 == value;
    // Where the kernel finds a filter; the strict mode has none.
    let mut program = core::ptr::null::<sock_fprog>();
    match number {
        libc::SYS_prctl if is(0, libc::PR_SET_SECCOMP) => {
            provide(true);
            if is(1, libc::SECCOMP_MODE_FILTER as i32) {
                program = args[2] as *const sock_fprog;
            }
        }
        // The first door's heap gives names to its memory, which are of no use to anybody.
        libc::SYS_prctl if is(0, PR_SET_VMA) && !DOOR.may(number) => return Err(libc::EINVAL),
        libc::SYS_seccomp if args[0] as u32 <= libc::SECCOMP_SET_MODE_FILTER => {
            provide(true);
            program = args[2] as *const sock_fprog;
        }
        // The first task in a new PID namespace must not be a service.
        libc::SYS_unshare => provide(args[0] as i32 & libc::CLONE_NEWPID != 0),
        libc::SYS_setns => provide(true),
        libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_landlock_restrict_self => {
            provide(false);
        }
        libc::SYS_close_range => return close_range(args),
        libc::SYS_prlimit64 | libc::SYS_setrlimit | libc::SYS_getrlimit => {
            // SAFETY: the caller's promise.
            return unsafe { limits::call(number, args) };
        }
        _ => {}
    }
    // That of a child of vfork is not the memory's.
    let is_ours = !program.is_null() && sys::is_owner();
    // SAFETY: the caller's promise.
    let result = unsafe { sys::call(number, args) };
    if result.is_ok() && is_ours {
        // SAFETY: the kernel has accepted it.
        unsafe { filter::read(program) };
    }
    result
}

/// close_range, which means all descriptors that its caller knows of.
fn close_range(args: [usize; 6]) -> Result<usize, i32> {
    let [first, last, flags, ..] = args.map(|word| word as u32);
    // SAFETY: the program's own descriptors.
    let close = |first: u32, last: u32| unsafe {
        let all = [first as usize, last as usize, args[2], 0, 0, 0];
        sys::call(libc::SYS_close_range, all)
    };
    let well = well().map(|well| well.into_raw() as u32);
    let is_meant = |well: &u32| (first..=last).contains(well) && flags & CLOSE_RANGE_CLOEXEC == 0;
    let Some(well) = well.filter(is_meant) else {
        return close(first, last);
    };
    for (first, last) in [(first, well - 1), (well + 1, last)] {
        if first <= last {
            close(first, last)?;
        }
    }
    Ok(0)
}

const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// Before a limit on descriptors, soft and hard, is set.
pub fn limit_files([soft, hard]: [u64; 2]) {
    /// More than a service has.
    const MOST: u64 = 64;
    if soft < MOST {
        provide(hard < MOST);
    }
}
