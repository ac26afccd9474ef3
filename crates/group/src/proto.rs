//! Messages from services to `deckle run`, over the abstract socket `\0deckle-NAME`.
//!
//! One SOCK_SEQPACKET packet is one message: a tag byte, then the rest. Nothing is sent back but
//! the descriptors that a service asks for at its start: the connection itself is the message.
//! Its end tells a service that `deckle run` is gone (then it kills its program), and `deckle
//! run` that the service is.
//!
//! Abstract names are of a network namespace: who is in another one connects to a socket in
//! /dev/shm. Neither name is a secret; `deckle run` looks who comes.

use core::time::Duration;

use deckle_door::link::{self, EXEC, UNMANAGED, Where};

use crate::attach::Name;
use crate::line::LineId;
use crate::socket::{self, FDS_MAX, Received, receive, send, wait};
use crate::sys::{Errno, Fd};

/// Longest packet.
pub const PACKET_MAX: usize = 16 * 1024;

const HELLO: u8 = 1;
const SAY: u8 = 2;
const BYE: u8 = 4;
const KILL: u8 = 5;
const OOM: u8 = 6;
const ASK: u8 = 7;
const SPARE: u8 = 8;
/// Longest wait for what was asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A message as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A service has begun; comes with its userfaultfd. Who that is, the packet's sender, the
    /// kernel says, and the program is its parent; or both come as pidfds, that of the service
    /// first.
    Hello {
        /// Pid of the program.
        pid: u32,
        /// Pid of the service.
        service: u32,
        /// Its line.
        line: LineId,
    },
    /// The service cannot go on: its program is to be killed. The reason was said before.
    Kill,
    /// Memory is out, and a process is to be killed, if none was since.
    Oom {
        /// Whose process.
        victim: LineId,
        /// Processes killed at the limit when the sender looked.
        kills: u64,
        /// The report, if it comes to that.
        text: &'a [u8],
    },
    /// The service may not open what it needs by itself; see [`Link::ask`].
    Ask,
    /// A thread of the sender's (its id there) is about to execute a program that needs the second
    /// door; see [`Link::announce`].
    Exec {
        /// The thread.
        tid: u32,
        /// The program will have the second door's filter already.
        filtered: bool,
        /// Not the thread itself, but a child that it makes.
        child: bool,
    },
    /// A fork is under way where nobody may connect; see [`Link::spare`].
    Spare,
    /// Text for the standard error of `deckle run`: whole lines.
    Say(&'a [u8]),
    /// A program that cannot be managed is executed; `path`, NUL, reason.
    Unmanaged {
        /// The program.
        path: &'a [u8],
        /// Why, for people.
        reason: &'a [u8],
    },
    /// The service ends in good order (its program ended or executed another).
    Bye,
}

impl<'a> Message<'a> {
    /// Reads a packet; `None` if it is none of ours.
    pub fn decode(packet: &'a [u8]) -> Option<Message<'a>> {
        let (&tag, rest) = packet.split_first()?;
        let number = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let line = |at: usize| {
            Some(LineId {
                index: number(at)? as u16,
                generation: number(at + 4)?,
            })
        };
        match tag {
            HELLO => Some(Message::Hello {
                pid: number(0)?,
                service: number(4)?,
                line: line(8)?,
            }),
            KILL => Some(Message::Kill),
            OOM => Some(Message::Oom {
                victim: line(0)?,
                kills: u64::from(number(8)?) | u64::from(number(12)?) << 32,
                text: rest.get(16..)?,
            }),
            ASK => Some(Message::Ask),
            EXEC => Some(Message::Exec {
                tid: number(0)?,
                filtered: *rest.get(4)? != 0,
                child: *rest.get(5)? != 0,
            }),
            SPARE => Some(Message::Spare),
            SAY => Some(Message::Say(rest)),
            UNMANAGED => {
                let nul = rest.iter().position(|&b| b == 0)?;
                Some(Message::Unmanaged {
                    path: &rest[..nul],
                    reason: &rest[nul + 1..],
                })
            }
            BYE => Some(Message::Bye),
            _ => None,
        }
    }
}

/// The sockets on which `deckle run` hears of services; accepting never waits. The second one may
/// be missing.
///
/// # Errors
/// There is no first one.
pub fn listen(name: Name) -> Result<(Fd, Option<Fd>), Errno> {
    let first = socket::listen(Where::Abstract, name, 256)?;
    Ok((first, socket::listen(Where::File, name, 256).ok()))
}

/// A service's connection to `deckle run`.
#[derive(Debug)]
pub struct Link(Fd);

impl Link {
    /// Connects. ECONNREFUSED: `deckle run` is gone, or out of reach.
    pub fn connect(name: Name) -> Result<Link, Errno> {
        let fd = link::connect(name.as_bytes()).map_err(Errno)?;
        Ok(Link(Fd::own(fd)))
    }

    /// The connection that somebody else has made.
    pub fn of(fd: Fd) -> Link {
        Link(fd)
    }

    /// Asks for what the caller may not open. To be called before anything is said.
    ///
    /// # Errors
    /// `deckle run` is gone, or knows nothing of the caller.
    pub fn ask(&self) -> Result<Given, Errno> {
        let mut buf = [0; 8];
        let got = self.answer(&[&[ASK]], &mut buf)?;
        let there = *got.packet.get(1).ok_or(Errno(libc::EPERM))?;
        let mut fds = got.fds.into_iter().flatten();
        let mut next = |bit: u8| (there >> bit & 1 == 1).then(|| fds.next()).flatten();
        Ok(Given {
            page: next(0),
            device: next(1),
            program: next(2),
            stat: next(3),
            maps: next(4),
            status: next(5),
            pagemap: next(6),
            memory: next(7),
        })
    }

