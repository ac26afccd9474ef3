//! Looking after the program and `deckle run`: what became of them, what has changed, what there is
//! to publish.
//!
//! Ten times a second while anything changes. Then the service sleeps without a limit in time: it
//! is woken by the end of the program, by news of the group, and by its own threads, when they have
//! done something ([`Rest::stir`]) or when one sees that `deckle run` is gone.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, fence};
use core::time::Duration;
use deckle_live::pager::Role;
use deckle_mm::Item;
use deckle_sys::futex::{self, Scope};
use deckle_sys::poll::is_ready;
use std::time::Instant;

use crate::end;
use crate::process::Process;
use crate::sys;
use crate::threads;
use crate::watch::{State, Unknown};

/// How often it is looked while something changes.
const LOOK: Duration = Duration::from_millis(100);

/// How long what is being done is waited for at the end, and how long memory is given back before
/// the kernel does it: more would look to `deckle run` as if this process went on.
const LAST: Duration = Duration::from_millis(100);

/// What tells that there is something to publish: of several ways of growing and shrinking each
/// changes one.
const CHANGES: [Item; 5] = [
    Item::Pgfault,
    Item::NrOpen,
    Item::NrAnon,
    Item::NrSwapped,
    Item::NrThp,
];

/// Whether who looks after the process sleeps. In a child of fork as in its parent: awake.
#[derive(Default)]
pub struct Rest(AtomicU32);

const ASLEEP: u32 = 1;

impl Rest {
    /// Something was done: it is looked at soon.
    pub fn stir(&self) {
        // Either this sees that the other sleeps, or the other what was done.
        fence(SeqCst);
        if self.0.load(SeqCst) == ASLEEP && self.0.swap(0, SeqCst) == ASLEEP {
            futex::wake(&self.0, 1);
        }
    }
}

/// Waits for so long, or for the end of the program; starts meanwhile who is wanted.
fn doze(process: &'static Process, time: Duration) -> Result<State, Unknown> {
    if !process.pager.crew().is_on_demand() {
        return process.watch.wait(time);
    }
    let end = Instant::now() + time;
    loop {
        process.muster();
        let left = end.saturating_duration_since(Instant::now());
        let rest = process.pager.rest().map_or(left, |rest| rest.min(left));
        let state = process.watch.wait_with(&process.calls(), Some(rest))?;
        if state != State::Running || left.is_zero() {
            return Ok(state);
        }
        if is_due(process) {
            process.pager.crew().want(Role::BACKGROUND);
        }
    }
}

/// Whether nobody does what the background task has to do now.
fn is_due(process: &Process) -> bool {
    let rest = process.pager.rest();
    rest.is_some_and(|rest| rest.is_zero())
}

/// Counters when nothing was left to do, and the number of the last news then.
struct Idle {
    changes: [u64; CHANGES.len()],
    news: u32,
}

fn changes(process: &Process) -> [u64; CHANGES.len()] {
    let stats = process.pager.mm().stats();
    CHANGES.map(|item| stats.get(item))
}

fn news(process: &Process) -> Option<&AtomicU32> {
    process.account.group().news(process.account.line())
}

/// What was told and followed last.
#[derive(Default)]
struct Last {
    published: Option<[u64; CHANGES.len()]>,
    followed: Option<u32>,
    news: u32,
}

/// Looks after the process until it ends, or executes another program.
pub fn after(process: &'static Process) -> ! {
    let (mut last, mut idle) = (Last::default(), None);
    // Whoever is woken again and again looks no more often than who never sleeps.
    let (mut waited, mut first) = (false, true);
    loop {
        let state = match &idle {
            Some(idle) if waited => {
                if core::mem::take(&mut first) {
                    threads::give_back_stack();
                }
                waited = false;
                sleep(process, idle)
            }
            _ => {
                waited = true;
                doze(process, LOOK)
            }
        };
        match state {
            // Not past a closed gate: a program that is killed in the middle of a fork never
            // opens it, and its end must be seen all the same.
            Ok(State::Running) => {
                process.end_if_lost();
                let inside = process.pager.gate().try_enter();
                idle = inside.and_then(|_inside| last.look(process));
            }
            Ok(State::Execed | State::Ended) => {
                process.publish();
                let has_all = process.pager.gate().try_close(LAST);
                if has_all && end::give_back_memory(process, LAST) {
                    process.account.group().leave(process.account.line());
                }
                // Else `deckle run` sees when the memory is free: when this process has ended.
                let _ = process.link.bye();
                sys::exit_all(0)
            }
            Err(why) => {
                process.kill(&why.to_string());
                sys::exit_all(1)
            }
        }
        if is_lost(process) {
            // `deckle run` has ended: nobody else is left to end the program.
            end::destroy(process);
            sys::exit_all(1)
        }
    }
}

fn is_lost(process: &Process) -> bool {
    is_ready(process.link.fd().raw(), Duration::ZERO)
}

/// Sleeps until something has changed; starts meanwhile who is wanted, and does for a background
/// task that is not there what is due. Without tasks on demand or words to wait for it looks on.
fn sleep(process: &'static Process, idle: &Idle) -> Result<State, Unknown> {
    let bell = &process.rest.0;
    let can_wait = process.pager.crew().is_on_demand() || process.watch.can_wait_with();
    loop {
        process.muster();
        bell.store(ASLEEP, SeqCst);
        fence(SeqCst);
        let news = news(process).filter(|_| changes(process) == idle.changes);
        let Some(news) = news.filter(|_| !is_lost(process)) else {
            bell.store(0, SeqCst);
            return process.watch.state();
        };
        if !can_wait {
            bell.store(0, SeqCst);
            return process.watch.wait(LOOK);
        }
        let [wanted, asked] = process.calls();
        let news = (Scope::Shared, news, idle.news);
        let words = [news, (Scope::Private, bell, ASLEEP), wanted, asked];
        let rest = process.pager.rest();
        let state = process.watch.wait_with(&words, rest)?;
        let was_asleep = bell.swap(0, SeqCst) == ASLEEP;
        let is_due = rest.is_some() && is_due(process);
        if is_due {
            process.pager.stand_in(Role::BACKGROUND);
        }
        if state != State::Running || !was_asleep || !(is_due || process.lacks_somebody()) {
            return Ok(state);
        }
    }
}

impl Last {
    /// Does what there is to do; `None`: there may be more.
    fn look(&mut self, process: &Process) -> Option<Idle> {
        let (mm, account) = (process.pager.mm(), &process.account);
        // First: what comes after it is news.
        let news = news(process)?.load(SeqCst);
        if news != core::mem::replace(&mut self.news, news) {
            process.pager.note_change();
        }
        process.follow_settings(&mut self.followed);
        let mut more = process.settle();
        account.stop_borrowing(mm, false);
        account.stop_lending(mm);
        account.stop_lending_file(mm);
        process.note_away();
        let changes = changes(process);
        if crate::defect() == b"panic" && changes[0] > 1000 {
            panic!("as DECKLE_FAULT asks");
        }
        // To who does not fault nothing comes back.
        if self.published != Some(changes) || mm.forget_refaults() {
            process.publish();
            self.published = Some(changes);
            more = true;
        }
        let idle = !more && !account.has_to_look(mm);
        idle.then_some(Idle { changes, news })
    }
}
