//! The services of the tree: their connections, the duplicates of their descriptors, and the
//! watch over them.
//!
//! A duplicate of each userfaultfd is held here, because closing the last one turns evicted
//! memory into zeros. When a service dies while its program lives, the program would wait for
//! ever at its next fault: it is killed, with one line.
//!
//! What becomes of a service whose program has ended: see [`super::leaving`].

use std::collections::BTreeMap;
use std::ffi::CString;
use std::time::{Duration, Instant};

use deckle_group::proc::proc_stat;
use deckle_group::proto::{Message, PACKET_MAX, give, give_file, give_spare, held, listen, pair};
use deckle_group::{Group, LineId, Name};
use deckle_sys::socket::{accept, receive};
use deckle_sys::{Errno, Fd, pidfd};

use super::events::{Events, Watched};
use super::hello::{Known, Service, TooFew, hello, pid_of, program_of};
use super::inject::{Held, Tracer};
use super::killed::Reports;
use super::leaving::Leavings;
use super::peer::{Peer, peer_of, thread_of};
use super::points;
use super::swapfile::SwapFiles;
use super::tree::is_service_task;
use super::victim::Victims;
use crate::fail::Fail;
use crate::{say, voice};

struct Connection {
    number: u64,
    socket: Option<Watched>,
    peer: Peer,
    service: Option<Service>,
    /// Its program is being killed: the service has ended before it, or cannot go on.
    lost: bool,
}

impl Connection {
    fn new(number: u64, socket: Watched, peer: Peer) -> Connection {
        Connection {
            number,
            socket: Some(socket),
            peer,
            service: None,
            lost: false,
        }
    }

    /// Ends its program; why has been said.
    fn kill(&mut self) {
        self.lost = true;
        if let Some(s) = &self.service {
            let _ = pidfd::kill(&s.program_pidfd, libc::SIGKILL);
        }
    }
}

/// How long at most the tree waits, out of memory, for what ended processes have charged. A service
/// that does not end is killed before, so that this ends only what never ends: a tree in which some
/// process ends all the time, and others take at once what it gives back.
const SPARED: Duration = Duration::from_secs(5);
/// Most connections, and most packets of one, that are taken in a row: more than a queue has, but
/// no process holds up the others.
const AT_ONCE: usize = 1024;
/// Most times in a row that all that is ready is looked at.
const ROUNDS: usize = 16;
/// Keys: of what listens, of connections by their numbers, and of services without one.
const LISTENER: u64 = 0;
const NOBODY: u64 = u64::MAX;
/// Without a word for so long, memory is not out any more.
const QUIET: Duration = Duration::from_secs(1);

/// A process that is to be killed because memory is out.
struct OutOfMemory {
    victim: LineId,
    /// The process that asks, if it has said hello.
    grower: Option<LineId>,
    kills: u64,
    text: Vec<u8>,
}

/// All of them.
pub struct Services {
    events: Events,
    listeners: Vec<Watched>,
    /// What is given to services that may not open it themselves.
    page: Option<Fd>,
    device: Option<Fd>,
    connections: BTreeMap<u64, Connection>,
    /// Connections until now: the number of the last one.
    connected: u64,
    files: SwapFiles,
    victims: Victims,
    /// Nobody was killed at the limit, though asked for, since the first time and until the second.
    spared: Option<[Instant; 2]>,
    leaving: Leavings,
    reports: Reports,
    buffer: Vec<u8>,
}

impl Services {
    /// The programs that have a service: their pids here, whatever they are to themselves, and
    /// their lines.
    pub fn programs(&self) -> Vec<(u32, LineId)> {
        let services = self.connections.values().filter_map(|c| c.service.as_ref());
        services.map(|s| (s.program_here, s.line)).collect()
    }

