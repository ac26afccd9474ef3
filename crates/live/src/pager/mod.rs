//! [`Pager`]: the manager on real memory, with the loops that serve it.
//!
//! Four loops, each callable from any task that shares the memory and the descriptor table of
//! who built the pager (threads of the process, or of a service in its memory):
//!
//! * [`Pager::handler_loop`] reads faults and serves those that need neither reclaim nor
//!   waiting. What does goes to the queue.
//! * [`Pager::worker_loop`] serves the queue: it may reclaim and wait.
//! * [`Pager::background_loop`] reclaims ahead of need.
//! * [`Pager::filler_loop`] makes huge pages ahead of need.
//!
//! At least one of the first and one of the second must run, or the program stands still. Who owns
//! the pager may have all but the first handler come when they are needed, and stand in for who
//! cannot be had (`crew.rs`, `demand.rs`).

mod adopt;
pub mod charge;
mod chores;
mod cpu;
pub mod crew;
mod demand;
mod frozen;
pub mod gate;
mod handler;
mod hooks;
mod machine;
mod others;
mod place;
mod queue;
mod region;
mod service;
mod share;
mod signal;
mod throttle;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::sync::{Arc, Mutex};

use deckle_mm::{Charge, Env, MapError, Mm, SpaceId, Store, TunableError, Tunables, Vpn};
use deckle_uffd::Errno;

use crate::platform::{LiveConfig, LiveError, LiveMemory, LivePlatform, Opened, SPACE};

pub use crate::platform::drop_apart;
pub use charge::{Limit, Shared};
pub use chores::Forcing;
pub use cpu::leave_scheduling;
pub use crew::{Crew, Role};
pub use hooks::{Die, Hooks};
pub use machine::LiveMachine;
pub use queue::Fault;
pub use region::Region;
pub use service::Service;

use chores::Chores;
use queue::Queue;
use throttle::Throttle;

/// Pages of the address space that a program can have.
const PAGES: u64 = (1 << 47) / deckle_mm::PAGE_SIZE as u64;

/// The live machine as one set of the core's traits.
pub struct LiveEnv<C, S>(PhantomData<(C, S)>);

impl<C: Charge + 'static, S: Store + 'static> Env for LiveEnv<C, S> {
    type P = LiveMemory;
    type M = LiveMachine;
    type C = Shared<C>;
    type S = S;
    type Sharing = deckle_mm::KernelCow;
    type Frames = deckle_mm::Slots;
}

/// Why a pager could not be started.
#[derive(Debug)]
pub enum PagerError {
    /// No platform.
    Live(LiveError),
    /// A tunable out of range.
    Tunable(TunableError),
    /// There is no address window (a defect).
    Space(MapError),
    /// No descriptor for the stop signal.
    Stop(Errno),
    /// A thread cannot be started.
    Thread(std::io::Error),
}

impl fmt::Display for PagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PagerError::Live(e) => e.fmt(f),
            PagerError::Tunable(e) => e.fmt(f),
            PagerError::Space(e) => write!(f, "address space: {e:?}"),
            PagerError::Stop(e) => write!(f, "eventfd: {e}"),
            PagerError::Thread(e) => write!(f, "thread: {e}"),
        }
    }
}

impl std::error::Error for PagerError {}

