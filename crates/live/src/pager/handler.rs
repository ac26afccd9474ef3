//! The three loops.

use std::os::fd::AsRawFd;

use deckle_mm::platform::Stop;
use deckle_mm::{Charge, FaultError, FaultMode, PlatformError, Served, Store, Vpn};
use deckle_uffd::{Errno, Event, Msg};

use super::Pager;
use super::machine::{NURSERY, PAGEOUT, RECLAIM, STOP};
use super::queue::Fault;

/// Messages read at once.
const BATCH: usize = 16;
/// Huge pages made ahead of need before the loop looks for other work.
const NURSERY_BATCH: u32 = 2;

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Reads faults and serves what can be served at once, until [`stop`](Self::stop). Several
    /// may run.
    pub fn handler_loop(&self) {
        let mut msgs = [const { Msg::empty() }; BATCH];
        loop {
            let reading = self.still.reading();
            match self.platform().program_uffd().read_events(&mut msgs) {
                Ok(0) => {
                    drop(reading);
                    if !self.wait_for_messages() {
                        return;
                    }
                }
                // A closed gate is not waited for: whoever forks waits until its event is read.
                Ok(n) => match self.gate.try_enter() {
                    Some(_inside) => msgs[..n].iter_mut().for_each(|m| self.handle(m)),
                    None => msgs[..n].iter_mut().for_each(|m| self.handle_frozen(m)),
                },
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => {
                    self.hooks.lost(errno);
                    return;
                }
            }
        }
    }

    /// Sleeps until there is a message; false: told to stop.
    fn wait_for_messages(&self) -> bool {
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [
            entry(self.platform().program_uffd().as_raw_fd()),
            entry(self.stop.as_raw_fd()),
        ];
        // SAFETY: two valid entries. A failure (EINTR) means another round.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        if fds[0].revents & libc::POLLNVAL != 0 {
            self.hooks.lost(Errno(libc::EBADF));
            return false;
        }
        fds[1].revents == 0
    }

    fn handle(&self, msg: &mut Msg) {
        match msg.take() {
            Some(Event::Pagefault {
                addr, write, wp, ..
            }) => {
                let fault = Fault {
                    page: Vpn::of_addr(addr as u64),
                    write: write || wp,
                };
                if !self.serve(fault, FaultMode::NoWait) && !self.queue.push(fault) {
                    // No room: the thread tries its access again and asks anew.
                    self.platform().wake(fault.page, 1);
                }
                if self.platform().nursery().wants() {
                    self.mm.machine().work.raise(NURSERY);
                }
            }
            Some(Event::Fork { child }) => self.hooks.forked(child),
            // Not asked for; nothing to do for them.
            Some(_) | None => {}
        }
    }

    /// Serves a fault; false: somebody who may wait has to.
    fn serve(&self, fault: Fault, mode: FaultMode) -> bool {
        match self.mm.fault(self.space(), fault.page, fault.write, mode) {
            // Who waited has been woken by the operation that brought the page.
            Ok(Served::Mapped(_)) => true,
            // Somebody else was faster; or the rights or the mapping have changed, and the
            // kernel raises the signal itself when the access is tried again.
            Ok(Served::Spurious) | Err(FaultError::NoMapping | FaultError::Access) => {
                self.platform().wake(fault.page, 1);
                true
            }
            Err(FaultError::Busy | FaultError::NeedReclaim)
            | Err(FaultError::Platform(PlatformError {
                why: Stop::Retry, ..
            })) => false,
            Err(error) => {
                self.hooks.fatal(fault, &error);
                true
            }
        }
    }

    /// Serves the faults that need reclaim or waiting, until [`stop`](Self::stop). Several may
    /// run.
    pub fn worker_loop(&self) {
        while self.queue.wait() {
            // Taken inside only: in the queue it can be seen by who has closed the gate.
            let _inside = self.gate.enter();
            let Some(fault) = self.queue.pop() else {
                continue;
            };
            if !self.serve(fault, FaultMode::MayWait) {
                self.platform().wake(fault.page, 1);
            }
        }
    }

    /// Reclaims when the core asks for it and fills the nursery, until [`stop`](Self::stop).
    pub fn background_loop(&self) {
        let work = &self.mm.machine().work;
        loop {
            let bits = work.take(STOP);
            if bits & STOP != 0 {
                return;
            }
            let inside = self.gate.enter();
            if bits & PAGEOUT != 0 {
                self.help_page_out();
            }
            if bits & RECLAIM != 0 {
                // What is only there ahead of need goes first.
                self.platform().nursery().drain();
                if self.mm.reclaim_background() {
                    work.raise(RECLAIM);
                }
            }
            if bits & NURSERY != 0
                && self.platform().fill_nursery(NURSERY_BATCH) == NURSERY_BATCH
                && self.platform().nursery().wants()
            {
                work.raise(NURSERY);
            }
            drop(inside);
        }
    }

    /// Ends all loops. Faults are not served any more: only for a pager whose memory nobody
    /// uses.
    pub fn stop(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes to an eventfd.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        self.queue.close();
        self.mm.machine().work.raise(STOP);
    }
}
