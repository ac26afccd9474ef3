//! The way to `deckle run`, for who has no C library, too: its socket, and what is said there.
//!
//! One SOCK_SEQPACKET packet is one message: a tag byte, then the rest; descriptors may come along.

use crate::entry::Told;
use deckle_sys::poll::{poll, to_read};
use deckle_sys::socket::{Address, FDS_MAX, Received, connect, receive, send};
use deckle_sys::{Errno, Fd};

/// Longest packet.
pub const PACKET_MAX: usize = 16 * 1024;
/// Longest wait for what was asked for, in milliseconds.
const PATIENCE: i32 = 10_000;

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

/// The socket's address in the group of that name.
pub fn address(place: Where, group: &[u8]) -> Address {
    let before: &[u8] = match place {
        Where::Abstract => b"\0deckle-",
        Where::File => b"/dev/shm/.deckle-",
    };
    Address::new([before, group])
}

/// A service's connection to `deckle run`.
#[derive(Debug)]
pub struct Link(Fd);

impl Link {
    /// Connects to the group of that name: by the socket's name, or where that is another network
    /// namespace's, by its file. ECONNREFUSED: `deckle run` is gone, or out of reach.
    pub fn connect(group: &[u8]) -> Result<Link, Errno> {
        let first = connect(&address(Where::Abstract, group));
        let found = first.or_else(|e| connect(&address(Where::File, group)).map_err(|_| e));
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
        let ([_, low, high, ..], fds) = self.ask_for(&[&[tag::ASK]])?;
        let there = u16::from_le_bytes([low, high]);
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
            smaps: next(8),
            statm: next(9),
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
        loop {
            match poll(&mut [to_read(self.0.raw())], PATIENCE) {
                Ok(0) => return Err(Errno(libc::ETIMEDOUT)),
                Ok(_) => {}
                Err(Errno(libc::EINTR)) => continue,
                Err(errno) => return Err(errno),
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
    /// `/proc/PID/smaps` and `statm` of the service.
    pub smaps: Option<Fd>,
    /// See there.
    pub statm: Option<Fd>,
}
