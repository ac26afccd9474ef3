//! The services of the tree: their connections, the duplicates of their descriptors, and the
//! watch over them.
//!
//! A duplicate of each userfaultfd is held here, because closing the last one turns evicted
//! memory into zeros. When a service dies while its program lives, the program would wait for
//! ever at its next fault: it is killed, with one line.
//!
//! What becomes of a service whose program has ended: see [`super::leaving`].

use std::time::Instant;

use deckle_group::proto::{Message, PACKET_MAX, listen};
use deckle_group::socket::{FDS_MAX, accept, receive};
use deckle_group::sys::{Errno, Fd, pidfd_ended, pidfd_kill, pidfd_open, to_read};
use deckle_group::{Group, Name};

use super::leaving::Leavings;
use super::tree::is_service_task;
use crate::fail::Fail;
use crate::procfs::field;
use crate::say;

struct Service {
    program: u32,
    /// In this process's pid namespace; 0 if it has no pid here.
    pid: u32,
    /// Held, never used: see the head of the file.
    _userfaultfd: Fd,
    service_pidfd: Fd,
    program_pidfd: Fd,
}

struct Connection {
    socket: Option<Fd>,
    service: Option<Service>,
    bye: bool,
}

/// All of them.
pub struct Services {
    listener: Fd,
    connections: Vec<Connection>,
    leaving: Leavings,
    buffer: Vec<u8>,
}

impl Services {
    /// Listens on the group's socket.
    pub fn listen(name: Name) -> Result<Services, Fail> {
        let listener = listen(name)
            .map_err(|e| Fail::own(format!("no socket for the services to connect to: {e}")))?;
        Ok(Services {
            listener,
            connections: Vec::new(),
            leaving: Leavings::default(),
            buffer: vec![0; PACKET_MAX],
        })
    }

    /// Adds what is to be polled.
    pub fn poll_set(&self, set: &mut Vec<libc::pollfd>) {
        let mut add = |fd| set.push(to_read(fd));
        add(self.listener.raw());
        for c in &self.connections {
            if let Some(socket) = &c.socket {
                add(socket.raw());
            }
            if let Some(s) = &c.service {
                add(s.service_pidfd.raw());
                add(s.program_pidfd.raw());
            }
        }
        self.leaving.fds().for_each(add);
    }

    /// When [`work`](Services::work) has something to do without any event.
    pub fn deadline(&self) -> Option<Instant> {
        self.leaving.deadline()
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
        if found && let Ok(pidfd) = pidfd_open(pid) {
            self.leaving.add(pid, pidfd);
        }
        found
    }

    /// Does whatever is to be done; never waits.
    pub fn work(&mut self, group: &Group) {
        self.accept();
        let mut connections = std::mem::take(&mut self.connections);
        for c in &mut connections {
            self.read(c, group);
            self.watch(c);
        }
        connections.retain(|c| c.socket.is_some() || c.service.is_some());
        connections.append(&mut self.connections);
        self.connections = connections;
        self.leaving.see_off();
    }

    fn accept(&mut self) {
        while let Some(socket) = accept(&self.listener, libc::SOCK_NONBLOCK) {
            // Abstract sockets have no permissions: only our own user may talk.
            if peer_is_ours(&socket) {
                let c = Connection {
                    socket: Some(socket),
                    service: None,
                    bye: false,
                };
                self.connections.push(c);
            }
        }
    }

    fn read(&mut self, c: &mut Connection, group: &Group) {
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
                Some(Message::Hello { pid, .. }) => c.service = hello(pid, got.fds),
                Some(Message::Say(text)) => print_raw(text),
                Some(Message::Unmanaged { path, reason }) => {
                    group.count_unmanaged_program();
                    let (path, reason) = (
                        String::from_utf8_lossy(path),
                        String::from_utf8_lossy(reason),
                    );
                    say(format_args!("{path}: runs outside the limit: {reason}"));
                }
                Some(Message::Bye) => {
                    c.bye = true;
                    if let Some(s) = c.service.take() {
                        self.leaving.add(s.pid, s.service_pidfd);
                    }
                }
                None => say(format_args!("a message that is none of ours; ignored")),
            }
        }
    }

    /// A service that ended: in order if its program did too, else the program dies with it.
    fn watch(&mut self, c: &mut Connection) {
        let Some(s) = &c.service else { return };
        let program_ended = pidfd_ended(&s.program_pidfd);
        if !program_ended && !pidfd_ended(&s.service_pidfd) {
            return;
        }
        // Looked at again: both may have ended between the two looks.
        if !program_ended && !c.bye && !pidfd_ended(&s.program_pidfd) {
            say(format_args!(
                "process {}: its memory manager died, so its memory is lost: killed",
                s.program
            ));
            let _ = pidfd_kill(&s.program_pidfd, libc::SIGKILL);
        }
        if let Some(s) = c.service.take() {
            self.leaving.add(s.pid, s.service_pidfd);
        }
    }
}

fn hello(pid: u32, fds: [Option<Fd>; FDS_MAX]) -> Option<Service> {
    match fds {
        [Some(userfaultfd), Some(service_pidfd), Some(program_pidfd)] => Some(Service {
            program: pid,
            pid: pid_of(&service_pidfd),
            _userfaultfd: userfaultfd,
            service_pidfd,
            program_pidfd,
        }),
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

fn peer_is_ours(socket: &Fd) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a live ucred and its size.
    let rc = unsafe {
        libc::getsockopt(
            socket.raw(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut len,
        )
    };
    // SAFETY: a call without arguments.
    rc == 0 && (peer.uid == unsafe { libc::geteuid() } || peer.uid == 0)
}

/// A service's text as it is, in one write, so that lines of several do not mix.
fn print_raw(text: &[u8]) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text);
    if !text.ends_with(b"\n") {
        let _ = std::io::stderr().write_all(b"\n");
    }
}
