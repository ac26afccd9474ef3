//! Messages that a userfaultfd delivers.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::error::Errno;
use crate::open::Uffd;
use crate::sys;

/// What happened in the memory that a descriptor stands for. Addresses in bytes.
///
/// Every event but the fault holds up the thread that caused it until the event is read, and
/// makes operations on any range fail with `Again { changing: true }` until then. Pending faults
/// are handed out first: read until nothing is left.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread waits for a page.
    Pagefault {
        /// The address, rounded down to the page unless the exact one was asked for.
        addr: usize,
        /// The access was a write.
        write: bool,
        /// The page is there but write-protected.
        wp: bool,
        /// The page is in the page cache but not mapped.
        minor: bool,
        /// The thread's id in the reader's pid namespace; 0 if it was not asked for.
        ptid: u32,
    },
    /// The process forked; the child's memory is registered as its parent's was.
    Fork {
        /// Stands for the child's memory; the handshake is inherited. Dropping it ends the
        /// child's registration: what is missing there then reads as zeros.
        child: Uffd,
    },
    /// A range was moved by mremap.
    Remap {
        /// Old address.
        from: usize,
        /// New address.
        to: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The content of a range was given up (madvise).
    Remove {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// A range was unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// A kind of event that this crate does not know.
    Unknown {
        /// The kernel's number of it.
        event: u8,
    },
}

/// Room for one message, and its content until it is taken.
///
/// Invariant: `raw` is empty (event 0) or was filled by the kernel from a userfaultfd and not
/// taken yet; so a fork message's descriptor is owned by the `Msg`.
#[repr(transparent)]
pub struct Msg {
    raw: sys::UffdMsg,
}

const EMPTY: sys::UffdMsg = sys::UffdMsg {
    event: 0,
    reserved1: 0,
    reserved2: 0,
    reserved3: 0,
    arg: [0; 3],
};

impl Msg {
    /// Room without a message.
    pub const fn empty() -> Self {
        Self { raw: EMPTY }
    }

    /// Whether it tells of a fault.
    pub const fn is_fault(&self) -> bool {
        self.raw.event == sys::UFFD_EVENT_PAGEFAULT
    }

    /// Takes the message out; `None` if there is none (any more).
    pub fn take(&mut self) -> Option<Event> {
        let raw = core::mem::replace(&mut self.raw, EMPTY);
        let [a, b, c] = raw.arg;
        Some(match raw.event {
            0 => return None,
            sys::UFFD_EVENT_PAGEFAULT => Event::Pagefault {
                addr: b as usize,
                write: a & sys::UFFD_PAGEFAULT_FLAG_WRITE != 0,
                wp: a & sys::UFFD_PAGEFAULT_FLAG_WP != 0,
                minor: a & sys::UFFD_PAGEFAULT_FLAG_MINOR != 0,
                ptid: low_half(c),
            },
            sys::UFFD_EVENT_FORK => {
                // SAFETY: the kernel has put this descriptor, a userfaultfd, into the reader's
                // table for this message, and the message was just emptied: one owner.
                let child = unsafe { Uffd::from_raw_fd(low_half(a) as RawFd) };
                Event::Fork { child }
            }
            sys::UFFD_EVENT_REMAP => Event::Remap {
                from: a as usize,
                to: b as usize,
                len: c as usize,
            },
            sys::UFFD_EVENT_REMOVE => Event::Remove {
                start: a as usize,
                end: b as usize,
            },
            sys::UFFD_EVENT_UNMAP => Event::Unmap {
                start: a as usize,
                end: b as usize,
            },
            event => Event::Unknown { event },
        })
    }
}

/// The 32-bit member at the start of a 64-bit one, in memory order.
const fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

impl Drop for Msg {
    /// A fork message that nobody took gives its descriptor back.
    fn drop(&mut self) {
        if self.raw.event == sys::UFFD_EVENT_FORK {
            // SAFETY: by the invariant the descriptor is ours alone.
            drop(unsafe { OwnedFd::from_raw_fd(low_half(self.raw.arg[0]) as RawFd) });
        }
    }
}

impl Default for Msg {
    fn default() -> Self {
        Self::empty()
    }
}

impl Uffd {
    /// Reads as many messages as are there and fit; 0 if none is pending. Does not wait.
    ///
    /// Messages left in `msgs` from before are dropped first. A fork event installs the child's
    /// descriptor in the table of the reading process.
    ///
    /// # Errors
    /// `EINVAL` before the handshake, `EBADF`, `EINTR`; `EMFILE` if there is no room for a fork
    /// event's descriptor. That the process of the memory has exited is not told here, but by
    /// operations on its memory ([`Why::Gone`](crate::Why::Gone)).
    pub fn read_events(&self, msgs: &mut [Msg]) -> Result<usize, Errno> {
        for msg in msgs.iter_mut() {
            *msg = Msg::empty();
        }
        let room = size_of_val(msgs);
        // SAFETY: Msg is a transparent uffd_msg, valid for any bytes, and msgs is as long as
        // room says. Each message that the kernel completes comes with what it owns.
        let got = unsafe { libc::read(self.as_raw_fd(), msgs.as_mut_ptr().cast(), room) };
        match usize::try_from(got) {
            Ok(bytes) => Ok(bytes / size_of::<Msg>()),
            Err(_) => match Errno::last() {
                Errno(libc::EAGAIN) => Ok(0),
                errno => Err(errno),
            },
        }
    }

    /// Waits until a message is pending or `timeout_ms` have passed (-1: for ever); says whether
    /// there is something to read.
    ///
    /// # Errors
    /// `EINTR`; `EBADF` for a closed descriptor.
    pub fn wait(&self, timeout_ms: i32) -> Result<bool, Errno> {
        let mut poll = libc::pollfd {
            fd: self.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
        if ready < 0 {
            return Err(Errno::last());
        }
        if poll.revents & libc::POLLNVAL != 0 {
            return Err(Errno(libc::EBADF));
        }
        Ok(ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn msg(event: u8, arg: [u64; 3]) -> Msg {
        Msg {
            raw: sys::UffdMsg {
                event,
                arg,
                ..EMPTY
            },
        }
    }

    #[test]
    fn p4_a_message_is_taken_once_and_decoded() {
        let mut fault = msg(sys::UFFD_EVENT_PAGEFAULT, [3, 0x7000, 42]);
        match fault.take() {
            Some(Event::Pagefault {
                addr,
                write,
                wp,
                minor,
                ptid,
            }) => {
                assert_eq!(
                    (addr, write, wp, minor, ptid),
                    (0x7000, true, true, false, 42)
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(fault.take().is_none());
        assert!(matches!(
            msg(sys::UFFD_EVENT_REMAP, [1, 2, 3]).take(),
            Some(Event::Remap {
                from: 1,
                to: 2,
                len: 3
            })
        ));
        assert!(matches!(
            msg(sys::UFFD_EVENT_UNMAP, [4, 5, 0]).take(),
            Some(Event::Unmap { start: 4, end: 5 })
        ));
        assert!(matches!(
            msg(0x77, [0; 3]).take(),
            Some(Event::Unknown { event: 0x77 })
        ));
        assert!(Msg::empty().take().is_none());
    }
}
