//! The way to `deckle run`, for who has no C library, too: its socket, and what is said there.
//!
//! One SOCK_SEQPACKET packet is one message: a tag byte, then the rest; descriptors may come along.

use crate::entry::Told;
use crate::fd::{Errno, Fd};
use crate::sys::call;
use core::mem::{offset_of, size_of};

/// Longest packet.
pub const PACKET_MAX: usize = 16 * 1024;
/// Most descriptors that come with a packet.
pub const FDS_MAX: usize = 8;
/// Longest wait for what was asked for, in milliseconds.
const PATIENCE: usize = 10_000;

/// The first byte of a message.
pub mod tag {
    #![allow(missing_docs, reason = "as the methods of Link of these names")]
    pub const HELLO: u8 = 1;
    pub const SAY: u8 = 2;
    pub const UNMANAGED: u8 = 3;
    pub const BYE: u8 = 4;
    pub const KILL: u8 = 5;
    pub const OOM: u8 = 6;
    pub const ASK: u8 = 7;
    pub const SPARE: u8 = 8;
    pub const EXEC: u8 = 9;
    pub const FILE: u8 = 10;
}

/// Where the socket is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// By an abstract name of the network namespace.
    Abstract,
    /// By a file, beside the group's page.
    File,
}

/// The socket's address in the group of that name, and the bytes of it that are used; cut at the
/// longest there can be.
pub fn address(place: Where, group: &[u8]) -> (libc::sockaddr_un, usize) {
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    let before: &[u8] = match place {
        Where::Abstract => b"\0deckle-",
        Where::File => b"/dev/shm/.deckle-",
    };
    let mut len = offset_of!(libc::sockaddr_un, sun_path);
    for (to, from) in address.sun_path[..107]
        .iter_mut()
        .zip(before.iter().chain(group))
    {
        *to = *from as libc::c_char;
        len += 1;
    }
    // A file's with the zero behind it.
    (address, len + usize::from(place == Where::File))
}

fn connect_at(place: Where, group: &[u8]) -> Result<Fd, Errno> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    let (at, len) = address(place, group);
    // SAFETY: a new descriptor; an address of which that many bytes are used.
    unsafe {
        let fd = call(libc::SYS_socket, [libc::AF_UNIX as usize, kind]);
        let fd = Fd::own(fd.map_err(Errno)? as i32);
        let to = &raw const at as usize;
        let done = call(libc::SYS_connect, [fd.raw() as usize, to, len]);
        done.map(|_| fd).map_err(Errno)
    }
}

/// The kernel's `struct msghdr`, in words: name, parts of the packet, control messages, flags.
#[repr(C)]
struct Header {
    name: [usize; 2],
    parts: [usize; 2],
    control: [usize; 2],
    flags: usize,
}

/// A call on a packet, made again when a signal has come.
fn transfer(
    number: libc::c_long,
    fd: &Fd,
    header: &mut Header,
    flags: i32,
) -> Result<usize, Errno> {
    let at = core::ptr::from_mut(header) as usize;
    loop {
        // SAFETY: every address in the header is that of a live buffer of the stated length.
        match unsafe { call(number, [fd.raw() as usize, at, flags as usize]) } {
            Err(libc::EINTR) => {}
            other => return other.map_err(Errno),
        }
    }
}

/// A control message begins with its bytes, and with its level and kind in a word.
const fn kind(level: i32, kind: i32) -> u64 {
    level as u64 | (kind as u64) << 32
}
const RIGHTS: u64 = kind(libc::SOL_SOCKET, libc::SCM_RIGHTS);
/// Linux's `SCM_PIDFD`.
const SENDER: u64 = kind(libc::SOL_SOCKET, 4);

/// Sends up to four parts as one packet, with up to [`FDS_MAX`] descriptors.
///
/// # Errors
/// The other end is gone, or what the system says.
pub fn send(fd: &Fd, parts: &[&[u8]], fds: &[i32]) -> Result<(), Errno> {
    let (mut list, count) = ([[0_usize; 2]; 4], parts.len().min(4));
    for (to, from) in list.iter_mut().zip(parts) {
        *to = [from.as_ptr() as usize, from.len()];
    }
    let n = fds.len().min(FDS_MAX);
    let mut control = [0_u64; 2 + FDS_MAX / 2];
    (control[0], control[1]) = (16 + 4 * n as u64, RIGHTS);
    for (i, fd) in fds[..n].iter().enumerate() {
        control[2 + i / 2] |= u64::from(*fd as u32) << (32 * (i % 2));
    }
    let bytes = match n {
        0 => 0,
        n => 16 + (4 * n).next_multiple_of(8),
    };
    let mut header = Header {
        name: [0; 2],
        parts: [list.as_ptr() as usize, count],
        control: [control.as_ptr() as usize, bytes],
        flags: 0,
    };
    transfer(libc::SYS_sendmsg, fd, &mut header, libc::MSG_NOSIGNAL).map(drop)
}

