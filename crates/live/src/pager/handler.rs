//! The four loops.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use deckle_mm::platform::Stop;
use deckle_mm::{Charge, FaultError, FaultMode, Item, Machine, PlatformError, Served, Store, Vpn};
use deckle_sys::poll::{poll, to_read};
use deckle_uffd::{Errno, Event, Msg};

use super::Pager;
use super::adopt::lock;
use super::cpu;
use super::crew::Role;
use super::gate::Inside;
use super::machine::{FILL, MESSAGES, PAGEOUT, RECLAIM, STOP};
use super::others::Others;
use super::queue::{Fault, Pushed, Waited};
use crate::platform::{Move, NURSERY_IDLE};
use crate::trace::{Stage, stage};

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Reads faults and serves what can be served at once, until [`stop`](Self::stop): one of
    /// [`handlers`](Self::handlers), which may all run, by its number.
    pub fn handler_loop(&self, number: usize) {
        let mut others = Others::of(self, number);
        // One at a time: a second fault that is read waits until the first is served, where another
        // handler could have served it.
        let mut msg = [Msg::empty()];
        loop {
            match self.read_one(&mut msg) {
                Ok(true) => {
                    self.hooks.worked();
                    others.served(self);
                }
                Err(Errno(libc::EINTR)) => {}
                Ok(false) => match self.wait_for_messages(others.idle(self)) {
                    Waited::Fault => {}
                    Waited::Idle if !self.crew().leave(Role::handler(number), || false) => {}
                    Waited::Idle | Waited::Closed => return,
                },
                Err(errno) => {
                    self.hooks.lost(errno);
                    return;
                }
            }
        }
    }

    /// Serves a message, if there is one. A closed gate is not waited for: to be told to stop is
    /// possible at any time.
    ///
    /// Whoever moves managed memory unseen goes on as soon as that has been read. What it touches
    /// then is a fault like any other, at a place that may be another's in the books: so nobody
    /// reads that before the move was noted, or looked into.
    fn read_one(&self, msg: &mut [Msg; 1]) -> Result<bool, Errno> {
        let traced = stage(Stage::Message);
        let reading = lock(&self.heard.reading);
        if self.platform().program_uffd().read_events(msg)? == 0 {
            return Ok(false);
        }
        if let Some(moved) = moved_by(&mut msg[0]) {
            if self.platform().adopts() {
                self.platform().note_move(moved);
                drop(reading);
                let _inside = self.gate.enter();
                self.follow_moves();
            } else {
                let _inside = self.gate.enter();
                self.end_unseen(moved);
            }
            return Ok(true);
        }
        drop(reading);
        drop(traced);
        match self.gate.try_enter() {
            Some(_inside) => self.handle(&mut msg[0]),
            None => self.handle_frozen(&mut msg[0]),
        }
        Ok(true)
    }

    /// Reads what there is.
    pub(super) fn read_all(&self) {
        while let Ok(true) = self.read_one(&mut [Msg::empty()]) {}
    }

    /// Sleeps until there is a message, for `idle` at most.
    fn wait_for_messages(&self, idle: Option<Duration>) -> Waited {
        let uffd = self.platform().program_uffd().as_raw_fd();
        let watched = self.watched.load(Relaxed);
        let mut fds = [uffd, self.stop.as_raw_fd(), watched].map(to_read);
        // Its end alone, of which every poll tells.
        fds[2].events = 0;
        let _traced = stage(Stage::Message);
        // A failure (EINTR) means another round.
        let time = idle.map_or(-1, |idle| idle.as_millis() as i32);
        if poll(&mut fds, time) == Ok(0) {
            return Waited::Idle;
        }
        if fds[0].revents & libc::POLLNVAL != 0 {
            self.hooks.lost(Errno(libc::EBADF));
            return Waited::Closed;
        }
        if fds[2].revents != 0 {
            self.watched.store(-1, Relaxed);
            self.hooks.hung_up();
        }
        match fds[1].revents {
            0 => Waited::Fault,
            _ => Waited::Closed,
        }
    }

    fn handle(&self, msg: &mut Msg) {
        let Some(fault) = fault_of(msg) else {
            return;
        };
        let _traced = stage(Stage::Fault(fault.page));
        self.mm.machine().stand_aside();
        if !self.serve(fault, FaultMode::NoWait) && !self.hand_over(fault) {
            // No room: the thread tries its access again and asks anew.
            self.platform().wake(fault.page, 1);
        }
        if self.platform().nursery().wants() {
            self.mm.machine().filler.raise(FILL);
        }
    }

    /// Serves a fault; false: somebody who may wait has to.
    fn serve(&self, fault: Fault, mode: FaultMode) -> bool {
        if self.platform().is_arriving(fault.page.addr() as usize) {
            // It is tried again, until the books know what is there.
            self.follow_moves();
            self.platform().wake(fault.page, 1);
            return true;
        }
        match self.mm.fault(self.space(), fault.page, fault.write, mode) {
            // Who waited has been woken by the operation that brought the page.
            Ok(Served::Mapped(_)) => true,
            // Somebody else was faster; or the rights or the mapping have changed, and the
            // kernel raises the signal itself when the access is tried again.
            Ok(Served::Spurious) if fault.missing => {
                // Or the program has given the page back by a call that nobody saw. What keeps
                // that from being mended now will not when the access is tried again.
                let _ = self.mm.refill_hole(self.space(), fault.page);
                self.platform().wake(fault.page, 1);
                true
            }
            // The program has unmapped it since, by a call that nobody saw.
            Err(FaultError::Platform(e)) if e.why == Stop::Gone && self.has_left(fault.page) => {
                self.want_look();
                self.platform().wake(fault.page, 1);
                true
            }
            Err(FaultError::NoMapping) if self.platform().adopts() => {
                self.want_look();
                self.platform().wake(fault.page, 1);
                true
            }
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

    /// Hands a fault over to who may wait; false without room. Its thread is stalled from now
    /// on until it is served.
    pub(super) fn hand_over(&self, fault: Fault) -> bool {
        // Begun before anybody can have served it.
        self.mm.stall_begin();
        match self.queue.push(fault) {
            Pushed::New(few) => {
                let is_absent = |role: &&Role| !self.crew().has(**role);
                // One who is not there yet will find it; another is wanted where all are busy.
                if few && let Some(role) = Role::WORKERS.iter().find(is_absent) {
                    self.crew().want(*role);
                }
                true
            }
            other => {
                self.mm.stall_end();
                other == Pushed::There
            }
        }
    }

    /// Serves the faults that need reclaim or waiting, until [`stop`](Self::stop): one of two, who
    /// may both run, by its number.
    pub fn worker_loop(&self, number: usize) {
        let role = Role::WORKERS[number % Role::WORKERS.len()];
        loop {
            match self.queue.wait(self.crew().idle()) {
                Waited::Closed => return,
                Waited::Idle => {
                    if self.crew().leave(role, || self.queue.has_some()) {
                        return;
                    }
                }
                Waited::Fault => {
                    self.work_one(self.gate.enter(), true);
                }
            }
        }
    }

    /// Serves a fault from the queue, or takes it back there for a while if it `may_wait`; false:
    /// there is none. Taken inside only: in the queue it can be seen by who has closed the gate.
    pub(super) fn work_one(&self, _inside: Inside<'_>, may_wait: bool) -> bool {
        let Some((fault, late)) = self.queue.pop() else {
            return false;
        };
        let wait = if late { 0 } else { self.mm.reclaim_high() };
        if wait > 0 && may_wait && self.throttle.is_due(self.mm.stats().get(Item::NrAnon)) {
            // It alone waits: others' faults may be for pages that are there in a moment.
            self.queue.postpone(fault, Duration::from_micros(wait));
            return true;
        }
        let _traced = stage(Stage::Late(fault.page));
        if !self.serve(fault, FaultMode::MayWait) {
            self.platform().wake(fault.page, 1);
        }
        self.mm.stall_end();
        self.hooks.worked();
        true
    }

    /// Reclaims when the core asks for it, until [`stop`](Self::stop).
    pub fn background_loop(&self) {
        let (work, idle) = (&self.mm.machine().work, self.crew().idle());
        loop {
            let rest = self.chores().rest(self);
            let bits = match rest.into_iter().chain(idle).min() {
                Some(time) => work.take_within(STOP, time),
                None => work.take(STOP),
            };
            if bits & STOP != 0 {
                return;
            }
            let is_due = rest.is_some_and(|rest| idle.is_none_or(|idle| rest <= idle));
            if bits == 0 && !is_due {
                if self.crew().leave(Role::BACKGROUND, || work.is_raised()) {
                    return;
                }
                continue;
            }
            if bits & MESSAGES != 0 {
                // Who asks for it may be inside the gate.
                self.read_all();
            }
            self.background_step(bits, self.gate.enter());
        }
    }

    /// What is asked for by `bits`, and chores that are due.
    pub(super) fn background_step(&self, bits: u32, inside: Inside<'_>) {
        let work = &self.mm.machine().work;
        if self.platform().has_moves() || self.platform().is_torn() {
            // Of which a task has read that could not follow them.
            self.follow_moves();
        }
        let mut chores = self.chores();
        if bits == 0 {
            chores.step(self);
        }
        chores.force(self);
        drop(chores);
        if bits & PAGEOUT != 0 {
            self.help_page_out();
        }
        if bits & RECLAIM != 0 {
            let _traced = stage(Stage::Reclaim);
            // What is only there ahead of need goes first.
            self.platform().nursery().drain();
            if self.mm.reclaim_background() {
                work.raise(RECLAIM);
            }
        }
        drop(inside);
        self.hooks.worked();
    }

    /// Makes huge pages ahead of need, with CPU time that nobody else wants, until
    /// [`stop`](Self::stop).
    pub fn filler_loop(&self) {
        cpu::be_idle();
        let signal = &self.mm.machine().filler;
        let (nursery, idle) = (self.platform().nursery(), self.crew().idle());
        loop {
            let bits = match (nursery.ready_pages(), idle) {
                (0, None) => signal.take(STOP),
                (0, Some(idle)) => signal.take_within(STOP, idle),
                _ => signal.take_within(STOP, NURSERY_IDLE),
            };
            if bits & STOP != 0 {
                return;
            }
            let is_done = bits == 0 && nursery.ready_pages() == 0 && idle.is_some();
            if is_done && self.crew().leave(Role::FILLER, || signal.is_raised()) {
                return;
            }
            if nursery.is_idle() {
                let _inside = self.gate.enter();
                nursery.drain();
            }
            while self.fill_one() {}
            self.hooks.worked();
        }
    }

    /// Makes one. Its cost is booked inside the gate; whoever closes that does not wait for
    /// the page, which may take long.
    fn fill_one(&self) -> bool {
        let inside = self.gate.enter();
        let Some(filling) = self.platform().nursery().begin() else {
            return false;
        };
        drop(inside);
        let made = filling.make(self.platform().pagemap());
        let _inside = self.gate.enter();
        filling.finish(made);
        made
    }

    /// Ends all loops. Faults are not served any more: only for a pager whose memory nobody
    /// uses.
    pub fn stop(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes to an eventfd.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        self.queue.close();
        self.mm.machine().work.raise(STOP);
        self.mm.machine().filler.raise(STOP);
    }
}

/// The fault that a message tells of.
pub(super) fn fault_of(msg: &mut Msg) -> Option<Fault> {
    match msg.take()? {
        Event::Pagefault {
            addr, write, wp, ..
        } => Some(Fault {
            page: Vpn::of_addr(addr as u64),
            write: write || wp,
            missing: !wp,
        }),
        _ => None,
    }
}

/// The move that a message tells of. Nothing else is asked for.
pub(super) fn moved_by(msg: &mut Msg) -> Option<Move> {
    let event = (!msg.is_fault()).then(|| msg.take()).flatten();
    match event? {
        Event::Remap { from, to, len } => Some(Move { from, to, len }),
        _ => None,
    }
}
