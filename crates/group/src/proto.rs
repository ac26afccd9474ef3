//! Messages from services to `deckle run`, over the abstract socket `\0deckle-NAME`.
//!
//! One SOCK_SEQPACKET packet is one message: a tag byte, then the rest. Nothing is ever sent
//! back: the connection itself is the message. Its end tells a service that `deckle run` is
//! gone (then it kills its program), and `deckle run` that the service is.

use crate::attach::Name;
use crate::socket::{self, FDS_MAX, send};
use crate::sys::{Errno, Fd};

/// Longest packet.
pub const PACKET_MAX: usize = 16 * 1024;
/// Abstract names of a group begin with it.
pub(crate) const PREFIX: &[u8] = b"deckle-";

const HELLO: u8 = 1;
const SAY: u8 = 2;
const UNMANAGED: u8 = 3;
const BYE: u8 = 4;

/// A message as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A service has begun; comes with three descriptors: userfaultfd, pidfd of the
    /// service, pidfd of the program.
    Hello {
        /// Pid of the program.
        pid: u32,
        /// Pid of the service.
        service: u32,
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
        match tag {
            HELLO => Some(Message::Hello {
                pid: number(0)?,
                service: number(4)?,
            }),
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

/// The socket on which `deckle run` hears of services; accepting never waits.
pub fn listen(name: Name) -> Result<Fd, Errno> {
    socket::listen(&[PREFIX, name.as_bytes()], 256)
}

/// A service's connection to `deckle run`.
#[derive(Debug)]
pub struct Link(Fd);

impl Link {
    /// Connects. ECONNREFUSED: `deckle run` is gone.
    pub fn connect(name: Name) -> Result<Link, Errno> {
        socket::connect(&[PREFIX, name.as_bytes()]).map(Link)
    }

    /// The descriptor: becomes readable at its end only.
    pub fn fd(&self) -> &Fd {
        &self.0
    }

    /// Announces a service: userfaultfd, pidfd of the service, pidfd of the program.
    pub fn hello(&self, pid: u32, service: u32, fds: [i32; FDS_MAX]) -> Result<(), Errno> {
        let mut packet = [0u8; 9];
        packet[0] = HELLO;
        packet[1..5].copy_from_slice(&pid.to_le_bytes());
        packet[5..9].copy_from_slice(&service.to_le_bytes());
        send(&self.0, &[&packet], &fds)
    }

    /// Has `deckle run` print `text` (whole lines) on its standard error. Cut at the longest
    /// packet.
    pub fn say(&self, text: &[u8]) -> Result<(), Errno> {
        send(
            &self.0,
            &[&[SAY], &text[..text.len().min(PACKET_MAX - 1)]],
            &[],
        )
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
