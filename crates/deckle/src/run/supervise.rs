//! The supervisor: one loop over signals, services and ended children, until the tree has
//! ended. It dies last.

use std::time::{Duration, Instant};

use deckle_group::Group;
use deckle_sys::poll::{poll, to_read};
use deckle_sys::signal::{self, Signals};
use deckle_sys::{process, trace};

use super::child::Program;
use super::ending;
use super::front::{GOES_ON, Heard, Link, STOPPED};
use super::inject::Tracer;
use super::services::Services;
use super::signals::is_ours_alone;
use super::swapfile::SwapFiles;
use super::tree;
use crate::fail::Fail;
use crate::say;

/// How long what is left of a container's tree may take to end after its main program.
const GRACE: Duration = Duration::from_secs(5);
/// Longest time between two measurements of what the limit does not hold.
const SAMPLE_MAX: Duration = Duration::from_secs(1);
/// The same while nothing happens and so many of them have found the same.
const SAMPLE_IDLE: Duration = Duration::from_secs(60);
const SAME: u32 = 5;
/// They take one part of so many of the supervisor's time at most.
const SAMPLE_SHARE: u32 = 50;
/// How long children of the program may outlive it before that is mentioned.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How long the dead that nobody waits for rest before they are reaped. The kernel takes a
/// process's part of /proc away when it is reaped, and where that is still in use by a CPU that
/// lets the process go it spins for as long as the CPU is not given away: milliseconds, seen with
/// every third service.
const REST: Duration = Duration::from_millis(1);
/// Longest wait once the program has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How it ended.
#[derive(Clone, Copy)]
pub struct End {
    /// Exit status to pass on.
    pub status: i32,
    /// The signal that ended the program.
    pub signal: Option<i32>,
    /// From start to the end of the tree.
    pub wall: Duration,
}

struct Supervisor {
    main: u32,
    /// Raw wait status of the main program, once it ended.
    ended: Option<(i32, Instant)>,
    /// None: this is the first process of a pid namespace.
    front: Option<Link>,
    tracer: Tracer,
    told: bool,
    terminated: bool,
    /// Until when the dead rest.
    rest: Option<Instant>,
}

/// Starts the program and stays until the last process of its tree has ended. `None`: the
/// front was gone before, and the tree has been ended.
pub fn supervise(
    group: &Group,
    program: &Program,
    signals: &Signals,
    front: Option<Link>,
    tracer: Tracer,
    files: SwapFiles,
) -> Result<Option<End>, Fail> {
    let start = Instant::now();
    if front.is_some() {
        process::adopt_orphans();
    }
    let mut services = Services::listen(group.name(), files)?;
    if program.traced && group.strict() {
        need_ptrace(program)?;
    }
    let (main, traced) = program.start(group.name(), signals)?;
    if let Some(front) = &front {
        front.tell_started(main);
        // The program stays in the front's session and group, and nothing that is sent there
        // is for us.
        process::begin_session();
    }
    let mut s = Supervisor {
        main,
        ended: None,
        front,
        tracer,
        told: false,
        terminated: false,
        rest: None,
    };
    s.expect(traced, group, program);
    let mut samples = Samples::new(start);
    loop {
        if !s.hear(signals, &mut services) {
            ending::end_tree();
            return Ok(None);
        }
        let any_left = s.reap(group);
        // After reaping: what a service said before its end is read below, before we leave.
        services.work(group, &mut s.tracer);
        if !any_left {
            break;
        }
        let mut patience = s.after_main(&mut services);
        let now = Instant::now();
        if now >= samples.next {
            let found = tree::unmanaged_anon_pages(group, &services.programs());
            group.note_unmanaged_anon(found);
            samples.note(found, now, now.elapsed());
        }
        patience = patience.min(samples.next.saturating_duration_since(now));
        for at in [services.deadline(), s.rest].into_iter().flatten() {
            patience = patience.min(at.saturating_duration_since(now));
        }
        let front = s.front.as_ref().map_or(-1, Link::fd);
        let mut set = [signals.fd(), services.events(), front].map(to_read);
        let wait = patience.as_millis() as i32 + 1;
        if poll(&mut set, wait).is_ok_and(|ready| ready > 0) {
            samples.come_soon();
        }
    }
    group.fold_stale();
    Ok(Some(s.end(start)))
}

/// When it is measured what the limit does not hold: often at first, rarely where nothing happens.
struct Samples {
    next: Instant,
    every: Duration,
    /// How long there is none, so that they are cheap where there are thousands of processes.
    rest: Duration,
    /// What was found last, and how often one after the other.
    last: u64,
    same: u32,
}

impl Samples {
    fn new(now: Instant) -> Samples {
        let every = Duration::from_millis(20);
        Samples {
            next: now + every,
            every,
            rest: Duration::ZERO,
            last: 0,
            same: 0,
        }
    }

    /// One was begun at `now`, and took so long.
    fn note(&mut self, found: u64, now: Instant, took: Duration) {
        let is_same = std::mem::replace(&mut self.last, found) == found;
        self.same = if is_same { self.same + 1 } else { 0 };
        let most = if self.same < SAME {
            SAMPLE_MAX
        } else {
            SAMPLE_IDLE
        };
        self.every = (self.every * 2).min(most);
        self.rest = took * SAMPLE_SHARE;
        self.next = now + self.every.max(self.rest);
    }