/// One received packet with its descriptors.
#[derive(Debug)]
pub struct Received<'a> {
    /// The bytes; empty at the end of the connection.
    pub packet: &'a [u8],
    /// Descriptors that came along, close-on-exec.
    pub fds: [Option<Fd>; FDS_MAX],
    /// A pidfd of the process that has sent it, by word of the kernel, where that is told.
    pub sender: Option<Fd>,
}

/// Receives one packet from `fd` without waiting.
///
/// # Errors
/// EAGAIN when there is none, or what the system says.
pub fn receive<'a>(fd: &Fd, buf: &'a mut [u8]) -> Result<Received<'a>, Errno> {
    let part = [buf.as_mut_ptr() as usize, buf.len()];
    let mut control = [0_u64; 12];
    let mut header = Header {
        name: [0; 2],
        parts: [part.as_ptr() as usize, 1],
        control: [control.as_mut_ptr() as usize, size_of_val(&control)],
        flags: 0,
    };
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let n = transfer(libc::SYS_recvmsg, fd, &mut header, flags)?;
    let (mut fds, mut sender) = ([const { None }; FDS_MAX], None);
    // What the kernel has written: messages of whole words, each with descriptors, which are ours.
    let mut rest = &control[..header.control[1] / 8];
    let mut next = fds.iter_mut();
    while let [bytes, kind, data @ ..] = rest {
        let count = (*bytes as usize).saturating_sub(16) / 4;
        for i in 0..count.min(2 * data.len()) {
            let raw = (data[i / 2] >> (32 * (i % 2))) as i32;
            match *kind {
                // Less than 0: the sender is gone.
                SENDER => sender = (raw >= 0).then(|| Fd::own(raw)),
                // More than expected: dropped, that is closed.
                RIGHTS => drop(next.next().map(|place| *place = Some(Fd::own(raw)))),
                _ => {}
            }
        }
        rest = data.get(count.div_ceil(2)..).unwrap_or(&[]);
    }
    Ok(Received {
        packet: &buf[..n.min(buf.len())],
        fds,
        sender,
    })
}

const _: () = assert!(size_of::<libc::sockaddr_un>() == 110);

/// A service's connection to `deckle run`.
#[derive(Debug)]
pub struct Link(Fd);

impl Link {
    /// Connects to the group of that name: by the socket's name, or where that is another network
    /// namespace's, by its file. ECONNREFUSED: `deckle run` is gone, or out of reach.
    pub fn connect(group: &[u8]) -> Result<Link, Errno> {
        let first = connect_at(Where::Abstract, group);
        let found = first.or_else(|e| connect_at(Where::File, group).map_err(|_| e));
        found.map(Link)
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
        let ([_, there, ..], fds) = self.ask_for(&[&[tag::ASK]])?;
        let mut fds = fds.into_iter().flatten();
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
        let (_, [spare, ..]) = self.ask_for(&[&[tag::SPARE]])?;
        spare.ok_or(Errno(libc::EMFILE))
    }

    /// Asks for a new file for swapped pages (0), or for that of this number: who knows it is a
    /// child of who has it, by the `fork` of this number of the file's owner. Returns its number.
    ///
    /// # Errors
    /// There is none; or `deckle run` is gone.
    pub fn file(&self, number: u64, fork: u64) -> Result<(u64, Fd), Errno> {
        let ([_, errno, _, _, _, _, _, _, number @ ..], [file, ..]) =
            self.ask_for(&[&[tag::FILE], &number.to_le_bytes(), &fork.to_le_bytes()])?;
        let file = file.ok_or(Errno(i32::from(errno)))?;
        Ok((u64::from_le_bytes(number), file))
    }

