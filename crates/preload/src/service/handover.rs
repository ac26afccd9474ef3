//! A forked child's memory, from the fork event to the child's own service.
//!
//! Until the child's service asks, its faults are served from the parent's frozen state. If
//! something goes wrong nobody answers the child's service, and the child ends itself with one
//! line, before any code of the program runs in it.

use super::Process;
use crate::lock::Lock;
use crate::sys::PAGE;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicI32};
use core::time::Duration;
use deckle_group::handover::{Listener, Ticket, give, take as ask};
use deckle_group::sys::{Errno, now, to_read};
use deckle_live::pager::{Fault, Filled};
use deckle_mm::Vpn;
use deckle_uffd::{Event, Msg, ProtectMode, Uffd, WakeMode, Why};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

/// Longest time from the fork to the child's service: it takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often it is asked whether the child lives still.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the next fork event belongs to a fork that was prepared.
static EXPECTED: AtomicBool = AtomicBool::new(false);
/// The descriptor that came with it; -1: none.
static CHILD: AtomicI32 = AtomicI32::new(-1);
/// How the child finds its parent: in the child a copy.
static TICKET: Lock<Option<Ticket>> = Lock::new(None);
static LISTENER: Lock<Option<Listener>> = Lock::new(None);

/// Room for children of forks that were not prepared.
const STRANGERS: usize = 64;
/// Their descriptors; -1: none.
static STRANGER: [AtomicI32; STRANGERS] = [const { AtomicI32::new(-1) }; STRANGERS];

/// Gets ready for a fork event.
///
/// # Errors
/// No socket to wait for the child on.
pub fn expect(process: &Process) -> Result<(), Errno> {
    let ticket = Ticket::new()?;
    let listener = Listener::new(process.account.group().name(), &ticket)?;
    *TICKET.lock() = Some(ticket);
    *LISTENER.lock() = Some(listener);
    EXPECTED.store(true, Release);
    Ok(())
}

/// There will be no fork.
pub fn expect_no_more() {
    EXPECTED.store(false, Release);
    *LISTENER.lock() = None;
}

/// A fork event was read. Called in the handler while the forking thread may hold the lock of
/// this library's heap: allocates nothing.
pub fn event(child: Uffd) {
    if EXPECTED.swap(false, AcqRel) {
        CHILD.store(child.into_raw_fd(), Release);
        return;
    }
    // What is protected for our accounts is none of its business: its writes need not wait for
    // anybody. What lies beyond a foreign mapping is dealt with fault by fault.
    if let Some(process) = super::process() {
        let arena = process.pager.platform().arena();
        let _ = child.write_protect(arena.base(), arena.len(), ProtectMode::empty());
    }
    let raw = child.into_raw_fd();
    for place in &STRANGER {
        if place.compare_exchange(-1, raw, AcqRel, Acquire).is_ok() {
            return;
        }
    }
    // Nobody will serve it: its accesses to what is away wait for ever rather than read zeros.
}

fn own(raw: i32) -> Option<Uffd> {
    // SAFETY: a descriptor that `event` gave up, taken out of its place by the caller alone.
    (raw >= 0).then(|| unsafe { Uffd::from_raw_fd(raw) })
}

/// Serves the child of the fork that was expected until its own service takes over, or it dies,
/// or the deadline passes. Returns at once if the fork has failed.
pub fn serve(process: &Process) {
    // The forking thread goes on once the event is read; that it has arrived here may take
    // the reader a moment longer.
    while CHILD.load(Acquire) < 0 && process.pager.is_reading() {
        std::thread::yield_now();
    }
    let listener = LISTENER.lock().take();
    let child = own(CHILD.swap(-1, AcqRel));
    EXPECTED.store(false, Release);
    let (Some(listener), Some(child)) = (listener, child) else {
        return;
    };
    let deadline = now() + DEADLINE;
    let mut filled = Vec::new();
    while now() < deadline {
        let mut fds = [listener.fd().raw(), child.as_raw_fd()].map(to_read);
        // SAFETY: two valid entries.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, LOOK.as_millis() as i32) };
        if fds[0].revents != 0
            && let Some(to) = listener.accept()
        {
            let _ = give(&to, child.as_raw_fd(), &filled);
            return;
        }
        if fds[1].revents != 0 && !serve_faults(process, &child, &mut filled) {
            return;
        }
        if ready == 0 && is_gone(process, &child) {
            return;
        }
    }
    let _ = process.link.say(
        format!(
            "deckle: process {}: a forked child does not start in time; it will be ended\n",
            process.pid
        )
        .as_bytes(),
    );
}

