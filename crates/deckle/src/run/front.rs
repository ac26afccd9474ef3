//! The process that the user started, in front of the supervisor.
//!
//! ```text
//!   front        in the user's process group and session; forwards signals, mirrors stops
//!     supervisor in a session of its own, subreaper: serves, reaps, reports
//!       program  in the front's group and session, as if the front had started it
//! ```
//!
//! Each of the two ends the tree when the other is gone, however it went: orphans of the tree,
//! daemons too, become children of the supervisor, and if that dies, of the front. The
//! supervisor has a session of its own so that no signal to the job reaches it: a SIGKILL for
//! the whole group ends front and program, and the supervisor ends the rest.
//!
//! They talk over one socket, a byte each time: numbers of signals down, [`STOPPED`] and
//! [`GOES_ON`] up, and once [`STARTED`] with the program's pid. Its end is how the supervisor
//! hears that the front is gone. The first process of a pid namespace needs no front: the
//! kernel ends the namespace with it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use deckle_group::proc::proc_stat;
use deckle_group::{Group, Name};
use deckle_sys::poll::{poll, to_read};
use deckle_sys::signal::{self, Signals};
use deckle_sys::{Fd, pidfd, process};

use super::ending;
use super::signals::is_ours_alone;
use crate::fail::{Fail, plain};
use crate::{say, voice};

/// The program has been stopped.
pub const STOPPED: u8 = b'T';
/// The program has been continued.
pub const GOES_ON: u8 = b'C';
/// The program has been started; its pid follows in the machine's byte order.
const STARTED: u8 = b'S';

/// One end of the socket between the two.
pub struct Link(UnixStream);

/// What was heard from the other end.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A byte.
    Byte(u8),
    /// Nothing yet.
    Nothing,
    /// The other process is gone.
    End,
}

impl Link {
    fn pair() -> io::Result<(Link, Link)> {
        let (a, b) = UnixStream::pair()?;
        a.set_nonblocking(true)?;
        b.set_nonblocking(true)?;
        Ok((Link(a), Link(b)))
    }

    /// The descriptor, to poll.
    pub fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Sends a byte. Lost if the other is gone, or has not listened for thousands of them.
    pub fn tell(&self, byte: u8) {
        self.send(&[byte]);
    }

    fn send(&self, bytes: &[u8]) {
        let _ = (&self.0).write(bytes);
    }

    /// Sends the program's pid.
    pub fn tell_started(&self, program: u32) {
        let [a, b, c, d] = program.to_ne_bytes();
        self.send(&[STARTED, a, b, c, d]);
    }

    /// The next byte; never waits.
    pub fn hear(&self) -> Heard {
        let mut byte = [0];
        match (&self.0).read(&mut byte).map_err(|e| e.kind()) {
            Ok(1..) => Heard::Byte(byte[0]),
            Err(ErrorKind::WouldBlock | ErrorKind::Interrupted) => Heard::Nothing,
            _ => Heard::End,
        }
    }
}

/// Who goes on after [`split`].
pub enum Side {
    /// The front, when everything is over: the exit status.
    Front(i32),
    /// The supervisor, with its end of the link.
    Supervisor(Link),
}

/// Forks the supervisor. The front stays in here until that has ended, and removes the name of
/// its group. To be called while there is no other thread.
///
/// # Errors
/// If there is no process or socket to be had.
pub fn split(signals: &Signals, name: Name) -> Result<Side, Fail> {
    let (ours, theirs) = Link::pair()
        .map_err(|e| Fail::own(format!("no socket for the supervisor: {}", plain(&e))))?;
    let forked = process::fork_alone();
    match forked.map_err(|e| Fail::own(format!("no process for the supervisor: {e}")))? {
        None => {
            drop(ours);
            Ok(Side::Supervisor(theirs))
        }
        Some(supervisor) => {
            drop(theirs);
            // Orphans come here when the supervisor is gone.
            process::adopt_orphans();
            let front = Front {
                supervisor,
                link: ours,
                program: None,
                stop_with_it: false,
                stopped: false,
            };
            let raw = front.stay(signals);
            let status = after(supervisor, raw);
            Group::unlink(name);
            Ok(Side::Front(status))
        }
    }
}