    /// Says something and waits for the answer. Who shares the connection may take ours: then
    /// there will be one more.
    fn ask_for(&self, what: &[&[u8]]) -> Result<([u8; 16], [Option<Fd>; FDS_MAX]), Errno> {
        send(&self.0, what, &[])?;
        let mut slot = libc::pollfd {
            fd: self.0.raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        let args = [&raw mut slot as usize, 1, PATIENCE, 0, 0, 0];
        loop {
            // SAFETY: one live entry.
            match unsafe { call(libc::SYS_poll, args) } {
                Ok(0) => return Err(Errno(libc::ETIMEDOUT)),
                Ok(_) => {}
                Err(libc::EINTR) => continue,
                Err(errno) => return Err(Errno(errno)),
            }
            let mut bytes = [0; 16];
            match receive(&self.0, &mut bytes) {
                Ok(got) if got.packet.is_empty() => return Err(Errno(libc::EPIPE)),
                Ok(Received { fds, .. }) => return Ok((bytes, fds)),
                Err(Errno(libc::EAGAIN)) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Has `deckle run` hold on to the calling thread, or to a `child` that it is about to make,
    /// until that executes a program, into which it puts the second door, with what is `told`;
    /// `filtered`: it has the filter already. Who is held on to and does not execute any, stops
    /// itself by `int3`. False: `deckle run` cannot.
    ///
    /// # Errors
    /// `deckle run` is gone.
    pub fn announce(
        &self,
        tid: u32,
        [filtered, child]: [bool; 2],
        told: &Told,
    ) -> Result<bool, Errno> {
        let (id, how) = (tid.to_le_bytes(), [u8::from(filtered), u8::from(child)]);
        let words = told.map(u64::to_le_bytes);
        let (answer, _) = self.ask_for(&[&[tag::EXEC], &id, &how, words.as_flattened()])?;
        Ok(answer[0] == 1)
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
        line: impl Into<[u32; 2]>,
        fds: &[i32],
    ) -> Result<(), Errno> {
        let [index, generation] = line.into();
        let packet = [pid, service, index, generation].map(u32::to_le_bytes);
        send(&self.0, &[&[tag::HELLO], packet.as_flattened()], fds)
    }

    /// Has `deckle run` kill this service's own program.
    pub fn kill(&self) -> Result<(), Errno> {
        send(&self.0, &[&[tag::KILL]], &[])
    }

    /// Has `deckle run` kill the process of `victim` and print `text`, unless one is being killed
    /// or was since the caller has looked, when `kills` had been.
    pub fn out_of_memory(
        &self,
        victim: impl Into<[u32; 2]>,
        kills: u64,
        text: &[u8],
    ) -> Result<(), Errno> {
        let (victim, kills) = (victim.into().map(u32::to_le_bytes), kills.to_le_bytes());
        let text = &text[..text.len().min(PACKET_MAX - 17)];
        let parts = [&[tag::OOM][..], victim.as_flattened(), &kills, text];
        send(&self.0, &parts, &[])
    }

    /// Has `deckle run` print `text` (whole lines) on its standard error. Cut at the longest
    /// packet.
    pub fn say(&self, text: &[u8]) -> Result<(), Errno> {
        let text = &text[..text.len().min(PACKET_MAX - 1)];
        send(&self.0, &[&[tag::SAY], text], &[])
    }

    /// Reports a program that will run without management.
    pub fn unmanaged(&self, path: &[u8], reason: &[u8]) -> Result<(), Errno> {
        let path = &path[..path.len().min(PACKET_MAX / 2)];
        let reason = &reason[..reason.len().min(PACKET_MAX / 2 - 2)];
        send(&self.0, &[&[tag::UNMANAGED], path, &[0], reason], &[])
    }

    /// Says that the service ends in good order.
    pub fn bye(&self) -> Result<(), Errno> {
        send(&self.0, &[&[tag::BYE]], &[])
    }
}

/// What `deckle run` gives to a service that asks.
#[derive(Default)]
pub struct Given {
    /// The group's page.
    pub page: Option<Fd>,
    /// `/dev/userfaultfd`.
    pub device: Option<Fd>,
    /// A pidfd of the program.
    pub program: Option<Fd>,
    /// `/proc/PID/stat` of the program.
    pub stat: Option<Fd>,
    /// Of the files of the service in /proc: `maps`.
    pub maps: Option<Fd>,
    /// `status`.
    pub status: Option<Fd>,
    /// `pagemap`.
    pub pagemap: Option<Fd>,
    /// `mem`.
    pub memory: Option<Fd>,
}
