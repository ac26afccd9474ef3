//! Packet sockets with abstract names or names of files, and descriptors that are sent over them.
//!
//! One SOCK_SEQPACKET packet is one message. An abstract name has no permissions, and the file's
//! are for everybody: who accepts a connection has to find out who is there.

use core::mem::size_of;
use core::time::Duration;

use deckle_door::link::{Where, address};

use crate::attach::Name;
use crate::sys::{Errno, Fd, to_read};

/// Most descriptors that come with a packet.
pub const FDS_MAX: usize = 8;
/// Linux's names for the option that a socket tells who has sent a packet, and for what it tells.
const SO_PASSPIDFD: i32 = 76;
const SCM_PIDFD: i32 = 4;

/// Listens; accepting never waits. Whoever may see a file's name may connect. EADDRINUSE: somebody
/// listens there already.
pub(crate) fn listen(place: Where, name: Name, backlog: i32) -> Result<Fd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a system call on numbers.
    let fd = match unsafe { libc::socket(libc::AF_UNIX, kind, 0) } {
        raw if raw < 0 => return Err(Errno::last()),
        raw => Fd::own(raw),
    };
    let (at, len) = address(place, name.as_bytes());
    // SAFETY: `at` is a live address of which `len` bytes are used.
    let bound = unsafe { libc::bind(fd.raw(), (&raw const at).cast(), len as u32) };
    // SAFETY: a system call on numbers.
    if bound < 0 || unsafe { libc::listen(fd.raw(), backlog) } < 0 {
        return Err(Errno::last());
    }
    tell_senders(&fd);
    if place == Where::File {
        // SAFETY: the path in the address ends in NUL, as it was zero before.
        unsafe { libc::chmod(at.sun_path.as_ptr(), 0o666) };
    }
    Ok(fd)
}

/// From now on packets, here and on what is accepted here, come with their senders.
fn tell_senders(fd: &Fd) {
    let (on, bytes) = (1_i32, size_of::<i32>() as libc::socklen_t);
    let at = (&raw const on).cast();
    // SAFETY: a live word of that size. Where it is refused no packet has a sender.
    unsafe { libc::setsockopt(fd.raw(), libc::SOL_SOCKET, SO_PASSPIDFD, at, bytes) };
}

/// Two ends of a connection: ours, which never waits and tells senders, and one to give away.
///
/// # Errors
/// The system has none.
pub fn pair() -> Result<(Fd, Fd), Errno> {
    let (kind, mut ends) = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, [-1; 2]);
    // SAFETY: writes two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(Errno::last());
    }
    let [ours, other] = ends.map(Fd::own);
    tell_senders(&ours);
    // SAFETY: a system call on numbers.
    unsafe { libc::fcntl(ours.raw(), libc::F_SETFL, libc::O_NONBLOCK) };
    Ok((ours, other))
}

/// Takes a connection, close-on-exec and with `flags`; `None` if there is none.
pub fn accept(listener: &Fd, flags: i32) -> Option<Fd> {
    let none = core::ptr::null_mut();
    let flags = flags | libc::SOCK_CLOEXEC;
    // SAFETY: a system call on a descriptor, which asks for no address.
    let raw = unsafe { libc::accept4(listener.raw(), none, core::ptr::null_mut(), flags) };
    (raw >= 0).then(|| Fd::own(raw))
}

/// Removes the file of [`Where::File`].
pub(crate) fn unlink(name: Name) {
    let (at, _) = address(Where::File, name.as_bytes());
    // SAFETY: the path in the address ends in NUL, as it was zero before.
    unsafe { libc::unlink(at.sun_path.as_ptr()) };
}

/// Waits until a packet or a connection is there. ETIMEDOUT: not in that time.
pub(crate) fn wait(fd: &Fd, time: Duration) -> Result<(), Errno> {
    let mut slot = to_read(fd.raw());
    loop {
        // SAFETY: one valid entry.
        match unsafe { libc::poll(&raw mut slot, 1, time.as_millis() as i32) } {
            0 => return Err(Errno(libc::ETIMEDOUT)),
            n if n > 0 => return Ok(()),
            _ if Errno::last().0 == libc::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
}

/// Sends up to four parts as one packet, with up to [`FDS_MAX`] descriptors.
pub(crate) fn send(fd: &Fd, parts: &[&[u8]], fds: &[i32]) -> Result<(), Errno> {
    const FDS_BYTES: usize = FDS_MAX * size_of::<i32>();
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
    msg.msg_iovlen = parts.len().min(iov.len()) as _;
    let bytes = size_of_val(fds).min(FDS_BYTES);
    if bytes > 0 {
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE computes a size.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as _;
        // SAFETY: the control buffer (64 bytes) holds a header and eight descriptors, and
        // msg_controllen says so, hence CMSG_FIRSTHDR is not null.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&msg);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
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
    pub fds: [Option<Fd>; FDS_MAX],
    /// A pidfd of the process that has sent it, by word of the kernel, where that is told.
    pub sender: Option<Fd>,
}

/// Receives one packet from `fd` without waiting. EAGAIN when there is none.
pub fn receive<'a>(fd: &Fd, buf: &'a mut [u8]) -> Result<Received<'a>, Errno> {
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    let mut control = [0u64; 12];
    // SAFETY: msghdr is plain data, and all zeros is a value of it.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
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
    let mut fds = [const { None }; FDS_MAX];
    let (mut next, mut sender) = (0, None);
    // SAFETY: recvmsg filled the control buffer and set its length; the walk stays inside it,
    // and each message of these kinds holds whole descriptors, which are ours from now on.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(&msg);
        while !head.is_null() {
            let data = libc::CMSG_DATA(head).cast::<i32>();
            let kind = ((*head).cmsg_level, (*head).cmsg_type);
            if kind == (libc::SOL_SOCKET, SCM_PIDFD) {
                // Less than 0: the sender is gone.
                sender = Some(data.read_unaligned())
                    .filter(|raw| *raw >= 0)
                    .map(Fd::own);
            } else if kind == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
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
        sender,
    })
}