    /// Listens on the group's socket.
    pub fn listen(name: Name, files: SwapFiles) -> Result<Services, Fail> {
        let refused = |e| Fail::own(format!("no socket for the services to connect to: {e}"));
        let (first, second) = listen(name).map_err(refused)?;
        let events = Events::new().map_err(refused)?;
        let listeners = [Some(first), second].into_iter().flatten();
        let listeners = listeners.map(|fd| events.watch(fd, LISTENER));
        Ok(Services {
            listeners: listeners.collect::<Result<_, _>>().map_err(refused)?,
            events,
            page: Group::open(name).ok(),
            device: Fd::open(c"/dev/userfaultfd", libc::O_RDWR, 0).ok(),
            connections: BTreeMap::new(),
            connected: 0,
            files,
            victims: Victims::default(),
            spared: None,
            leaving: Leavings::default(),
            reports: Reports::default(),
            buffer: vec![0; PACKET_MAX],
        })
    }

    /// A descriptor that can be read when there is something to do.
    pub fn events(&self) -> i32 {
        self.events.raw()
    }

    /// When [`work`](Services::work) has something to do without any event.
    pub fn deadline(&self) -> Option<Instant> {
        let both = [self.leaving.deadline(), self.files.deadline()];
        both.into_iter().flatten().min()
    }

    /// Whether `pid`, a child of this process, is a service whose program has ended, not a
    /// part of the program; its time to end runs from the first look.
    pub fn is_leaving(&mut self, pid: u32) -> bool {
        let serves = |c: &Connection| c.service.as_ref().is_some_and(|s| s.pid == pid);
        if self.leaving.has(pid) || self.connections.values().any(serves) {
            return true;
        }
        // One that never got as far as its first message.
        let found = is_service_task(pid);
        let watched = || self.events.watch(pidfd::open(pid)?, NOBODY);
        if found && let Ok(pidfd) = watched() {
            self.leaving.add(pid, pidfd, LineId::NONE);
        }
        found
    }

    /// Does whatever is to be done; never waits.
    pub fn work(&mut self, group: &Group, tracer: &mut Tracer) {
        let mut out = Vec::new();
        for _ in 0..ROUNDS {
            let (keys, all) = self.events.ready();
            // Whoever has connected may have said something, too.
            let is_over = all && keys.first() != Some(&LISTENER);
            for key in keys {
                match key {
                    LISTENER => self.accept(),
                    number => self.attend(number, group, tracer, &mut out),
                }
            }
            if is_over {
                break;
            }
        }
        self.files.expire(Instant::now(), group);
        out.into_iter().for_each(|o| self.out_of_memory(group, o));
        self.leaving.see_off(group);
    }

    /// Looks at a connection, of which something is ready, or was.
    fn attend(
        &mut self,
        number: u64,
        group: &Group,
        tracer: &mut Tracer,
        out: &mut Vec<OutOfMemory>,
    ) {
        let Some(mut c) = self.connections.remove(&number) else {
            return;
        };
        // What it says last may be that its end is in order.
        let ended = (c.service.as_ref()).is_some_and(|s| pidfd::has_ended(&s.service_pidfd));
        self.read(&mut c, group, tracer, out);
        self.watch(&mut c, ended);
        if c.socket.is_none() {
            self.files.ended(number, Instant::now());
        }
        if c.socket.is_some() || c.service.is_some() {
            self.connections.insert(number, c);
        }
    }

    fn accept(&mut self) {
        for i in 0..self.listeners.len() {
            for _ in 0..AT_ONCE {
                let Some(socket) = accept(&self.listeners[i], libc::SOCK_NONBLOCK) else {
                    break;
                };
                // Anybody may connect; only our own user and our own tree may talk.
                if let Some(peer) = peer_of(&socket) {
                    self.connect(socket, peer);
                }
            }
        }
    }

    fn connect(&mut self, socket: Fd, peer: Peer) {
        self.connected += 1;
        let number = self.connected;
        // One that cannot be waited for is closed, which its other end sees.
        if let Ok(socket) = self.events.watch(socket, number) {
            let new = Connection::new(number, socket, peer);
            self.connections.insert(number, new);
        }
    }

