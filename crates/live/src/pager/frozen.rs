//! Standing still for a fork: faults while nothing of the manager may change.
//!
//! From [`Pager::freeze`] to [`Pager::thaw`] the gate is closed. What is resident is in the
//! program, the rest stays in the store. Faults of most threads wait; those of the thread that
//! forks (libc reads its own data on the way) and those of the child are served from the frozen
//! state by copying, or by lifting the protection that a write met, which changes nothing in the
//! core, and are noted: what was filled or written is booked when the state may change again, in
//! each process by its own manager.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use deckle_mm::{Charge, FaultError, Frozen, MapError, PAGE_SIZE, Store, Vpn};
use deckle_uffd::{CopyMode, Event, Msg, ProtectMode, Uffd, Why};

use super::Pager;
use super::queue::Fault;

/// Most pages that the forking thread may have filled: what libc touches of its own.
const ROOM: usize = 1024;
/// How often an operation is repeated that finds the address space changing.
const PATIENCE: u32 = 100_000;

/// What became of a fault that was served from the frozen state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// The page was filled; it must be [adopted](Pager::adopt) later.
    Yes,
    /// The access was possible already.
    No,
    /// The process of the descriptor is gone.
    Gone,
}

/// The state of a fork. Only words: the child gets a copy of them, made at any moment.
pub(super) struct Still {
    /// Thread id of who forks; 0: nobody.
    forker: AtomicU32,
    /// Pages that its faults filled.
    filled: [AtomicU64; ROOM],
    count: AtomicUsize,
    /// Handlers that may have taken messages which they have not dealt with.
    reading: AtomicU32,
}

/// While it lives, messages that were taken may not have been dealt with.
pub(super) struct Reading<'a>(&'a AtomicU32);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Still {
    pub(super) fn new() -> Still {
        Still {
            forker: AtomicU32::new(0),
            filled: [const { AtomicU64::new(0) }; ROOM],
            count: AtomicUsize::new(0),
            reading: AtomicU32::new(0),
        }
    }

