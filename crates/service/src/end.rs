//! How things end: out of memory, a fault that cannot be served, a defect of our own.
//!
//! Always by SIGKILL, with one report: wrong bytes are worse than a crash, a hang worse than
//! both.

use crate::account::DONATION;
use crate::process::{Process, process};
use crate::sys::{self, exit_all};
use core::fmt::Display;
use core::time::Duration;
use deckle_group::{Group, Members, Remedies};
use deckle_live::{Hooks, pager::Fault};
use deckle_mm::{Charge, FaultError};
use deckle_uffd::Errno;
use std::time::Instant;

/// Pause before a fault is tried again while somebody else is being killed for it.
const PAUSE: Duration = Duration::from_millis(5);

/// How often it is looked whether memory is out still, before anybody is killed.
const LOOKS: u32 = 20;

/// What the pager asks its owner.
pub struct Last;

impl Hooks for Last {
    fn fatal(&self, fault: Fault, error: &FaultError) {
        let Some(process) = process() else { return };
        match error {
            // These frames are the process's own: nobody else's end gives it one.
            FaultError::Oom(report) if report.lacks_frames() => {
                let _ = process.link.say(format!("deckle: {report}\n").as_bytes());
                process.kill(
                    "out of memory below its limit: its address space has no places left to keep \
                     pages in: raise its limit (ulimit -v)",
                );
            }
            FaultError::Oom(report) => {
                let kills = process.account.group().oom_kills();
                // What several shared when each was asked may be one's own since.
                if is_out(process, Group::has_room) && !process.account.reclaim_elsewhere(DONATION)
                {
                    let cause = format!("fault in process {}", process.pid);
                    kill_largest(process, report, &cause, kills);
                }
            }
            error => {
                let at = fault.page.addr();
                process.kill(&format!("fault at {at:#x} cannot be served: {error}"));
            }
        }
        // If somebody else was killed, the fault is tried again.
        process.pager.platform().wake(fault.page, 1);
    }

    fn lost(&self, errno: Errno) {
        if let Some(process) = process() {
            process.kill(&format!("the userfaultfd is lost: {errno}"));
        }
    }

    fn worked(&self) {
        if let Some(process) = process() {
            process.rest.stir();
        }
    }

    fn hung_up(&self) {
        self.worked();
    }
}

/// Memory is out since the limit was lowered.
pub fn lowered(process: &Process, report: &dyn Display) {
    not_below(process, 0, report, "memory.max was lowered");
}

/// Memory is out for a fork, which takes `pages` whatever there is.
pub fn refuses_fork(process: &Process, pages: u64) {
    let group = process.account.group();
    let [usage, max, more] = [group.usage(), group.limits().max, pages].map(|pages| pages * 4);
    let report = format!("memory: usage {usage}kB, limit {max}kB, {more}kB for the child");
    let cause = format!("fork of process {}", process.pid);
    not_below(process, pages, &report, &cause);
}

/// Memory is out after the program has grown without a charge, or for `pages` more.
pub fn outgrown(process: &Process, pages: u64) {
    let group = process.account.group();
    let [usage, max] = [group.usage(), group.limits().max].map(|pages| pages * 4);
    let report = format!("memory: usage {usage}kB, limit {max}kB");
    let cause = format!("growth of process {}", process.pid);
    not_below(process, pages, &report, &cause);
}

/// Has a process killed unless there is room for `pages` after a while.
fn not_below(process: &Process, pages: u64, report: &dyn Display, cause: &str) {
    let holds = |group: &Group| group.usage() + pages <= group.limits().max;
    let kills = process.account.group().oom_kills();
    if is_out(process, holds) {
        kill_largest(process, report, cause, kills);
    }
}

/// Whether memory is out still after a while.
fn is_out(process: &Process, enough: impl Fn(&Group) -> bool) -> bool {
    process.end_if_lost();
    let group = process.account.group();
    if group.fold_stale() > 0 || process.account.stop_lending(process.pager.mm()) {
        return false;
    }
    // Others may have given something back since the fault was refused, or are about to: a
    // forked child often ends at once.
    for _ in 0..LOOKS {
        group.fold_stale();
        if enough(group) {
            return false;
        }
        sleep(PAUSE);
    }
    true
}

/// Asks `deckle run` to kill a process of the group, if none was killed since there were so many
/// `kills`. It chooses the victim, and says so before the text that it gets from here.
fn kill_largest(process: &Process, report: &dyn Display, cause: &str, kills: u64) {
    process.publish();
    let group = process.account.group();
    let Some(victim) = group.choose_victim() else {
        return;
    };
    let mm = process.pager.mm();
    let resident = |most, add: &mut dyn FnMut(&[u8])| mm.look_into_huge(most, add);
    let text = format!(
        "{cause}\n{report}\n{}{}",
        Members(group),
        Remedies {
            seen: group.seen(),
            sample: mm.store().sample(resident),
        }
    );
    // Whoever asks first has it killed; all look again.
    let link = &process.link;
    if link
        .out_of_memory(victim.line, kills, text.as_bytes())
        .is_err()
    {
        destroy(process);
    }
    sleep(PAUSE);
}

/// Pauses the calling task.
pub fn sleep(time: Duration) {
    let word = core::sync::atomic::AtomicU32::new(0);
    deckle_sys::futex::wait(&word, 0, Some(time));
}

/// Ends the program when there is no `deckle run` that could: by a signal, and if that is not
/// allowed, by taking its memory away, so that no byte of it can be wrong.
pub fn destroy(process: &Process) {
    let (number, signal) = (libc::SYS_pidfd_send_signal, libc::SIGKILL as usize);
    let pidfd = process.watch.pidfd() as usize;
    // SAFETY: a signal to the program; touches no memory of ours.
    let sent = unsafe { sys::call(number, [pidfd, signal, 0, 0]) };
    if sent.is_err() {
        give_back_memory(process, Duration::MAX);
    }
}

/// Takes the program's memory away, which is lost with this service: whoever is in it still, a
/// child of vfork say, is killed rather than finds zeros where pages are in the store. Whether that
/// was all, within about `most`.
pub fn give_back_memory(process: &Process, most: Duration) -> bool {
    /// Bytes at once: some milliseconds of the kernel's work.
    const PORTION: usize = 64 << 20;
    let begin = Instant::now();
    for (start, bytes) in process.pager.platform().managed().ranges() {
        for at in (0..bytes).step_by(PORTION) {
            if begin.elapsed() > most {
                return false;
            }
            // SAFETY: the program's memory, in which nothing is right any more when this service
            // ends.
            unsafe { sys::unmap(start + at, PORTION.min(bytes - at)) };
        }
    }
    true
}

/// A panic in the service ends the program with one line.
pub fn on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        let text = text_of(info.payload());
        // The starting thread says it when its service has died before it ran.
        match process().filter(|_| !crate::fork::is_rebuilding()) {
            Some(process) => {
                process.kill(&format!("internal error{place}: {text}"));
                // It has been said once: our own end is not news.
                let _ = process.link.bye();
            }
            None => crate::door().fail(&format!("internal error{place}: {text}")),
        }
        exit_all(1);
    }));
}

fn text_of(payload: &dyn core::any::Any) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
