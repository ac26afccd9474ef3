//! Sockets of packets between processes of one machine, and the descriptors that come with these.

use crate::call::call;
use crate::{Errno, Fd};
use core::ffi::CStr;
use core::mem::offset_of;

/// Most descriptors that come with a packet.
pub const FDS_MAX: usize = 10;
/// Linux's name for the option that a socket tells who has sent a packet.
const SO_PASSPIDFD: usize = 76;

/// The kernel's `struct sockaddr_un`.
#[repr(C)]
pub struct Address {
    family: u16,
    path: [u8; 108],
    /// Bytes of the two above that are used. Not the kernel's.
    used: usize,
}

impl Address {
    /// That of `parts`, one behind the other, cut at the longest there can be: the path of a file,
    /// or after a zero byte an abstract name of the network namespace.
    pub fn new(parts: [&[u8]; 2]) -> Address {
        let (mut path, mut used) = ([0; 108], offset_of!(Address, path));
        // The last byte stays zero.
        for (to, from) in path[..107].iter_mut().zip(parts.into_iter().flatten()) {
            (*to, used) = (*from, used + 1);
        }
        Address {
            family: libc::AF_UNIX as u16,
            // A file's with the zero behind it.
            used: used + usize::from(path[0] != 0),
            path,
        }
    }

    /// The path; empty for an abstract name.
    pub fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or(c"")
    }

    fn call(&self, number: libc::c_long, fd: &Fd) -> Result<(), Errno> {
        let at = core::ptr::from_ref(self) as usize;
        // SAFETY: bind and connect read an address, of which that many bytes are used.
        let done = unsafe { call(number, [fd.raw() as usize, at, self.used]) };
        done.map(drop).map_err(Errno)
    }
}

fn new(flags: i32) -> Result<Fd, Errno> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags) as usize;
    // SAFETY: a system call on numbers.
    let made = unsafe { call(libc::SYS_socket, [libc::AF_UNIX as usize, kind]) };
    // SAFETY: a new descriptor.
    made.map(|raw| unsafe { Fd::own(raw as i32) })
        .map_err(Errno)
}

/// Connects to who listens there, close-on-exec.
/// Errors: ECONNREFUSED: nobody does, or he is out of reach.
pub fn connect(to: &Address) -> Result<Fd, Errno> {
    let fd = new(0)?;
    to.call(libc::SYS_connect, &fd).map(|()| fd)
}

/// Whether no process listens there any more; never waits.
pub fn is_refused(at: &Address) -> bool {
    let connected = new(libc::SOCK_NONBLOCK).and_then(|fd| at.call(libc::SYS_connect, &fd));
    connected == Err(Errno(libc::ECONNREFUSED))
}

/// Listens there, and [tells senders](tell_senders); accepting never waits.
/// Errors: EADDRINUSE: somebody listens there already.
pub fn listen(at: &Address, backlog: i32) -> Result<Fd, Errno> {
    let fd = new(libc::SOCK_NONBLOCK)?;
    at.call(libc::SYS_bind, &fd)?;
    // SAFETY: a system call on numbers.
    let done = unsafe { call(libc::SYS_listen, [fd.raw() as usize, backlog as usize]) };
    done.map_err(Errno)?;
    tell_senders(&fd);
    Ok(fd)
}

/// From now on packets, here and on what is accepted here, come with their senders. Where it is
/// refused no packet has one.
pub fn tell_senders(fd: &Fd) {
    let (on, level) = (1_i32, libc::SOL_SOCKET as usize);
    let at = &raw const on as usize;
    let args = [fd.raw() as usize, level, SO_PASSPIDFD, at, size_of_val(&on)];
    // SAFETY: reads a live word of that size.
    let _ = unsafe { call(libc::SYS_setsockopt, args) };
}

/// Two ends of a connection, close-on-exec.
/// Errors: the system has none.
pub fn pair() -> Result<[Fd; 2], Errno> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    let mut ends = [-1; 2];
    let args = [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize];
    // SAFETY: writes two words.
    unsafe { call(libc::SYS_socketpair, args) }.map_err(Errno)?;
    // SAFETY: two new descriptors.
    Ok(ends.map(|raw| unsafe { Fd::own(raw) }))
}

/// Takes a connection, close-on-exec and with `flags`; `None` if there is none.
pub fn accept(listener: &Fd, flags: i32) -> Option<Fd> {
    let flags = (flags | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: a system call on numbers, which asks for no address.
    let made = unsafe { call(libc::SYS_accept4, [listener.raw() as usize, 0, 0, flags]) };
    // SAFETY: a new descriptor.
    made.ok().map(|raw| unsafe { Fd::own(raw as i32) })
}

/// Who has made the connection: process and effective user.
pub fn peer(fd: &Fd) -> Option<(u32, u32)> {
    // Process, user, group.
    let (mut who, mut bytes) = ([0_u32; 3], 12_u32);
    let [at, size] = [who.as_mut_ptr() as usize, &raw mut bytes as usize];
    let [level, option] = [libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize];
    // SAFETY: writes at most twelve bytes, and how many.
    let told = unsafe {
        let args = [fd.raw() as usize, level, option, at, size];
        call(libc::SYS_getsockopt, args)
    };
    told.ok().map(|_| (who[0], who[1]))
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
///
/// # Safety
/// Every address in the header is that of a live buffer of the stated length, and what the call
/// writes to is borrowed for that.
unsafe fn transfer(
    number: libc::c_long,
    fd: &Fd,
    header: &mut Header,
    flags: i32,
) -> Result<usize, Errno> {
    let at = core::ptr::from_mut(header) as usize;
    loop {
        // SAFETY: the caller's word.
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
/// Errors: the other end is gone, or what the system says.
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
    // SAFETY: the list is of slices that are borrowed, and it and the control message are here.
    unsafe { transfer(libc::SYS_sendmsg, fd, &mut header, libc::MSG_NOSIGNAL) }.map(drop)
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
/// Errors: EAGAIN when there is none, or what the system says.
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
    // SAFETY: the one part is a buffer that is borrowed for writing, and the rest is here.
    let n = unsafe { transfer(libc::SYS_recvmsg, fd, &mut header, flags) }?;
    let (mut fds, mut sender) = ([const { None }; FDS_MAX], None);
    // What the kernel has written: messages of whole words, each with descriptors.
    let mut rest = &control[..header.control[1] / 8];
    let mut next = fds.iter_mut();
    while let [bytes, kind, data @ ..] = rest {
        let count = (*bytes as usize).saturating_sub(16) / 4;
        for i in 0..count.min(2 * data.len()) {
            let raw = (data[i / 2] >> (32 * (i % 2))) as i32;
            // SAFETY: the kernel has made it for who receives the packet.
            let fd = || unsafe { Fd::own(raw) };
            match *kind {
                // Less than 0: the sender is gone.
                SENDER => sender = (raw >= 0).then(fd),
                // More than expected: dropped, that is closed.
                RIGHTS => drop(next.next().map(|place| *place = Some(fd()))),
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
