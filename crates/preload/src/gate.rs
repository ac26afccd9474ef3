//! Whether the service runs, and starting it when the program needs it.

use crate::fork::FORKING;
use crate::{DOOR, config, host, limits, load, rights, sys};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicUsize};
use deckle_door::request::FOREIGN;
use deckle_door::{Mode, Op};
use deckle_sys::futex;

/// The program is small: its memory is the kernel's.
const SMALL: u32 = 0;
/// It is managed by nobody and stays so: not under `deckle run`.
const PLAIN: u32 = 1;
/// A thread is starting the service.
const STARTING: u32 = 2;
/// The service runs.
const MANAGED: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(SMALL);
/// Thread id of who is starting the service.
static STARTER: AtomicU32 = AtomicU32::new(0);

/// Whether the program is small still: its memory is the kernel's as it has not outgrown its first
/// megabyte, or the caller is just starting the service.
#[inline]
pub fn is_small() -> bool {
    match STATE.load(Acquire) {
        MANAGED | PLAIN => false,
        SMALL => true,
        _ => STARTER.load(Relaxed) == sys::gettid(),
    }
}

/// Whether the program has outgrown its first megabyte.
pub fn is_started() -> bool {
    STATE.load(Relaxed) != SMALL
}

/// Whether the service runs. Waits while another thread is starting it.
#[inline]
pub fn is_managed() -> bool {
    loop {
        match STATE.load(Acquire) {
            MANAGED => return !is_unheard(),
            STARTING if STARTER.load(Relaxed) != sys::gettid() => {
                futex::wait(&STATE, STARTING, None);
            }
            _ => return false,
        }
    }
}

/// Whether there may be managed memory in a range.
#[inline]
pub fn may_hold(start: usize, bytes: usize) -> bool {
    is_managed() && DOOR.places.may_hold(start, bytes)
}

/// Asks the service.
///
/// # Errors
/// The errno that the call shall fail with.
pub fn request<const N: usize>(op: Op, args: [usize; N]) -> Result<usize, i32> {
    let result = DOOR.requests.ask(op, sys::words(args));
    if limits::is_raised() && !matches!(op, Op::ForkBegin | Op::ForkEnd | Op::ForkLook | Op::Limit)
    {
        limits::follow();
    }
    result
}

/// Keeps the pages of a range resident, if they are managed or come to be: the kernel touches them
/// where it cannot wait for a fault.
pub fn hold(start: usize, bytes: usize) {
    note_held(start, bytes);
    if may_hold(start, bytes) {
        let _ = request(Op::Hold, pages(start, bytes));
    }
}

/// Notes that of what no call of the program's that is seen has mapped: it may come to be managed.
/// Whether any of it is new.
pub fn note_held(start: usize, bytes: usize) -> bool {
    let [first, bytes] = pages(start, bytes);
    let all = (first..first + bytes).step_by(sys::PAGE);
    all.fold(false, |is_new, page| DOOR.held.note(page) | is_new)
}

/// Whether there is managed memory in a range.
pub fn holds(start: usize, bytes: usize) -> bool {
    may_hold(start, bytes) && request(Op::Look, pages(start, bytes)) != Err(FOREIGN)
}

/// The whole pages of a range that is not empty: where they begin, and their bytes.
fn pages(start: usize, bytes: usize) -> [usize; 2] {
    let [first, last] = [start, start + (bytes - 1)].map(|at| at & !(sys::PAGE - 1));
    [first, last - first + sys::PAGE]
}

/// A page that the kernel empties in every child that is a copy; 0: there is none.
static COPIED: AtomicUsize = AtomicUsize::new(0);

/// Makes sure that a child of which nobody has heard (made by an instruction of the program's
/// own) knows: it has no service, and would wait for its answers for ever.
fn note_start() {
    let Ok(page) = sys::map_anonymous(0, sys::PAGE) else {
        return;
    };
    let wipe = [page, sys::PAGE, libc::MADV_WIPEONFORK as usize];
    // SAFETY: our own new page.
    if unsafe { sys::call(libc::SYS_madvise, wipe) }.is_ok() {
        COPIED.store(page, Release);
        note_child();
    }
}

/// In a child that was heard of, before its service starts.
pub fn note_child() {
    let page = COPIED.load(Acquire);
    if page != 0 {
        // SAFETY: our own page, of which this is the only word in use.
        unsafe { AtomicU32::from_ptr(page as *mut u32) }.store(1, Release);
    }
}

fn is_unheard() -> bool {
    let page = COPIED.load(Relaxed);
    // SAFETY: as above.
    page != 0 && unsafe { AtomicU32::from_ptr(page as *mut u32) }.load(Acquire) == 0
}

/// In a child of fork that gets no service: its memory is the kernel's.
pub fn be_plain() {
    STATE.store(PLAIN, Release);
}

/// The program needs more than a small one may have: starts the service, once. If it cannot be
/// managed although it should be, it runs outside of the limit, and that is told.
#[cold]
pub fn outgrown() {
    if DOOR.left.load(Relaxed) == 0 && sys::gettid() as i32 != sys::getpid() as i32 {
        // The constructor of a library before ours has made a thread, which does not know the word
        // by which the service hears that the main thread leaves.
        return;
    }
    // Nobody forks meanwhile: the child would have half of a service.
    sys::alone(&FORKING, start);
}

fn start() {
    // Only who has won stores its id: until then another's is there, or none.
    if STATE
        .compare_exchange(SMALL, STARTING, Acquire, Relaxed)
        .is_err()
    {
        is_managed();
        return;
    }
    STARTER.store(sys::gettid(), Relaxed);
    let limit = config::is_managed().then(limits::lift).unwrap_or_default();
    let state = match config::is_managed().then(|| rights::with_link(|| load::start(Mode::First))) {
        Some(Ok(_)) => {
            note_start();
            MANAGED
        }
        Some(Err(why)) => {
            host::unmanaged(why);
            PLAIN
        }
        None => PLAIN,
    };
    STATE.store(state, Release);
    limits::settle(limit, state == MANAGED);
    futex::wake(&STATE, u32::MAX);
}
