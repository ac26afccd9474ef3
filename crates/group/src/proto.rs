//! Messages from services to `deckle run`, over the abstract socket `\0deckle-NAME`.
//!
//! One SOCK_SEQPACKET packet is one message: a tag byte, then the rest. Nothing is ever sent
//! back: the connection itself is the message. Its end tells a service that `deckle run` is
//! gone (then it kills its program), and `deckle run` that the service is.

use core::mem::{offset_of, size_of};

use crate::attach::Name;
use crate::sys::{Errno, Fd};

/// Longest packet.
pub const PACKET_MAX: usize = 16 * 1024;
/// Descriptors with a Hello: userfaultfd, pidfd of the service, pidfd of the program.
pub const HELLO_FDS: usize = 3;

const HELLO: u8 = 1;
const SAY: u8 = 2;
const UNMANAGED: u8 = 3;
const BYE: u8 = 4;

/// A message as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A service has begun; comes with [`HELLO_FDS`] descriptors.
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

/// The abstract address of a group's socket.
pub fn address(name: Name) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: sockaddr_un is plain data, and all zeros is a value of it.
    let mut at: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    at.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = b"deckle-".iter().chain(name.as_bytes());
    let mut len = offset_of!(libc::sockaddr_un, sun_path) + 1;
    for (to, from) in at.sun_path[1..].iter_mut().zip(text) {
        *to = *from as libc::c_char;
        len += 1;
    }
    (at, len as libc::socklen_t)
}

/// A service's connection to `deckle run`.
#[derive(Debug)]
pub struct Link(Fd);

impl Link {
    /// Connects. ECONNREFUSED: `deckle run` is gone.
    pub fn connect(name: Name) -> Result<Link, Errno> {
        // SAFETY: a system call on numbers.
        let raw =
            unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(Errno::last());
        }
        let fd = Fd::own(raw);
        let (at, len) = address(name);
        // SAFETY: `at` is a live address of which `len` bytes are used.
        let rc = unsafe { libc::connect(fd.raw(), (&raw const at).cast(), len) };
        if rc < 0 {
            Err(Errno::last())
        } else {
            Ok(Link(fd))
        }
    }

    /// The descriptor: becomes readable at its end only.
    pub fn fd(&self) -> &Fd {
        &self.0
    }

    /// Announces a service: userfaultfd, pidfd of the service, pidfd of the program.
    pub fn hello(&self, pid: u32, service: u32, fds: [i32; HELLO_FDS]) -> Result<(), Errno> {
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

/// Sends up to four parts as one packet, with up to [`HELLO_FDS`] descriptors.
pub(crate) fn send(fd: &Fd, parts: &[&[u8]], fds: &[i32]) -> Result<(), Errno> {
    const FDS_BYTES: usize = HELLO_FDS * size_of::<i32>();
    let mut iov = [libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 4];
    for (to, from) in iov.iter_mut().zip(parts) {
        to.iov_base = from.as_ptr().cast_mut().cast();
        to.iov_len = from.len();
    }
    // u64s, because control messages are aligned to a word.
    let mut control = [0u64; 8];
    // SAFETY: msghdr is plain data, and all zeros is a value of it.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = parts.len().min(iov.len());
    let bytes = size_of_val(fds).min(FDS_BYTES);
    if bytes > 0 {
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE computes a size.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as usize;
        // SAFETY: the control buffer (64 bytes) holds a header and three descriptors, and
        // msg_controllen says so, hence CMSG_FIRSTHDR is not null.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&msg);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(bytes as u32) as usize;
            core::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(head), bytes);
        }
    }
    loop {
        // SAFETY: every pointer in `msg` is to a live buffer of the stated length.
        let sent = unsafe { libc::sendmsg(fd.raw(), &msg, libc::MSG_NOSIGNAL) };
        match sent {
            n if n >= 0 => return Ok(()),
            _ if Errno::last().0 == libc::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
}

/// One received packet with its descriptors.
#[derive(Debug)]
pub struct Received<'a> {
    /// The bytes; empty at the end of the connection.
    pub packet: &'a [u8],
    /// Descriptors that came along, close-on-exec.
    pub fds: [Option<Fd>; HELLO_FDS],
}

/// Receives one packet from `fd` without waiting. EAGAIN when there is none.
pub fn receive<'a>(fd: &Fd, buf: &'a mut [u8]) -> Result<Received<'a>, Errno> {
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    let mut control = [0u64; 8];
    // SAFETY: msghdr is plain data, and all zeros is a value of it.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let n = loop {
        // SAFETY: every pointer in `msg` is to a live buffer of the stated length.
        let n = unsafe { libc::recvmsg(fd.raw(), &mut msg, flags) };
        if n >= 0 {
            break n as usize;
        }
        let e = Errno::last();
        if e.0 != libc::EINTR {
            return Err(e);
        }
    };
    let mut fds = [const { None }; HELLO_FDS];
    let mut next = 0;
    // SAFETY: recvmsg filled the control buffer and set its length; the walk stays inside it,
    // and each SCM_RIGHTS message holds whole descriptors, which are ours from now on.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(&msg);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(head).cast::<i32>();
                for i in 0..bytes / size_of::<i32>() {
                    let got = Fd::own(data.add(i).read_unaligned());
                    // More than expected: dropped, that is closed.
                    if let Some(place) = fds.get_mut(next) {
                        *place = Some(got);
                        next += 1;
                    }
                }
            }
            head = libc::CMSG_NXTHDR(&msg, head);
        }
    }
    Ok(Received {
        packet: &buf[..n.min(buf.len())],
        fds,
    })
}