    /// Kills one process, unless one is being killed or was since the sender has looked.
    fn out_of_memory(&mut self, group: &Group, o: OutOfMemory) {
        if o.kills != group.oom_kills() || self.spares(group) {
            return;
        }
        let services = self.connections.values().filter_map(|c| c.service.as_ref());
        let alive: Vec<_> = services
            .filter(|s| !pidfd::has_ended(&s.program_pidfd))
            .collect();
        let of = |line: LineId| alive.iter().find(|s| s.line == line);
        let known: Vec<_> = alive.iter().map(|s| s.line).collect();
        let choose = |may: &dyn Fn(LineId) -> bool| {
            let pid = |line| may(line).then(|| of(line).map_or(0, |s| s.program_here));
            points::choose(group, o.grower, pid).map(|p| p.line)
        };
        let (named, now) = (choose(&|_| true).unwrap_or(o.victim), Instant::now());
        // None: the sender will look again.
        let next = self.victims.next(named, &known, now, choose);
        if let Some(service) = next.and_then(of)
            && group.note_killed(service.line)
        {
            let _ = pidfd::kill(&service.program_pidfd, libc::SIGKILL);
            let charged = group.processes().find(|p| p.line == service.line);
            let what = format!(
                "deckle: out of memory: process {} killed ({} kB charged); ",
                service.program,
                charged.map_or(0, |p| p.charged * 4)
            );
            let text = [what.as_bytes(), &o.text].concat();
            voice::write(&self.reports.shown(text, now));
            if service.line != named {
                say(format_args!(
                    "another one does not die, or is not known here: process {} is killed instead",
                    service.program
                ));
            }
            self.victims.killed(service.line, now);
        }
    }

    /// Whether nobody need be killed: there is room again, or what processes have charged that have
    /// ended, or are about to, comes back by itself, on a busy machine late. The sender will look
    /// again.
    fn spares(&mut self, group: &Group) -> bool {
        let ends = |s: &&Service| {
            // The first task of a program may have ended long before the others.
            let last = || proc_stat(s.program_here).is_ok_and(|p| p.exiting && p.threads <= 1);
            pidfd::has_ended(&s.program_pidfd) || last()
        };
        let services = self.connections.values().filter_map(|c| c.service.as_ref());
        let ending: Vec<LineId> = (services.filter(ends).map(|s| s.line))
            .chain(self.leaving.lines())
            .collect();
        let owes = group.fold_stale() > 0
            || group.has_room()
            || (group.processes()).any(|p| p.charged > 0 && ending.contains(&p.line));
        let now = Instant::now();
        let recent = self.spared.filter(|[_, last]| *last + QUIET > now);
        let first = recent.map_or(now, |[first, _]| first);
        let spares = owes && now < first + SPARED;
        self.spared = spares.then_some([first, now]);
        spares
    }

    /// A connection for a program that will need one, in the child of a fork say.
    fn spare(&mut self, socket: &Fd) {
        if let Ok((ours, other)) = pair() {
            // Who speaks there is told with each packet.
            self.connect(ours, Peer::Tree);
            let _ = give_spare(socket, &other);
        }
    }

    /// Reads what has come on a connection.
    fn read(
        &mut self,
        c: &mut Connection,
        group: &Group,
        tracer: &mut Tracer,
        out: &mut Vec<OutOfMemory>,
    ) {
        for _ in 0..AT_ONCE {
            let Some(socket) = &c.socket else { return };
            let got = match receive(socket, &mut self.buffer) {
                Ok(got) if !got.packet.is_empty() => got,
                Err(Errno(libc::EAGAIN)) => return,
                _ => {
                    c.socket = None;
                    return;
                }
            };
            match Message::decode(got.packet) {
                Some(Message::Hello { pid, line, .. }) => {
                    let watch = |pidfd| self.events.watch(pidfd, c.number);
                    match hello(c.peer, pid, line, got.fds, got.sender, watch) {
                        Ok(service) => c.service = service,
                        // The service ends its program when the connection does.
                        Err(TooFew) => c.socket = None,
                    }
                    self.files.joined(c.number, line);
                }
                Some(Message::Kill) => c.kill(),
                Some(Message::Oom {
                    victim,
                    kills,
                    text,
                }) => out.push(OutOfMemory {
                    victim,
                    grower: c.service.as_ref().map(|s| s.line),
                    kills,
                    text: text.to_vec(),
                }),
                Some(Message::Ask) => {
                    let known = [self.page.as_ref(), self.device.as_ref()];
                    give_all(socket, got.sender.map(Known::of).as_ref(), known);
                }
                Some(Message::Spare) => self.spare(socket),
                Some(Message::File { number, fork }) => {
                    let _ = give_file(socket, self.files.give((c.number, fork), number, group));
                }
                Some(Message::Exec {
                    tid,
                    filtered,
                    child,
                    told,
                }) => {
                    let how = Held {
                        filtered,
                        child,
                        told,
                    };
                    hold(socket, got.sender.as_ref(), tid, how, tracer);
                }
                Some(Message::Say(text)) => voice::write(text),
                Some(Message::Unmanaged { path, reason }) => unmanaged(group, path, reason),
                Some(Message::Bye) => {
                    if let Some(s) = c.service.take() {
                        self.leaving.add(s.pid, s.service_pidfd, s.line);
                    }
                }
                None => say(format_args!("a message that is none of ours; ignored")),
            }
        }
    }

