//! The services of the tree: their connections, the duplicates of their descriptors, and the
//! watch over them.
//!
//! A duplicate of each userfaultfd is held here, because closing the last one turns evicted
//! memory into zeros. When a service dies while its program lives, the program would wait for
//! ever at its next fault: it is killed, with one line.
//!
//! What becomes of a service whose program has ended: see [`super::leaving`].

use std::ffi::CString;
use std::time::{Duration, Instant};

use deckle_group::proc::proc_stat;
use deckle_group::proto::{Message, PACKET_MAX, give, give_file, give_spare, held, listen, pair};
use deckle_group::{Group, LineId, Name};
use deckle_sys::poll::to_read;
use deckle_sys::socket::{FDS_MAX, accept, receive};
use deckle_sys::{Errno, Fd, pidfd};

use super::inject::{Held, Tracer};
use super::leaving::Leavings;
use super::peer::{Peer, is_descendant, peer_of, thread_of};
use super::swapfile::SwapFiles;
use super::tree::is_service_task;
use crate::fail::Fail;
use crate::procfs::field;
use crate::say;

struct Service {
    program: u32,
    /// The same in this process's pid namespace; 0 if it has no pid here.
    program_here: u32,
    line: LineId,
    /// In this process's pid namespace; 0 if it has no pid here.
    pid: u32,
    /// Held, never used: see the head of the file.
    _userfaultfd: Fd,
    service_pidfd: Fd,
    program_pidfd: Fd,
}

struct Connection {
    number: u64,
    socket: Option<Fd>,
    peer: Peer,
    service: Option<Service>,
    /// Its program is being killed: the service has ended before it, or cannot go on.
    lost: bool,
}

