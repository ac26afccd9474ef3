//! The way to `deckle run`, for who has no C library, too: its socket, and the messages that the
//! second door sends by itself. All others are `deckle_group::proto`'s.

use crate::sys::call;
use core::mem::{offset_of, size_of};

/// Tag of a message: a program that is not managed is executed.
pub const UNMANAGED: u8 = 3;
/// Tag of a message: who sends it is about to execute a program that needs the second door.
pub const EXEC: u8 = 9;

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

/// Connects to `deckle run`: by its name, or where that is another network namespace's, by its
/// file. The descriptor is close-on-exec and the caller's.
///
/// # Errors
/// The errno: ECONNREFUSED if it is gone, or out of reach.
pub fn connect(group: &[u8]) -> Result<i32, i32> {
    let first = connect_at(Where::Abstract, group);
    first.or_else(|e| connect_at(Where::File, group).map_err(|_| e))
}

fn connect_at(place: Where, group: &[u8]) -> Result<i32, i32> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    let (at, len) = address(place, group);
    // SAFETY: a new descriptor; an address of which that many bytes are used; closed by who has
    // made it.
    unsafe {
        let fd = call(libc::SYS_socket, [libc::AF_UNIX as usize, kind])?;
        let to = &raw const at as usize;
        match call(libc::SYS_connect, [fd, to, len]) {
            Ok(_) => Ok(fd as i32),
            Err(errno) => {
                let _ = call(libc::SYS_close, [fd]);
                Err(errno)
            }
        }
    }
}

const _: () = assert!(size_of::<libc::sockaddr_un>() == 110);