    /// A service that `ended` before all was read that it had to say: in order if its program did
    /// too, else the program dies with it.
    fn watch(&mut self, c: &mut Connection, ended: bool) {
        let Some(s) = &c.service else { return };
        let program_ended = pidfd::has_ended(&s.program_pidfd);
        if !program_ended && !ended {
            return;
        }
        // Looked at again: both may have ended between the two looks.
        if program_ended || pidfd::has_ended(&s.program_pidfd) {
            if let Some(s) = c.service.take() {
                self.leaving.add(s.pid, s.service_pidfd, s.line);
            }
            return;
        }
        // It has no more to tell.
        s.service_pidfd.rest();
        if !c.lost {
            c.lost = true;
            // The first process of a pid namespace ends after all others of it.
            let ends = proc_stat(pid_of(&s.program_pidfd)).is_ok_and(|p| p.exiting);
            if !self.victims.is_dying(s.line) && !ends {
                say(format_args!(
                    "process {}: its memory manager died, so its memory is lost: killed",
                    s.program
                ));
            }
            let _ = pidfd::kill(&s.program_pidfd, libc::SIGKILL);
        }
    }
}

/// Holds on to the thread of the sender's that executes a program, and says whether that is done.
fn hold(to: &Fd, sender: Option<&Fd>, tid: u32, how: Held, tracer: &mut Tracer) {
    let tid = sender.and_then(|sender| thread_of(pid_of(sender), tid));
    let _ = held(to, tid.is_some_and(|tid| tracer.hold(tid as i32, how)));
}

/// A program of the tree could not be managed.
fn unmanaged(group: &Group, path: &[u8], reason: &[u8]) {
    group.count_unmanaged_program();
    let [path, reason] = [path, reason].map(String::from_utf8_lossy);
    say(format_args!("{path}: runs outside the limit: {reason}"));
}

/// Gives a service what it may not open: the page and the device, and what is its own, as far as
/// we may.
fn give_all(to: &Fd, sender: Option<&Known>, [page, device]: [Option<&Fd>; 2]) {
    let open = |pid: u32, file: &str| {
        let path = CString::new(format!("/proc/{pid}/{file}")).ok()?;
        let fd = Fd::open(&path, libc::O_RDONLY, 0).ok()?;
        // Otherwise the number may be another's by now.
        (!pidfd::has_ended(&sender?.pidfd)).then_some(fd)
    };
    let program = sender.and_then(program_of);
    let stat = program.as_ref().and_then(|p| open(p.pid, "stat"));
    let pid = sender.map_or(0, |s| s.pid);
    let own = ["maps", "status", "pagemap", "mem", "smaps", "statm"].map(|file| open(pid, file));
    let [maps, status, pagemap, memory, smaps, statm] = own.each_ref().map(Option::as_ref);
    let (program, stat) = (program.as_ref().map(|p| &p.pidfd), stat.as_ref());
    let _ = give(
        to,
        [
            page, device, program, stat, maps, status, pagemap, memory, smaps, statm,
        ],
    );
}