impl Connection {
    fn new(number: u64, socket: Fd, peer: Peer) -> Connection {
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
/// Without a word for so long, memory is not out any more.
const QUIET: Duration = Duration::from_secs(1);

/// A process that is to be killed because memory is out.
struct OutOfMemory {
    victim: LineId,
    kills: u64,
    text: Vec<u8>,
}

/// All of them.
pub struct Services {
    listeners: Vec<Fd>,
    /// What is given to services that may not open it themselves.
    page: Option<Fd>,
    device: Option<Fd>,
    connections: Vec<Connection>,
    /// Connections until now.
    connected: u64,
    files: SwapFiles,
    /// Who is being killed at the limit.
    dying: Option<LineId>,
    /// Nobody was killed at the limit, though asked for, since the first time and until the second.
    spared: Option<[Instant; 2]>,
    leaving: Leavings,
    buffer: Vec<u8>,
}

impl Services {
    /// The programs that have a service: their pids here, whatever they are to themselves, and
    /// their lines.
    pub fn programs(&self) -> Vec<(u32, LineId)> {
        let services = self.connections.iter().filter_map(|c| c.service.as_ref());
        services.map(|s| (s.program_here, s.line)).collect()
    }

    /// Listens on the group's socket.
    pub fn listen(name: Name, files: SwapFiles) -> Result<Services, Fail> {
        let (first, second) = listen(name)
            .map_err(|e| Fail::own(format!("no socket for the services to connect to: {e}")))?;
        Ok(Services {
            listeners: [Some(first), second].into_iter().flatten().collect(),
            page: Group::open(name).ok(),
            device: Fd::open(c"/dev/userfaultfd", libc::O_RDWR, 0).ok(),
            connections: Vec::new(),
            connected: 0,
            files,
            dying: None,
            spared: None,
            leaving: Leavings::default(),
            buffer: vec![0; PACKET_MAX],
        })
    }

    /// Adds what is to be polled.
    pub fn poll_set(&self, set: &mut Vec<libc::pollfd>) {
        let mut add = |fd| set.push(to_read(fd));
        self.listeners.iter().for_each(|l| add(l.raw()));
        for c in &self.connections {
            if let Some(socket) = &c.socket {
                add(socket.raw());
            }
            if let Some(s) = &c.service {
                if !c.lost {
                    add(s.service_pidfd.raw());
                }
                add(s.program_pidfd.raw());
            }
        }
        self.leaving.fds().for_each(add);
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
        if self.leaving.has(pid) || self.connections.iter().any(serves) {
            return true;
        }
        // One that never got as far as its first message.
        let found = is_service_task(pid);
        if found && let Ok(pidfd) = pidfd::open(pid) {
            self.leaving.add(pid, pidfd, LineId::NONE);
        }
        found
    }

    /// Does whatever is to be done; never waits.
    pub fn work(&mut self, group: &Group, tracer: &mut Tracer) {
        self.accept();
        let mut connections = std::mem::take(&mut self.connections);
        let mut out = Vec::new();
        for c in &mut connections {
            self.read(c, group, tracer, &mut out);
            self.watch(c);
        }
        let now = Instant::now();
        for c in connections.iter().filter(|c| c.socket.is_none()) {
            self.files.ended(c.number, now);
        }
        self.files.expire(now, group);
        connections.retain(|c| c.socket.is_some() || c.service.is_some());
        connections.append(&mut self.connections);
        self.connections = connections;
        out.into_iter().for_each(|o| self.out_of_memory(group, o));
        self.leaving.see_off(group);
    }

    fn accept(&mut self) {
        for i in 0..self.listeners.len() {
            while let Some(socket) = accept(&self.listeners[i], libc::SOCK_NONBLOCK) {
                // Anybody may connect; only our own user and our own tree may talk.
                if let Some(peer) = peer_of(&socket) {
                    self.connect(socket, peer);
                }
            }
        }
    }

    fn connect(&mut self, socket: Fd, peer: Peer) {
        self.connected += 1;
        let new = Connection::new(self.connected, socket, peer);
        self.connections.push(new);
    }

    /// Kills one process, unless one is being killed or was since the sender has looked.
    fn out_of_memory(&mut self, group: &Group, o: OutOfMemory) {
        if o.kills != group.oom_kills() || self.spares(group) {
            return;
        }
        let of = |line: LineId| {
            let services = self.connections.iter().filter_map(|c| c.service.as_ref());
            let mut alive = services.filter(|s| !pidfd::has_ended(&s.program_pidfd));
            alive.find(move |s| s.line == line)
        };
        if self.dying.is_some_and(|line| of(line).is_some()) {
            return;
        }
        // One that has not said hello yet: the sender will look again.
        if let Some(service) = of(o.victim)
            && group.note_killed(o.victim)
        {
            print_raw(&o.text);
            let _ = pidfd::kill(&service.program_pidfd, libc::SIGKILL);
            self.dying = Some(o.victim);
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
        let services = self.connections.iter().filter_map(|c| c.service.as_ref());
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
        while let Some(socket) = &c.socket {
            let got = match receive(socket, &mut self.buffer) {
                Ok(got) => got,
                Err(Errno(libc::EAGAIN)) => return,
                Err(_) => {
                    c.socket = None;
                    return;
                }
            };
            if got.packet.is_empty() {
                c.socket = None;
                return;
            }
            match Message::decode(got.packet) {
                Some(Message::Hello { pid, line, .. }) => {
                    c.service = hello(c.peer, pid, line, got.fds, got.sender);
                    self.files.joined(c.number, line);
                }
                Some(Message::Kill) => c.kill(),
                Some(Message::Oom {
                    victim,
                    kills,
                    text,
                }) => out.push(OutOfMemory {
                    victim,
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
                    let pid = got.sender.as_ref().map(pid_of);
                    let how = Held {
                        filtered,
                        child,
                        told,
                    };
                    let tid = pid.and_then(|pid| thread_of(pid, tid));
                    let _ = held(socket, tid.is_some_and(|tid| tracer.hold(tid as i32, how)));
                }
                Some(Message::Say(text)) => print_raw(text),
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

    /// A service that ended: in order if its program did too, else the program dies with it.
    fn watch(&mut self, c: &mut Connection) {
        let Some(s) = &c.service else { return };
        let program_ended = pidfd::has_ended(&s.program_pidfd);
        if !program_ended && !pidfd::has_ended(&s.service_pidfd) {
            return;
        }
        // Looked at again: both may have ended between the two looks.
        if program_ended || pidfd::has_ended(&s.program_pidfd) {
            if let Some(s) = c.service.take() {
                self.leaving.add(s.pid, s.service_pidfd, s.line);
            }
        } else if !c.lost {
            c.lost = true;
            // The first process of a pid namespace ends after all others of it.
            let ends = proc_stat(pid_of(&s.program_pidfd)).is_ok_and(|p| p.exiting);
            if self.dying != Some(s.line) && !ends {
                say(format_args!(
                    "process {}: its memory manager died, so its memory is lost: killed",
                    s.program
                ));
            }
            let _ = pidfd::kill(&s.program_pidfd, libc::SIGKILL);
        }
    }
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
    let own = ["maps", "status", "pagemap", "mem"].map(|file| open(pid, file));
    let [maps, status, pagemap, memory] = own.each_ref().map(Option::as_ref);
    let (program, stat) = (program.as_ref().map(|p| &p.pidfd), stat.as_ref());
    let _ = give(
        to,
        [page, device, program, stat, maps, status, pagemap, memory],
    );
}

/// A process, and its pid in this process's namespace; 0 if it has none here.
struct Known {
    pidfd: Fd,
    pid: u32,
}

impl Known {
    fn of(pidfd: Fd) -> Known {
        let pid = pid_of(&pidfd);
        Known { pidfd, pid }
    }
}

/// Whom a hello is about: a service and its program, which calls itself `pid`. By the descriptors
/// that came with it; or it is who has sent it, and that one's program is known.
fn identified(
    pid: u32,
    [service, program]: [Option<Fd>; 2],
    sender: Option<Fd>,
) -> [Option<Known>; 2] {
    if service.is_some() {
        return [service, program].map(|fd| fd.map(Known::of));
    }
    // Not who has adopted the service since.
    let named = |program: &Known| {
        let path = format!("/proc/{}/status", program.pid);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with("NSpid:"));
        line.and_then(|l| l.split_whitespace().last()?.parse().ok()) == Some(pid)
    };
    let service = sender.map(Known::of);
    let program = service.as_ref().and_then(program_of).filter(named);
    [service, program]
}

/// The program of a service: its parent.
fn program_of(service: &Known) -> Option<Known> {
    let parent = || proc_stat(service.pid).ok().map(|s| s.parent);
    let pid = parent()?;
    let pidfd = pidfd::open(pid).ok()?;
    // Its child still, and so nobody else has the number; nor the service's, while that lives.
    let known = pid != std::process::id() && parent() == Some(pid);
    (known && !pidfd::has_ended(&service.pidfd)).then_some(Known { pidfd, pid })
}

fn hello(
    peer: Peer,
    pid: u32,
    line: LineId,
    mut fds: [Option<Fd>; FDS_MAX],
    sender: Option<Fd>,
) -> Option<Service> {
    let [service, program] = identified(pid, [fds[1].take(), fds[2].take()], sender);
    match (fds[0].take(), service, program) {
        // Whoever is named here may be killed by us later: by our user no other than he could.
        (Some(userfaultfd), Some(service), Some(program))
            if peer == Peer::User || is_descendant(service.pid) && is_descendant(program.pid) =>
        {
            Some(Service {
                program: pid,
                program_here: program.pid,
                line,
                pid: service.pid,
                _userfaultfd: userfaultfd,
                service_pidfd: service.pidfd,
                program_pidfd: program.pidfd,
            })
        }
        // One that has ended has no number any more.
        (_, _, Some(program)) if pidfd::has_ended(&program.pidfd) => None,
        // Its program has ended, and it will see that.
        (Some(_), Some(_), None) => None,
        (Some(_), Some(_), Some(_)) => {
            say(format_args!(
                "process {pid}: its service names a process that is none of ours; ignored"
            ));
            None
        }
        _ => {
            say(format_args!(
                "process {pid}: its service sent too few descriptors; ignored"
            ));
            None
        }
    }
}

/// The pid, in this process's namespace, of the process behind `pidfd`; 0 if it has none.
fn pid_of(pidfd: &Fd) -> u32 {
    let path = format!("/proc/self/fdinfo/{}", pidfd.raw());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    field(&text, "Pid:")
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// A service's text as it is, in one write, so that lines of several do not mix.
fn print_raw(text: &[u8]) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text);
    if !text.ends_with(b"\n") {
        let _ = std::io::stderr().write_all(b"\n");
    }
}
