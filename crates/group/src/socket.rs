//! Packet sockets with abstract names or names of files, as `deckle run` has them; the other end is
//! [`deckle_door::link`]'s.
//!
//! An abstract name has no permissions, and the file's are for everybody: who accepts a connection
//! has to find out who is there.

use core::mem::size_of;

use deckle_door::link::{Where, address};

use crate::attach::Name;
use crate::sys::{Errno, Fd};

/// Linux's name for the option that a socket tells who has sent a packet.
const SO_PASSPIDFD: i32 = 76;

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