/// The manager of one process's memory, and what its loops share.
pub struct Pager<C: Charge + 'static, S: Store + 'static> {
    mm: Mm<LiveEnv<C, S>>,
    queue: Queue,
    throttle: Throttle,
    share: share::Share,
    hooks: Box<dyn Hooks>,
    stop: OwnedFd,
    heard: Arc<adopt::Heard>,
    gate: gate::Gate,
    forcing: Option<Forcing>,
    chores: Mutex<Chores>,
    /// See [`note_change`](Self::note_change).
    changes: AtomicU32,
    /// -1: none.
    watched: AtomicI32,
}

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// A pager whose loops do not run yet.
    ///
    /// `config.account` is set here (the nursery is paid for by `charge`), and `config.unread`.
    ///
    /// # Errors
    /// See [`PagerError`].
    pub fn new(
        mut config: LiveConfig,
        charge: Arc<C>,
        store: S,
        tunables: Tunables,
        hooks: Box<dyn Hooks>,
    ) -> Result<Pager<C, S>, PagerError> {
        config.account = Some(Box::new(Shared(charge.clone())));
        if config.limit_pages.is_none() {
            config.limit_pages = Some(charge.max()).filter(|max| *max != u64::MAX);
        }
        let machine = LiveMachine::new();
        let heard = Arc::new(adopt::Heard::default());
        config.unread = Some(adopt::unread_by(&heard, &machine));
        config.noted = Some(adopt::noted_by(&heard));
        let platform = LivePlatform::new(config).map_err(PagerError::Live)?;
        // SAFETY: to the manager in the next line. What it maps is reached through `place.rs`,
        // whose callers promise the same of their references, and by `Region`, which borrows.
        let platform = unsafe { LiveMemory::new(platform) };
        let mm = Mm::new(platform, machine, Shared(charge), store, tunables)
            .map_err(PagerError::Tunable)?;
        let space = mm.create_space(Vpn(0), PAGES).map_err(PagerError::Space)?;
        debug_assert_eq!(space, SPACE);
        let stop = stop_signal()?;
        Ok(Pager {
            mm,
            queue: Queue::new(),
            throttle: Throttle::default(),
            share: share::Share::default(),
            hooks,
            watched: AtomicI32::new(-1),
            stop,
            heard,
            gate: gate::Gate::new(),
            forcing: None,
            chores: Mutex::new(Chores::new()),
            changes: AtomicU32::new(0),
        })
    }

    /// The program is the process `pid`, and who serves it is outside of that: the time in
    /// which it does nothing else while it waits for memory can be told.
    pub fn set_program(&self, pid: i32) {
        self.mm.machine().set_program(pid);
    }

    /// The manager.
    pub fn mm(&self) -> &Mm<LiveEnv<C, S>> {
        &self.mm
    }

    /// Sets the knobs; the loops follow them at once.
    ///
    /// # Errors
    /// One is out of range, and nothing has changed.
    pub fn set_tunables(&self, t: Tunables) -> Result<(), TunableError> {
        self.mm.set_tunables(t)?;
        self.note_change();
        self.mm.machine().work.raise(machine::KNOBS);
        Ok(())
    }

    /// From now on it is told ([`Hooks::hung_up`]), once, when the other end of `fd` is gone.
    pub fn watch(&self, fd: i32) {
        self.watched.store(fd, Relaxed);
    }

    /// Has the background loop force what `forcing` says, in this process and its children.
    /// Before the loops run.
    pub fn set_forcing(&mut self, forcing: Option<Forcing>) {
        self.forcing = forcing;
    }

    /// The platform.
    pub fn platform(&self) -> &LivePlatform {
        self.mm.platform()
    }

    /// What everybody passes who changes the manager's state: loops enter it by themselves,
    /// callers of [`mm`](Self::mm) who may run while it is closed must.
    pub fn gate(&self) -> &gate::Gate {
        &self.gate
    }

    /// Gives the copy of a pager in a child of fork descriptors and ranges of its own. The
    /// loops do not run yet; the gate is left as it is.
    ///
    /// # Safety
    /// In a child, once, by who has a descriptor table of its own, before anything else of
    /// this pager is used there but
    /// [`reserve_after_fork`](LivePlatform::reserve_after_fork), which comes first. The
    /// parent's pager was [frozen](Pager::freeze) over the fork, and its platform
    /// [inherited](LivePlatform::inherit).
    ///
    /// # Errors
    /// See [`PagerError`].
    pub unsafe fn after_fork(&mut self, opened: Opened) -> Result<(), PagerError> {
        use std::mem::{forget, replace};
        // The old number means nothing in the new descriptor table: not closed.
        forget(replace(&mut self.stop, stop_signal()?));
        // Faults of the parent; its lock may have been copied while somebody had it.
        forget(replace(&mut self.queue, Queue::new()));
        self.chores = Mutex::new(Chores::new());
        self.heard = Arc::default();
        let noted = adopt::noted_by(&self.heard);
        let unread = adopt::unread_by(&self.heard, self.mm.machine());
        self.mm.forget_stalls();
        // SAFETY: the caller's promise.
        unsafe { self.mm.platform_mut().after_fork(opened) }.map_err(PagerError::Live)?;
        self.mm.platform_mut().listen(noted, unread);
        self.mm.guard_all(self.space()).map_err(PagerError::Space)
    }

    /// Before the loops run, here or in a child of fork: whether they are run on demand alone, by
    /// whom the owner of the pager starts then.
    pub fn run_on_demand(&self, on: bool) {
        self.crew().come_on_demand(on);
        // What was asked for in the parent is taken up here.
        self.mm.machine().work.call();
    }

    /// Who runs the loops.
    pub fn crew(&self) -> &Crew {
        &self.mm.machine().crew
    }

    /// How many handlers should run here, with numbers from 0.
    pub fn handlers() -> usize {
        cpu::handlers()
    }

    /// The one address space.
    pub fn space(&self) -> SpaceId {
        SPACE
    }
}

fn stop_signal() -> Result<OwnedFd, PagerError> {
    // SAFETY: the call takes integers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(PagerError::Stop(Errno::last()));
    }
    // SAFETY: just opened, without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
