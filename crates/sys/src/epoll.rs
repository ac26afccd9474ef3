//! Waiting for many descriptors, at a price that does not depend on how many there are.

use crate::call::call;
use crate::{Errno, Fd};

/// Descriptors that are waited for, each with a key of its own. It can be waited for itself, with
/// [`poll`](crate::poll::poll).
#[derive(Debug)]
pub struct Epoll(Fd);

/// Most keys that [`Epoll::ready`] tells at once.
pub const AT_ONCE: usize = 128;

impl Epoll {
    /// Waits for nothing yet.
    /// Errors: EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Epoll, Errno> {
        // SAFETY: a system call on numbers.
        let made = unsafe { call(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize]) };
        // SAFETY: new, and nobody else's.
        made.map(|raw| Epoll(unsafe { Fd::own(raw as i32) }))
            .map_err(Errno)
    }

    /// The descriptor: readable while any of those that are waited for is.
    pub fn raw(&self) -> i32 {
        self.0.raw()
    }

    /// Waits for `fd`, too, until something can be read there or it has come to its end, which is
    /// told again until it is not so any more. It must be [removed](Epoll::remove) before it is
    /// closed: what somebody else has a duplicate of stays otherwise.
    /// Errors: ENOSPC: more than the system lets a user wait for. ENOMEM.
    pub fn add(&self, fd: &Fd, key: u64) -> Result<(), Errno> {
        let event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: key,
        };
        self.control(libc::EPOLL_CTL_ADD, fd, &raw const event as usize)
    }

    /// Waits for it no longer. One that is not waited for is ignored.
    pub fn remove(&self, fd: &Fd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0);
    }

    fn control(&self, what: i32, fd: &Fd, event: usize) -> Result<(), Errno> {
        let args = [self.raw() as usize, what as usize, fd.raw() as usize, event];
        // SAFETY: reads at most one event, which is alive.
        let done = unsafe { call(libc::SYS_epoll_ctl, args) };
        done.map(drop).map_err(Errno)
    }

    /// Adds the keys of descriptors that are ready now to `keys`: at most [`AT_ONCE`], and others
    /// at the next call. Waits for none.
    pub fn ready(&self, keys: &mut Vec<u64>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        let to = events.as_mut_ptr() as usize;
        // SAFETY: writes at most as many events as there is room for.
        let told = unsafe { call(libc::SYS_epoll_wait, [self.raw() as usize, to, AT_ONCE, 0]) };
        let told = told.unwrap_or(0).min(AT_ONCE);
        keys.extend(events[..told].iter().map(|event| event.u64));
    }
}