/// Serves the faults that are there; false: that cannot go on.
fn serve_faults(process: &Process, child: &Uffd, filled: &mut Vec<u64>) -> bool {
    let mut msgs = [const { Msg::empty() }; 16];
    let Ok(n) = child.read_events(&mut msgs) else {
        return true;
    };
    for msg in &mut msgs[..n] {
        let Some(Event::Pagefault {
            addr, write, wp, ..
        }) = msg.take()
        else {
            continue;
        };
        let page = Vpn::of_addr(addr as u64);
        let write = write || wp;
        match process.pager.serve_frozen(child, Fault { page, write }) {
            Ok(Filled::Yes) => filled.push(page.0),
            Ok(Filled::No) => {}
            Ok(Filled::Gone) => return false,
            Err(why) => {
                let text = format!("deckle: a forked child's fault at {addr:#x}: {why}\n");
                let _ = process.link.say(text.as_bytes());
                return false;
            }
        }
    }
    true
}

/// Whether the process of the descriptor is gone: asked by an operation on the parking range,
/// which no child inherits, so that it has no effect.
fn is_gone(process: &Process, child: &Uffd) -> bool {
    let (at, _) = process.pager.platform().parking().range();
    child.write_protect(at, PAGE, ProtectMode::DONTWAKE) == Err(Why::Gone)
}

/// In the child's service: its memory's descriptor, and the pages that its parent filled.
///
/// # Errors
/// The parent's service does not answer.
pub fn take(process: &Process) -> Result<(Uffd, Vec<u64>), String> {
    let ticket = TICKET.lock().take().ok_or("no fork was prepared")?;
    // The parent's descriptors mean nothing here.
    core::mem::forget(LISTENER.lock().take());
    EXPECTED.store(false, Release);
    CHILD.store(-1, Release);
    for place in &STRANGER {
        place.store(-1, Release);
    }
    let (fd, filled) = ask(process.account.group().name(), &ticket)
        .map_err(|e| format!("its parent does not hand it over: {e}"))?;
    // SAFETY: the parent sends a userfaultfd, which is this process's alone now.
    let uffd = unsafe { Uffd::from_raw_fd(fd.into_raw()) };
    Ok((uffd, filled))
}

/// Children that were made without libc's fork: their evicted memory is unknown, since the
/// parent went on. An access to it is a SIGBUS, never a wrong byte.
pub fn look_after_strangers(process: &Process) {
    for place in &STRANGER {
        let raw = place.load(Acquire);
        if raw < 0 {
            continue;
        }
        // SAFETY: stays open while it is in its place, which only this task empties.
        let child = core::mem::ManuallyDrop::new(unsafe { Uffd::from_raw_fd(raw) });
        let mut msgs = [const { Msg::empty() }; 16];
        let n = child.read_events(&mut msgs).unwrap_or(0);
        for msg in &mut msgs[..n] {
            if let Some(Event::Pagefault { addr, wp, .. }) = msg.take() {
                if wp {
                    let _ = child.write_protect(addr, PAGE, ProtectMode::empty());
                    continue;
                }
                // SAFETY: a hole of memory that this process answers for.
                let _ = unsafe { child.poison(addr, PAGE, WakeMode::empty()) };
                let _ = process.link.say(
                    format!(
                        "deckle: process {}: a child made without libc's fork used managed \
                         memory at {addr:#x}, which is not there\n",
                        process.pid
                    )
                    .as_bytes(),
                );
            }
        }
        if n == 0 && is_gone(process, &child) {
            place.store(-1, Release);
            drop(core::mem::ManuallyDrop::into_inner(child));
        }
    }
}
