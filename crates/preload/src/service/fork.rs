//! Forks.
//!
//! The fork is made while the service stands still ([`deckle_live::Pager::freeze`]). What runs
//! in the child before this library does (libc walks its streams) reads right bytes: resident
//! pages are where the kernel copies them, and faults on the rest reach the parent's service
//! ([`super::handover`]). The child's first handler is ours: it starts a service of the child's
//! own on the copy of the manager's state, which the kernel copied with all the rest, and that
//! service takes the descriptor of its memory over. Only then the parent goes on.
//!
//! Where the system has no fork events everything is filled in before, and a fork for which
//! the limit has no room fails with ENOMEM.

use super::{PROCESS, Process, gate, handover, request, tasks};
use crate::alloc::{boot, internal};
use crate::sys;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use deckle_mm::{Charge, Item};

impl Process {
    /// Before the fork by thread `forker`: everything stands still when this is answered.
    pub fn fork_begin(&self, forker: u32) -> Result<usize, i32> {
        if self.pager.platform().fork_events() {
            handover::expect(self).map_err(|e| e.0)?;
        }
        self.make_room_for_fork();
        let lend = || self.account.lend(self.pager.mm());
        if self.pager.freeze(forker, lend).is_err() {
            handover::expect_no_more();
            return Err(libc::ENOMEM);
        }
        Ok(0)
    }

    /// What both sides of a fork share can be reclaimed by neither until it is over, while each
    /// page that either writes takes memory: so that they need not wait for each other at once,
    /// there is room for the first of them below `memory.high`, and for the child's metadata,
    /// with which it is charged whatever there is.
    fn make_room_for_fork(&self) {
        let mm = self.pager.mm();
        let resident = mm.stats().get(Item::NrAnon) + mm.stats().get(Item::NrInactive);
        let first = (resident / 8).min(ROOM) + self.account.own();
        let want = self.account.usage() + first;
        let over = want.saturating_sub(self.account.high());
        if over > 0 {
            mm.reclaim(over);
        }
    }

    /// After it, in the parent: returns when the child has a service of its own.
    pub fn fork_end(&self) -> Result<usize, i32> {
        handover::serve(self);
        if let Err(why) = self.pager.thaw() {
            self.kill(&format!("after a fork: {why}"));
        }
        Ok(0)
    }
}

/// Most pages that are made free below `memory.high` before a fork.
const ROOM: u64 = 2048;

/// Whether the service stands still for a fork.
static STILL: AtomicBool = AtomicBool::new(false);
/// Thread id of whose fork was refused, so that its child must not live.
static REFUSED: AtomicU32 = AtomicU32::new(0);
/// One fork at a time.
static FORKING: crate::lock::Lock<()> = crate::lock::Lock::new(());
/// Signals that the forking thread had blocked before.
static MASK: AtomicU64 = AtomicU64::new(0);

/// Sets the caller's mask of blocked signals; returns the one before.
fn block_signals(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask, &raw mut before);
    let args = [
        libc::SIG_SETMASK as usize,
        new as usize,
        old as usize,
        8,
        0,
        0,
    ];
    // SAFETY: reads and writes a word each.
    let _ = unsafe { sys::call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// The last handler before the fork.
extern "C" fn prepare() {
    let before = sys::errno();
    // A handler that runs on the way would find everything locked and standing still.
    let mask = block_signals(u64::MAX);
    FORKING.acquire();
    MASK.store(mask, Relaxed);
    let managed = gate::arena().is_some();
    if managed {
        let args = [gate::tid() as usize, 0, 0, 0, 0, 0];
        match request::request(request::Op::ForkBegin, args) {
            Ok(_) => STILL.store(true, Relaxed),
            Err(_) => REFUSED.store(gate::tid(), Relaxed),
        }
    }
    boot::HEAP.acquire();
    internal::HEAP.acquire();
    sys::set_errno(before);
}

/// The first handler after it, in the parent.
extern "C" fn in_parent() {
    let before = sys::errno();
    internal::HEAP.release();
    boot::HEAP.release();
    if STILL.swap(false, Relaxed) {
        let _ = request::request(request::Op::ForkEnd, [0; 6]);
    }
    let mask = MASK.load(Relaxed);
    FORKING.release();
    block_signals(mask);
    sys::set_errno(before);
}

/// The first handler after it, in the child.
extern "C" fn in_child() {
    let before = sys::errno();
    internal::HEAP.release();
    boot::HEAP.release();
    let mask = MASK.load(Relaxed);
    FORKING.release();
    if REFUSED.load(Relaxed) != 0 {
        // Its memory is not all there. The parent reports the refusal.
        super::end::exit_all(1);
    }
    if STILL.swap(false, Relaxed) {
        request::forget_others();
        if let Err(why) = super::start_in_child() {
            sys::say(&[
                b"deckle: memory of a forked process cannot be managed: ",
                why.as_bytes(),
            ]);
            super::end::sigkill(std::process::id() as i32);
        }
    }
    block_signals(mask);
    sys::set_errno(before);
}

/// Registers the handlers: at the program's start, so that they are next to the fork.
pub fn register() {
    // SAFETY: functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(prepare_c), Some(parent_c), Some(child_c));
    }
}