    /// Something happens.
    fn come_soon(&mut self) {
        self.same = 0;
        self.every = self.every.min(SAMPLE_MAX);
        let soon = Instant::now() + SAMPLE_MAX.max(self.rest);
        self.next = self.next.min(soon);
    }
}

/// Refuses a program that needs the second door where it cannot be put in: `--strict`.
fn need_ptrace(program: &Program) -> Result<(), Fail> {
    match trace::may_trace_children() {
        true => Ok(()),
        false => Err(Fail::own(format!(
            "{}: cannot be managed: the system refuses to trace it (ptrace): allow that, or leave \
             --strict out",
            program.path.display()
        ))),
    }
}

impl Supervisor {
    /// The program has been started, and is traced or not.
    fn expect(&mut self, traced: Option<bool>, group: &Group, program: &Program) {
        match traced {
            Some(true) => self.tracer.expect(self.main as i32),
            Some(false) => {
                group.count_unmanaged_program();
                let why = "runs outside the limit: the system refuses to trace it";
                say(format_args!("{}: {why}", program.path.display()));
            }
            None => {}
        }
    }

    /// How it has ended.
    fn end(&self, start: Instant) -> End {
        let raw = self.ended.map_or(0, |(raw, _)| raw);
        let signal = libc::WIFSIGNALED(raw).then(|| libc::WTERMSIG(raw));
        End {
            status: signal.map_or(libc::WEXITSTATUS(raw), |n| 128 + n),
            signal,
            wall: start.elapsed(),
        }
    }

    /// Passes on the signals that came, to the front if there is one, and else to us; false:
    /// the front is gone.
    fn hear(&mut self, signals: &Signals, services: &mut Services) -> bool {
        while let Some(signal) = signals.take() {
            if signal.number == libc::SIGCHLD {
                let rests = |pid| pid != self.main && self.ended.is_none();
                self.rest = match signal.dead.is_some_and(rests) {
                    true => self.rest.or_else(|| Some(Instant::now() + REST)),
                    false => None,
                };
            } else if self.front.is_none() && is_ours_alone(&signal) {
                self.forward(signal.number, services);
            }
        }
        loop {
            match self.front.as_ref().map_or(Heard::Nothing, Link::hear) {
                Heard::Byte(number) => self.forward(i32::from(number), services),
                Heard::Nothing => return true,
                Heard::End => return false,
            }
        }
    }

    fn forward(&self, signal: i32, services: &mut Services) {
        if self.ended.is_none() {
            send(self.main, signal);
        } else {
            for pid in left(services) {
                send(pid, signal);
            }
        }
    }

    /// Reaps whatever ended and need not rest; whether any child is left.
    fn reap(&mut self, group: &Group) -> bool {
        if self.rest.is_some_and(|at| Instant::now() < at) {
            return true;
        }
        self.rest = None;
        loop {
            let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | libc::__WALL;
            let Ok(change) = process::wait(-1, flags) else {
                return false;
            };
            let Some((pid, raw)) = change else {
                return true;
            };
            if self.tracer.stopped(pid, raw, group) {
                continue;
            }
            if libc::WIFSTOPPED(raw) || libc::WIFCONTINUED(raw) {
                if let Some(front) = self.front.as_ref().filter(|_| pid as u32 == self.main) {
                    front.tell(if libc::WIFSTOPPED(raw) {
                        STOPPED
                    } else {
                        GOES_ON
                    });
                }
                continue;
            }
            if pid as u32 == self.main && self.ended.is_none() {
                self.ended = Some((raw, Instant::now()));
            }
        }
    }

    /// The main program has ended but its tree has not. The first process of a container ends
    /// it; elsewhere we stay, because the others' memory is managed as long as we live. Returns
    /// when to look again.
    fn after_main(&mut self, services: &mut Services) -> Duration {
        let Some((_, since)) = self.ended else {
            return SAMPLE_IDLE;
        };
        let waited = since.elapsed();
        let left = left(services);
        if self.front.is_none() {
            if !self.terminated {
                self.terminated = true;
                left.into_iter().for_each(|pid| send(pid, libc::SIGTERM));
            } else if waited > GRACE {
                left.into_iter().for_each(|pid| send(pid, libc::SIGKILL));
            }
        } else if waited > TELL_AFTER && !self.told && !left.is_empty() {
            self.told = true;
            say(format_args!(
                "the program has ended, {} of its children have not: waiting for them \
                 (a signal to deckle run reaches them)",
                left.len()
            ));
        }
        LOOK_AGAIN
    }
}

/// What is left of the program's tree, as far as it is our children; no services.
fn left(services: &mut Services) -> Vec<u32> {
    let mut children = tree::children();
    children.retain(|pid| !services.is_leaving(*pid));
    children
}

fn send(pid: u32, signal: i32) {
    // A child of ours that has not been reaped: the pid cannot be another's.
    let _ = signal::send(pid as i32, signal);
}