    pub(super) fn reading(&self) -> Reading<'_> {
        self.reading.fetch_add(1, Ordering::SeqCst);
        Reading(&self.reading)
    }

    pub(super) fn after_fork(&self) {
        self.forker.store(0, Ordering::Relaxed);
        self.reading.store(0, Ordering::Relaxed);
    }

    /// Notes a page before it is filled; false without room.
    fn note(&self, page: Vpn) -> bool {
        let at = self.count.load(Ordering::Relaxed);
        let Some(place) = self.filled.get(at) else {
            return false;
        };
        place.store(page.0, Ordering::Relaxed);
        self.count.store(at + 1, Ordering::Release);
        true
    }
}

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Closes the gate and brings everything into a state that a fork may copy. With fork
    /// events what is in the store stays there, and `lend` is called before what is resident is
    /// marked as shared; else everything is filled in.
    /// `forker` is the thread that is going to fork.
    ///
    /// # Errors
    /// The limit has no room, or the system refuses; the gate is open again then.
    pub fn freeze(&self, forker: u32, lend: impl FnOnce()) -> Result<(), MapError> {
        self.gate.close();
        self.platform().nursery().drain();
        let settled = match self.platform().fork_events() {
            true => self.mm.activate_all(self.space()).and_then(|()| {
                lend();
                self.mm.share_all(self.space())
            }),
            false => self.mm.settle_for_fork(self.space()),
        };
        if settled.is_err() {
            self.gate.open();
            return settled;
        }
        self.still.forker.store(forker, Ordering::SeqCst);
        // A fault of the forking thread may have been queued before: its stack may be managed
        // memory. Whoever is woken tries again, and only the forking thread is served then.
        self.queue.each(|fault| self.platform().wake(fault.page, 1));
        Ok(())
    }

    /// Books what was filled meanwhile and opens the gate.
    ///
    /// # Errors
    /// A page could not be booked; the process must end. The gate is open.
    pub fn thaw(&self) -> Result<(), MapError> {
        self.still.forker.store(0, Ordering::SeqCst);
        let booked = self.adopt_filled();
        self.gate.open();
        booked
    }

    /// In both processes: books what the forking thread has filled before (in the parent also
    /// after) the fork.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub fn adopt_filled(&self) -> Result<(), MapError> {
        let count = self.still.count.swap(0, Ordering::Acquire);
        for place in &self.still.filled[..count.min(ROOM)] {
            self.adopt(Vpn(place.load(Ordering::Relaxed)))?;
        }
        Ok(())
    }

    /// Books one page that [`serve_frozen`](Self::serve_frozen) has filled.
    ///
    /// # Errors
    /// No frame, or the system refuses.
    pub fn adopt(&self, page: Vpn) -> Result<(), MapError> {
        self.mm.adopt_filled(self.space(), page)
    }

    /// Whether a handler may hold messages that it has taken and not dealt with: once not, an
    /// event whose sender goes on has reached [`Hooks::forked`](super::Hooks).
    pub fn is_reading(&self) -> bool {
        self.still.reading.load(Ordering::SeqCst) > 0
    }

    /// A message while the gate is closed.
    pub(super) fn handle_frozen(&self, msg: &mut Msg) {
        match msg.take() {
            Some(Event::Pagefault {
                addr,
                write,
                wp,
                ptid,
                ..
            }) => {
                let fault = Fault {
                    page: Vpn::of_addr(addr as u64),
                    write: write || wp,
                };
                let forks = || ptid != 0 && ptid == self.still.forker.load(Ordering::SeqCst);
                if !forks() {
                    // Looked at again: `freeze` may have looked at the queue in between.
                    if !self.hand_over(fault) || forks() {
                        self.platform().wake(fault.page, 1);
                    }
                    return;
                }
                let served = match self.still.note(fault.page) {
                    true => self.serve_frozen(self.platform().program_uffd(), fault),
                    // To let it wait would be for ever: it is the one who opens the gate.
                    false => Err(FaultError::Busy),
                };
                if let Err(error) = served {
                    self.hooks.fatal(fault, &error);
                }
            }
            Some(Event::Fork { child }) => self.hooks.forked(child),
            Some(_) | None => {}
        }
    }

    /// Serves a fault of this process or of its child, whose descriptor is `to`, from the
    /// frozen state. Allocates nothing.
    ///
    /// # Errors
    /// The page cannot be read from the store, or the system refuses.
    pub fn serve_frozen(&self, to: &Uffd, fault: Fault) -> Result<Filled, FaultError> {
        use deckle_mm::{PlatformError, Stop};
        let mut bytes = [0; PAGE_SIZE];
        let at = fault.page.addr() as usize;
        let found = self.mm.peek_frozen(self.space(), fault.page, &mut bytes)?;
        let refused = |why: Why| {
            Err(FaultError::Platform(PlatformError {
                at: 0,
                why: match why {
                    Why::Again { .. } => Stop::Retry,
                    Why::NoMemory => Stop::NoMemory,
                    _ => Stop::Refused(libc::EINVAL),
                },
            }))
        };
        for _ in 0..PATIENCE {
            let why = match found {
                Frozen::Zeros | Frozen::Stored => {
                    // SAFETY: a hole of the program's or its child's memory, and the bytes that
                    // belong there.
                    let done = unsafe { to.copy(at, bytes.as_ptr(), PAGE_SIZE, CopyMode::empty()) };
                    match done {
                        Ok(_) => return Ok(Filled::Yes),
                        Err(partial) => partial.why,
                    }
                }
                // The kernel gives the writer a page of its own: of zeros, or of what others
                // share with it.
                Frozen::ZeroPage | Frozen::Present if fault.write => {
                    match to.write_protect(at, PAGE_SIZE, ProtectMode::empty()) {
                        Ok(()) => return Ok(Filled::Yes),
                        Err(why) => why,
                    }
                }
                Frozen::ZeroPage | Frozen::Present => Why::Exists,
            };
            match why {
                Why::Again { .. } => crate::platform::yield_now(),
                Why::Exists => {
                    let _ = to.wake(at, PAGE_SIZE);
                    return Ok(Filled::No);
                }
                Why::Gone => return Ok(Filled::Gone),
                why => return refused(why),
            }
        }
        refused(Why::Again { changing: true })
    }
}