unsafe extern "C" fn prepare_c() {
    prepare();
}
unsafe extern "C" fn parent_c() {
    in_parent();
}
unsafe extern "C" fn child_c() {
    in_child();
}

type Fork = unsafe extern "C" fn() -> libc::pid_t;

fn real(name: &CStr) -> Option<Fork> {
    // SAFETY: a look-up by name; libc's function of that signature.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        (!found.is_null()).then(|| core::mem::transmute::<*mut c_void, Fork>(found))
    }
}

/// C's `fork`: the handlers do the work; this tells a refusal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let Some(real) = real(c"fork") else {
        sys::set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the program's own call.
    let pid = unsafe { real() };
    refused(pid)
}

fn refused(pid: libc::pid_t) -> libc::pid_t {
    if pid <= 0
        || REFUSED
            .compare_exchange(gate::tid(), 0, Acquire, Relaxed)
            .is_err()
    {
        return pid;
    }
    let mut status: c_int = 0;
    // SAFETY: waits for the child that ended itself.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    sys::set_errno(libc::ENOMEM);
    -1
}

/// POSIX's `_Fork`, which runs no handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let Some(real) = real(c"_Fork") else {
        sys::set_errno(libc::ENOSYS);
        return -1;
    };
    prepare();
    // SAFETY: the program's own call.
    let pid = unsafe { real() };
    match pid {
        0 => in_child(),
        _ => in_parent(),
    }
    refused(pid)
}

/// The first task of the child's service: gives the copied state what is the child's own.
pub extern "C" fn first_in_child(start: *mut c_void) -> ! {
    // SAFETY: the spawner keeps it until `Start::done`.
    let start = unsafe { &*start.cast::<super::Start>() };
    // SAFETY: a leaked value; no other task of the child runs yet, and the program's thread
    // waits for this one.
    let process = unsafe { &mut *PROCESS.load(Acquire) };
    REBUILDING.store(true, Relaxed);
    let rebuilt = rebuild(process, start);
    REBUILDING.store(false, Relaxed);
    match rebuilt {
        Ok(()) => tasks::run(process, start),
        Err(why) => {
            start.fail(&why);
            super::end::exit_all(1)
        }
    }
}

/// Whether what is copied from the parent is not the child's own yet.
static REBUILDING: AtomicBool = AtomicBool::new(false);

/// In a child: whether the process that the state tells of is its parent still.
pub fn is_rebuilding() -> bool {
    REBUILDING.load(Relaxed)
}

fn rebuild(process: &mut Process, start: &super::Start) -> Result<(), String> {
    if crate::config::fault() == Some(b"child") {
        panic!("as DECKLE_FAULT asks");
    }
    let platform = process.pager.platform();
    platform.reserve_after_fork().map_err(|e| e.to_string())?;
    let handed = process.pager.platform().fork_events();
    let said = tasks::announce(start)?;
    let lender = process.account.line();
    let mut taken = None;
    if handed {
        // Before the parent may go on: from here on it pays for what both share.
        process
            .account
            .borrow_from(said.line, lender, process.pager.mm());
        taken = Some(handover::take(process)?);
    }
    // The old descriptors mean nothing here: not closed.
    core::mem::forget(core::mem::replace(&mut process.watch, said.watch));
    core::mem::forget(core::mem::replace(&mut process.link, said.link));
    process.pid = start.program.pid();
    process.pager.set_program(process.pid);
    let (inherited, filled) = taken.map_or((None, Vec::new()), |(uffd, n)| (Some(uffd), n));
    // SAFETY: in a child, by its first task; the parent's pager was frozen over the fork.
    unsafe { process.pager.after_fork(inherited) }.map_err(|e| e.to_string())?;
    let mm = process.pager.mm();
    // What the parent counted stays its own.
    mm.stats().forget(|item| !deckle_group::is_gauge(item));
    let gauge = |item| mm.stats().get(item);
    // All that it holds but what its parent pays for.
    let shared = gauge(Item::NrShared);
    let pages = (mm.frames_used() + mm.recount_store()).saturating_sub(shared);
    let swapped = gauge(Item::NrSwapped) + gauge(Item::NrSwapcached);
    process.account.move_to(said.line, pages, swapped);
    process.pager.adopt_filled().map_err(|e| e.to_string())?;
    process.forget_locks().map_err(|e| e.to_string())?;
    for page in filled {
        let adopted = process.pager.adopt(deckle_mm::Vpn(page));
        adopted.map_err(|e| e.to_string())?;
    }
    process.publish();
    process.pager.gate().open();
    Ok(())
}