    /// Asks for one connection more, for who may make none. Whoever shares this one may ask by it,
    /// at any time: one is as good as another.
    ///
    /// # Errors
    /// `deckle run` is gone, or has none.
    pub fn spare(&self) -> Result<Fd, Errno> {
        let [spare, ..] = self.answer(&[&[SPARE]], &mut [0; 8])?.fds;
        spare.ok_or(Errno(libc::EMFILE))
    }

    fn answer<'a>(&self, question: &[&[u8]], buf: &'a mut [u8]) -> Result<Received<'a>, Errno> {
        send(&self.0, question, &[])?;
        wait(&self.0, PATIENCE)?;
        receive(&self.0, buf)
    }

    /// Has `deckle run` hold on to the calling thread, or to a `child` that it is about to make,
    /// until that executes a program, into which it puts the second door. Who is held on to and
    /// does not, stops itself by `int3`. False: `deckle run` cannot.
    ///
    /// # Errors
    /// `deckle run` is gone.
    pub fn announce(&self, tid: u32, child: bool) -> Result<bool, Errno> {
        let id = tid.to_le_bytes();
        let question = [&[EXEC], &id[..], &[0, u8::from(child)]];
        Ok(self.answer(&question, &mut [0; 8])?.packet.first() == Some(&1))
    }

    /// Gives the descriptor away.
    pub fn into_raw(self) -> i32 {
        self.0.into_raw()
    }

    /// The descriptor: becomes readable at its end only.
    pub fn fd(&self) -> &Fd {
        &self.0
    }

    /// Announces a service: userfaultfd, and perhaps pidfds of the service and of the program.
    pub fn hello(
        &self,
        (pid, service): (u32, u32),
        line: LineId,
        fds: &[i32],
    ) -> Result<(), Errno> {
        let [index, generation] = line.words();
        let words = [pid, service, index, generation].map(u32::to_le_bytes);
        send(&self.0, &[&[HELLO], words.as_flattened()], fds)
    }

    /// Has `deckle run` kill this service's own program.
    pub fn kill(&self) -> Result<(), Errno> {
        send(&self.0, &[&[KILL]], &[])
    }

    /// Has `deckle run` kill the process of `victim` and print `text`, unless one is being killed
    /// or was since the caller has looked, when `kills` had been.
    pub fn out_of_memory(&self, victim: LineId, kills: u64, text: &[u8]) -> Result<(), Errno> {
        let line = victim.words().map(u32::to_le_bytes);
        let text = &text[..text.len().min(PACKET_MAX - 17)];
        let parts = [&[OOM], line.as_flattened(), &kills.to_le_bytes(), text];
        send(&self.0, &parts, &[])
    }

    /// Has `deckle run` print `text` (whole lines) on its standard error. Cut at the longest
    /// packet.
    pub fn say(&self, text: &[u8]) -> Result<(), Errno> {
        let text = &text[..text.len().min(PACKET_MAX - 1)];
        send(&self.0, &[&[SAY], text], &[])
    }

    /// Reports a program that will run without management.
    pub fn unmanaged(&self, path: &[u8], reason: &[u8]) -> Result<(), Errno> {
        let path = &path[..path.len().min(PACKET_MAX / 2)];
        let reason = &reason[..reason.len().min(PACKET_MAX / 2 - 2)];
        send(&self.0, &[&[UNMANAGED], path, &[0], reason], &[])
    }

    /// Says that the service ends in good order.
    pub fn bye(&self) -> Result<(), Errno> {
        send(&self.0, &[&[BYE]], &[])
    }
}

/// What `deckle run` gives to a service that asks, each if it has it: the group's page,
/// `/dev/userfaultfd`, a pidfd of the program and its `stat` in /proc; of the service's own files
/// there `maps`, `status`, `pagemap` and `mem`.
#[allow(missing_docs)]
pub struct Given {
    pub page: Option<Fd>,
    pub device: Option<Fd>,
    pub program: Option<Fd>,
    pub stat: Option<Fd>,
    pub maps: Option<Fd>,
    pub status: Option<Fd>,
    pub pagemap: Option<Fd>,
    pub memory: Option<Fd>,
}

/// `deckle run`'s answer to [`Message::Ask`]: what it has of [`Given`], in that order.
///
/// # Errors
/// The asker is gone.
pub fn give(to: &Fd, what: [Option<&Fd>; FDS_MAX]) -> Result<(), Errno> {
    let there = (0..)
        .zip(&what)
        .fold(0, |bits, (i, fd)| bits | u8::from(fd.is_some()) << i);
    let (mut raw, mut n) = ([-1; FDS_MAX], 0);
    for fd in what.into_iter().flatten() {
        raw[n] = fd.raw();
        n += 1;
    }
    send(to, &[&[ASK, there]], &raw[..n])
}

/// `deckle run`'s answer to [`Message::Spare`].
///
/// # Errors
/// As [`give`].
pub fn give_spare(to: &Fd, spare: &Fd) -> Result<(), Errno> {
    send(to, &[&[SPARE]], &[spare.raw()])
}

/// `deckle run`'s answer to [`Message::Exec`].
///
/// # Errors
/// The asker is gone.
pub fn held(to: &Fd, is_held: bool) -> Result<(), Errno> {
    send(to, &[&[u8::from(is_held)]], &[])
}
