//! Messages from services to `deckle run`, over the abstract socket `\0deckle-NAME`.
//!
//! One SOCK_SEQPACKET packet is one message: a tag byte, then the rest. Nothing is sent back but
//! the descriptors that a service asks for at its start: the connection itself is the message.
//! Its end tells a service that `deckle run` is gone (then it kills its program), and `deckle
//! run` that the service is.
//!
//! Abstract names are of a network namespace: who is in another one connects to a socket in
//! /dev/shm. Neither name is a secret; `deckle run` looks who comes.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use deckle_door::entry::Told;
use deckle_door::link::{Where, address, tag};
use deckle_sys::file::set_flags;
use deckle_sys::socket::{self, FDS_MAX, send};
use deckle_sys::{Errno, Fd};

pub use deckle_door::link::{Link, PACKET_MAX};

use crate::attach::Name;
use crate::line::LineId;

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
        /// What the program is told.
        told: Told,
    },
    /// A fork is under way where nobody may connect; see [`Link::spare`].
    Spare,
    /// A file for swapped pages is wanted; see [`Link::file`].
    File {
        /// Which; 0: a new one.
        number: u64,
        /// By which fork of its owner.
        fork: u64,
    },
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
            tag::HELLO => Some(Message::Hello {
                pid: number(0)?,
                service: number(4)?,
                line: line(8)?,
            }),
            tag::KILL => Some(Message::Kill),
            tag::OOM => Some(Message::Oom {
                victim: line(0)?,
                kills: u64::from(number(8)?) | u64::from(number(12)?) << 32,
                text: rest.get(16..)?,
            }),
            tag::ASK => Some(Message::Ask),
            tag::EXEC => Some(Message::Exec {
                tid: number(0)?,
                filtered: *rest.get(4)? != 0,
                child: *rest.get(5)? != 0,
                told: {
                    let words = rest.get(6..6 + size_of::<Told>())?.as_chunks::<8>().0;
                    core::array::from_fn(|i| u64::from_le_bytes(words[i]))
                },
            }),
            tag::SPARE => Some(Message::Spare),
            tag::FILE => {
                let [number, fork] = *rest.as_chunks().0 else {
                    return None;
                };
                let [number, fork] = [number, fork].map(u64::from_le_bytes);
                Some(Message::File { number, fork })
            }
            tag::SAY => Some(Message::Say(rest)),
            tag::UNMANAGED => {
                let nul = rest.iter().position(|&b| b == 0)?;
                Some(Message::Unmanaged {
                    path: &rest[..nul],
                    reason: &rest[nul + 1..],
                })
            }
            tag::BYE => Some(Message::Bye),
            _ => None,
        }
    }
}

/// The sockets on which `deckle run` hears of services; accepting never waits. The second one may
/// be missing. An abstract name has no permissions, and the file's are for everybody: who accepts a
/// connection has to find out who is there.
///
/// # Errors
/// There is no first one.
pub fn listen(name: Name) -> Result<(Fd, Option<Fd>), Errno> {
    let [first, second] = [Where::Abstract, Where::File].map(|place| {
        let at = address(place, name.as_bytes());
        let fd = socket::listen(&at, 256)?;
        if place == Where::File {
            let path = OsStr::from_bytes(at.path().to_bytes());
            let _ = std::fs::set_permissions(path, Permissions::from_mode(0o666));
        }
        Ok(fd)
    });
    Ok((first?, second.ok()))
}

/// Two ends of a connection: ours, which never waits and tells senders, and one to give away.
///
/// # Errors
/// The system has none.
pub fn pair() -> Result<(Fd, Fd), Errno> {
    let [ours, other] = socket::pair()?;
    socket::tell_senders(&ours);
    set_flags(&ours, libc::O_NONBLOCK)?;
    Ok((ours, other))
}

/// `deckle run`'s answer to [`Message::Ask`]: what it has of
/// [`Given`](deckle_door::link::Given), in that order.
///
/// # Errors
/// The asker is gone.
pub fn give(to: &Fd, what: [Option<&Fd>; FDS_MAX]) -> Result<(), Errno> {
    let there = (0..)
        .zip(&what)
        .fold(0, |bits, (i, fd)| bits | u16::from(fd.is_some()) << i);
    let (mut raw, mut n) = ([-1; FDS_MAX], 0);
    for fd in what.into_iter().flatten() {
        raw[n] = fd.raw();
        n += 1;
    }
    send(to, &[&[tag::ASK], &there.to_le_bytes()], &raw[..n])
}

/// `deckle run`'s answer to [`Message::Spare`].
///
/// # Errors
/// As [`give`].
pub fn give_spare(to: &Fd, spare: &Fd) -> Result<(), Errno> {
    send(to, &[&[tag::SPARE]], &[spare.raw()])
}

/// `deckle run`'s answer to [`Message::File`]: a file and its number, or why there is none.
///
/// # Errors
/// As [`give`].
pub fn give_file(to: &Fd, file: Result<(u64, &Fd), Errno>) -> Result<(), Errno> {
    match file {
        Ok((number, fd)) => {
            let head = [tag::FILE, 0, 0, 0, 0, 0, 0, 0];
            send(to, &[&head, &number.to_le_bytes()], &[fd.raw()])
        }
        Err(Errno(errno)) => send(to, &[&[tag::FILE, errno as u8]], &[]),
    }
}

/// `deckle run`'s answer to [`Message::Exec`].
///
/// # Errors
/// The asker is gone.
pub fn held(to: &Fd, is_held: bool) -> Result<(), Errno> {
    send(to, &[&[u8::from(is_held)]], &[])
}
