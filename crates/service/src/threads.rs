//! The threads of the service.

use crate::account::Account;
use crate::process::Process;
use crate::swap::Swap;
use crate::tasks;
use deckle_door::NO_TASK;
use deckle_live::Pager;
use std::thread::Builder;

/// Bytes of a thread's stack.
const STACK: usize = 256 << 10;
/// Most handlers there are.
const HANDLERS: usize = 4;

/// What a thread runs.
type Body = fn(&'static Process);

/// The threads beside the first and the handlers.
const OTHERS: [(&str, Body); 6] = [
    ("worker", |process| process.pager.worker_loop()),
    ("worker", |process| process.pager.worker_loop()),
    ("background", |process| process.pager.background_loop()),
    ("filler", |process| process.pager.filler_loop()),
    ("caller", tasks::caller),
    ("donor", tasks::donor),
];

/// Makes all threads but the first.
///
/// # Errors
/// The system refuses one.
pub fn spawn_all(process: &'static Process) -> Result<(), String> {
    let may = |number| crate::door().may(number);
    if !may(libc::SYS_sched_setaffinity) || !may(libc::SYS_sched_setscheduler) {
        deckle_live::leave_scheduling();
    }
    for (name, body) in OTHERS {
        spawn(name, move || body(process))?;
    }
    let handlers = Pager::<Account, Swap>::handlers().min(HANDLERS);
    for number in 0..handlers {
        spawn("handler", move || process.pager.handler_loop(number))?;
    }
    Ok(())
}

/// Bytes of address space that their stacks take: with a guard and what lies above each.
pub fn stacks() -> usize {
    let count = OTHERS.len() + Pager::<Account, Swap>::handlers().min(HANDLERS);
    count * (STACK + 4 * crate::sys::PAGE)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let builder = match crate::door().may(libc::SYS_prctl) {
        true => Builder::new().name(format!("deckle-{name}")),
        false => Builder::new(),
    };
    let made = builder.stack_size(STACK).spawn(move || {
        keep_apart();
        body();
    });
    made.map(drop).map_err(|e| match e.raw_os_error() {
        Some(libc::EAGAIN) => NO_TASK.to_owned(),
        _ => format!("no thread for its service: {e}"),
    })
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
        let end = (me as usize).next_multiple_of(crate::sys::PAGE);
        let start = (low as usize).next_multiple_of(crate::sys::PAGE);
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            libc::madvise(start as *mut _, end - start, advice);
        }
    }
}
