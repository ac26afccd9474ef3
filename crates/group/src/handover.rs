//! Handing the memory of a forked child over, from its parent's service to its own.
//!
//! Before a fork the parent's service listens on an abstract socket made for this fork. Its
//! number and a secret are in memory that the fork copies, so the child's service finds the
//! socket and proves that it belongs to the child. It gets the descriptor of its memory and the
//! pages that were filled in there meanwhile.

use core::time::Duration;

use crate::attach::Name;
use crate::proto::PREFIX;
use crate::socket::{accept, connect, listen, receive, send, wait};
use crate::sys::{Errno, Fd, random};

/// Bytes of a secret.
pub const SECRET: usize = 16;
/// Pages in one packet.
const PER_PACKET: usize = 1000;
/// Longest wait for the other side's next packet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which hand-over: found by the child in its copy of its parent's memory.
#[derive(Clone, Copy)]
pub struct Ticket {
    /// Makes the address unique.
    pub number: u64,
    /// Proves to the parent who asks.
    pub secret: [u8; SECRET],
}

impl Ticket {
    /// A new ticket.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new() -> Result<Ticket, Errno> {
        Ok(Ticket {
            number: u64::from_le_bytes(random()?),
            secret: random()?,
        })
    }
}

/// The abstract name of the socket of one fork.
fn with_address<T>(name: Name, number: u64, f: impl FnOnce(&[&[u8]]) -> T) -> T {
    let mut digits = [0; 16];
    for (i, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * i) & 15) as usize];
    }
    f(&[PREFIX, name.as_bytes(), b"-fork-", &digits])
}

/// The parent's side: waits for the child of one fork.
#[derive(Debug)]
pub struct Listener {
    fd: Fd,
    secret: [u8; SECRET],
}

impl Listener {
    /// Listens for the holder of `ticket`.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn new(name: Name, ticket: &Ticket) -> Result<Listener, Errno> {
        let fd = with_address(name, ticket.number, |address| listen(address, 4))?;
        let secret = ticket.secret;
        Ok(Listener { fd, secret })
    }

    /// The descriptor: readable when somebody has come.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Takes whoever has come; `None` if nobody has, or it is somebody else.
    pub fn accept(&self) -> Option<Fd> {
        let fd = accept(&self.fd, 0)?;
        wait(&fd, Duration::from_secs(1)).ok()?;
        let mut buf = [0; SECRET + 1];
        let got = receive(&fd, &mut buf).ok()?;
        (got.packet == self.secret).then_some(fd)
    }
}

/// Gives the descriptor `uffd` and the numbers of the pages that were filled.
///
/// # Errors
/// The child is gone.
pub fn give(to: &Fd, uffd: i32, pages: &[u64]) -> Result<(), Errno> {
    send(to, &[&(pages.len() as u64).to_le_bytes()], &[uffd])?;
    for part in pages.chunks(PER_PACKET) {
        let bytes: Vec<u8> = part.iter().flat_map(|p| p.to_le_bytes()).collect();
        send(to, &[&bytes], &[])?;
    }
    Ok(())
}

/// The child's side: the descriptor of its memory, and the pages that were filled.
///
/// # Errors
/// The parent's service does not answer.
pub fn take(name: Name, ticket: &Ticket) -> Result<(Fd, Vec<u64>), Errno> {
    const LOST: Errno = Errno(libc::EPROTO);
    let fd = with_address(name, ticket.number, connect)?;
    send(&fd, &[&ticket.secret], &[])?;
    let mut buf = vec![0; 8 * PER_PACKET];
    wait(&fd, PATIENCE)?;
    let got = receive(&fd, &mut buf)?;
    let count = u64::from_le_bytes(got.packet.try_into().map_err(|_| LOST)?);
    let [uffd, ..] = got.fds;
    let uffd = uffd.ok_or(LOST)?;
    let mut pages = Vec::new();
    while (pages.len() as u64) < count {
        wait(&fd, PATIENCE)?;
        let packet = receive(&fd, &mut buf)?.packet;
        let words = packet.as_chunks::<8>().0;
        if words.is_empty() {
            return Err(LOST);
        }
        pages.extend(words.iter().map(|w| u64::from_le_bytes(*w)));
    }
    Ok((uffd, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p20_only_the_holder_of_the_ticket_gets_descriptor_and_pages() {
        let name = Name::new(format!("handover-{}", std::process::id()).as_bytes()).unwrap();
        let ticket = Ticket::new().unwrap();
        let listener = Listener::new(name, &ticket).unwrap();
        let stranger = Ticket {
            secret: [0; SECRET],
            ..ticket
        };
        let pages: Vec<u64> = (0..2500).map(|n| n * n).collect();
        std::thread::scope(|s| {
            let refused = s.spawn(move || take(name, &stranger));
            wait(listener.fd(), PATIENCE).unwrap();
            assert!(listener.accept().is_none());
            assert!(refused.join().unwrap().is_err());
            let got = s.spawn(move || take(name, &ticket));
            wait(listener.fd(), PATIENCE).unwrap();
            let to = listener.accept().expect("the child");
            give(&to, to.raw(), &pages).unwrap();
            let (fd, list) = got.join().unwrap().unwrap();
            assert!(fd.raw() >= 0);
            assert_eq!(list, pages);
        });
    }
}
