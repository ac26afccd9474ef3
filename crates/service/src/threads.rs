//! The threads of the service.

use crate::account::Account;
use crate::adopt;
use crate::crew::DONOR;
use crate::process::Process;
use crate::swap::Swap;
use crate::sys::{self, PAGE};
use crate::tasks;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};
use deckle_door::NO_TASK;
use deckle_live::Pager;
use deckle_live::pager::Role;
use deckle_sys::futex;
use std::sync::Arc;
use std::thread::Builder;

/// Bytes of a thread's stack.
const STACK: usize = 256 << 10;
/// Most handlers there are.
const HANDLERS: usize = 4;

/// Whoever is not there from the start, but for handlers.
const OTHERS: [Role; 6] = [
    Role::WORKERS[0],
    Role::WORKERS[1],
    Role::BACKGROUND,
    Role::FILLER,
    Role::LOOKER,
    DONOR,
];

fn handlers() -> usize {
    Pager::<Account, Swap>::handlers().min(HANDLERS)
}

/// Makes all threads but the first, or those that cannot come on demand.
///
/// # Errors
/// The system refuses one.
pub fn spawn_all(process: &'static Process) -> Result<(), String> {
    let may = |number| crate::door().may(number);
    if !may(libc::SYS_sched_setaffinity) || !may(libc::SYS_sched_setscheduler) {
        deckle_live::leave_scheduling();
    }
    let mut begun = process.begun.lock();
    begun.clear();
    begun.push(spawn("caller", move || tasks::caller(process))?);
    begun.push(spawn("handler", move || process.pager.handler_loop(0))?);
    let is_watching = adopt::watch(process);
    crate::door().adopts.store(is_watching, Release);
    if !process.pager.crew().is_on_demand() {
        for role in (1..handlers()).map(Role::handler).chain(OTHERS) {
            begun.push(start(process, role)?);
        }
    }
    Ok(())
}

/// A thread that begins.
pub struct Begun(Arc<AtomicU32>);

impl Begun {
    /// Back when a fork copies nothing of it any more.
    pub fn wait(&self) {
        while self.0.load(Acquire) == 0 {
            futex::wait(&self.0, 0, None);
        }
    }
}

/// Starts a thread for a role.
///
/// # Errors
/// The system refuses one.
pub fn start(process: &'static Process, role: Role) -> Result<Begun, String> {
    let pager = &process.pager;
    match role {
        Role::BACKGROUND => spawn("background", move || pager.background_loop()),
        Role::FILLER => spawn("filler", move || pager.filler_loop()),
        DONOR => spawn("donor", move || tasks::donor(process)),
        Role::LOOKER => spawn("looker", move || adopt::looker(process)),
        _ => match role.handler_number() {
            Some(number) => spawn("handler", move || pager.handler_loop(number)),
            None => {
                let number = usize::from(role != Role::WORKERS[0]);
                spawn("worker", move || pager.worker_loop(number))
            }
        },
    }
}

/// Bytes of address space that their stacks take, at most: with a guard and what lies above each.
pub fn stacks() -> usize {
    let count = 1 + handlers() + OTHERS.len();
    count * (STACK + 4 * PAGE)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Begun, String> {
    let builder = match crate::door().may(libc::SYS_prctl) {
        true => Builder::new().name(format!("deckle-{name}")),
        false => Builder::new(),
    };
    let apart = Arc::new(AtomicU32::new(0));
    let told = apart.clone();
    let made = builder.stack_size(STACK).spawn(move || {
        keep_apart();
        told.store(1, Release);
        futex::wake(&told, 1);
        drop(told);
        body();
    });
    made.map_err(|e| match e.raw_os_error() {
        Some(libc::EAGAIN) => NO_TASK.to_owned(),
        _ => format!("no thread for its service: {e}"),
    })?;
    Ok(Begun(apart))
}

/// Gives back what the first task's stack has had in use below its caller: its start went deeper
/// than it ever goes again.
pub fn give_back_stack() {
    /// Pages that the call itself may use, and those below that are given back.
    const OWN: usize = 2;
    const BELOW: usize = 24;
    let here = 0_u8;
    let at = (&raw const here).addr() / PAGE - OWN;
    let words = [
        (at - BELOW) * PAGE,
        BELOW * PAGE,
        libc::MADV_DONTNEED as usize,
    ];
    // SAFETY: of a stack of 64 pages, on which the first task's loop is a few frames from the top;
    // nobody has anything below the frame that makes this call.
    let _ = unsafe { sys::call(libc::SYS_madvise, words) };
}

/// Keeps the calling thread's stack out of forked children, which have no use for it, and of core
/// dumps, like all memory of the service.
fn keep_apart() {
    // SAFETY: plain data that the call fills; all zeros is a value.
    unsafe {
        let me = libc::pthread_self();
        let mut about: libc::pthread_attr_t = core::mem::zeroed();
        if libc::pthread_getattr_np(me, &mut about) != 0 {
            return;
        }
        let (mut low, mut bytes) = (core::ptr::null_mut(), 0);
        if libc::pthread_attr_getstack(&about, &mut low, &mut bytes) != 0 {
            return;
        }
        // The thread's own data lie above its stack, in the last page of the same mapping.
        let end = (me as usize).next_multiple_of(PAGE);
        let start = (low as usize).next_multiple_of(PAGE);
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            libc::madvise(start as *mut _, end - start, advice);
        }
    }
}