struct Front {
    supervisor: i32,
    link: Link,
    /// The program, once it has been started.
    program: Option<Fd>,
    /// SIGTSTP came: stop with the program.
    stop_with_it: bool,
    /// The program is stopped.
    stopped: bool,
}

impl Front {
    /// Passes on whatever comes until the supervisor has ended; its raw wait status.
    fn stay(mut self, signals: &Signals) -> i32 {
        let mut set = [signals.fd(), self.link.fd()].map(to_read);
        loop {
            while let Some(signal) = signals.take() {
                match signal.number {
                    libc::SIGCHLD => continue,
                    libc::SIGTSTP => self.stop_with_it = true,
                    libc::SIGCONT => {
                        self.stop_with_it = false;
                        if self.continue_program() {
                            continue;
                        }
                    }
                    _ => {}
                }
                if is_ours_alone(&signal) {
                    self.link.tell(signal.number as u8);
                }
            }
            loop {
                match self.link.hear() {
                    Heard::Byte(STARTED) => self.open_program(),
                    Heard::Byte(what) => self.stopped = what == STOPPED,
                    Heard::Nothing => break,
                    Heard::End => {
                        // Not to be woken by it until the process itself has ended.
                        set[1].fd = -1;
                        break;
                    }
                }
            }
            if let Ok(Some((_, raw))) = process::wait(self.supervisor, libc::WNOHANG) {
                return raw;
            }
            self.stop_too();
            let _ = poll(&mut set, -1);
        }
    }

    /// The pid that follows [`STARTED`]. All bytes of it are there: they are sent in one go, and
    /// if the supervisor died in between there is nothing to continue.
    fn open_program(&mut self) {
        let mut pid = [0; 4];
        for byte in &mut pid {
            let Heard::Byte(b) = self.link.hear() else {
                return;
            };
            *byte = b;
        }
        let pid = u32::from_ne_bytes(pid);
        // Who is no child of the supervisor got the pid after the program.
        self.program = pidfd::open(pid)
            .ok()
            .filter(|_| proc_stat(pid).is_ok_and(|s| s.parent as i32 == self.supervisor));
    }

    /// SIGCONT goes to the program without a detour. A shell sends it to the whole group, and
    /// one that the supervisor passes on later would undo the next Ctrl-Z. False: there is no
    /// program to be continued.
    fn continue_program(&self) -> bool {
        let program = self.program.as_ref();
        program.is_some_and(|program| pidfd::kill(program, libc::SIGCONT).is_ok())
    }

    /// Ctrl-Z: the program stopped, so the shell must see us stop. Only when we were asked to:
    /// somebody who stops and continues the program alone must not leave us stopped. The
    /// terminal's signal may reach us before or after we hear of the program.
    fn stop_too(&mut self) {
        if self.stopped && self.stop_with_it {
            self.stop_with_it = false;
            // Until SIGCONT, which is then forwarded.
            let _ = signal::send(std::process::id() as i32, libc::SIGSTOP);
        }
    }
}

/// The supervisor has ended: in order, or the tree must end with it. The exit status.
fn after(supervisor: i32, raw: i32) -> i32 {
    let left = ending::end_tree();
    // Where there is no thread for it, what is said may have to wait for its reader.
    let _ = voice::begin();
    if libc::WIFSIGNALED(raw) {
        say(format_args!(
            "my supervisor (process {supervisor}) was killed by signal {}: the program was \
             ended with it",
            libc::WTERMSIG(raw)
        ));
        return 125;
    }
    if left > 0 {
        say(format_args!(
            "my supervisor (process {supervisor}) failed: the program was ended with it"
        ));
        return 125;
    }
    libc::WEXITSTATUS(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_side_is_heard_after_its_bytes() {
        let (a, b) = Link::pair().unwrap();
        assert_eq!(b.hear(), Heard::Nothing);
        a.tell(7);
        drop(a);
        assert_eq!(b.hear(), Heard::Byte(7));
        assert_eq!(b.hear(), Heard::End);
        b.tell(1);
    }
}
