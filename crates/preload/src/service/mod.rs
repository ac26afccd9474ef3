//! The service: who manages the program's memory, beside the program.

mod account;
mod advise;
mod end;
mod foreign;
mod fork;
mod gate;
mod gauges;
mod handover;
mod lock;
mod mappings;
mod request;
mod serve;
mod tasks;

pub use fork::register as register_fork_handlers;
pub use gate::{arena, is_small, outgrown};
pub use request::{Op, request};

use account::{Account, Swap};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use core::time::Duration;
use deckle_group::proto::Link;
use deckle_live::{LiveEnv, Pager};
use deckle_mm::space::vma::Vma;
use deckle_mm::{Mm, SpaceId};
use deckle_task::watch::{Program, Watch};
use deckle_task::{Area, Entry, Options, SpawnError, futex};
use std::sync::{Arc, Mutex};

type Manager = Mm<LiveEnv<Account, Swap>>;

/// One managed process, as its service sees it.
struct Process {
    /// Its process id.
    pid: i32,
    pager: Pager<Account, Swap>,
    account: Arc<Account>,
    link: Link,
    watch: Watch,
    /// Whether every large mapping lies on huge pages.
    align_mappings: bool,
    /// What the age of inactive memory is told from.
    history: Mutex<deckle_group::History>,
}

impl Process {
    /// The manager, and the program's space in it.
    fn memory(&self) -> (&Manager, SpaceId) {
        (self.pager.mm(), self.pager.space())
    }

    /// What the program has mapped in a range, in parts.
    fn mapped_parts(&self, addr: usize, bytes: usize) -> Vec<Vma> {
        let (mm, space) = self.memory();
        mm.mapped_parts(space, serve::vpn(addr), serve::pages(bytes))
    }
}

/// The process, once its service is set up. Never freed.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

fn process() -> Option<&'static Process> {
    // SAFETY: null or a leaked value.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// The tasks beside the first and the handlers: name for people is the service's own.
const OTHERS: [Entry; 6] = [
    tasks::worker,
    tasks::worker,
    tasks::background,
    tasks::filler,
    tasks::caller,
    tasks::donor,
];
const STACK: usize = 256 << 10;
/// Most handlers there are.
const HANDLERS: usize = 4;
/// All tasks.
const TASKS: usize = 1 + OTHERS.len() + HANDLERS;

/// How many handlers run here.
fn handlers() -> usize {
    Pager::<Account, Swap>::handlers().min(HANDLERS)
}

/// The memory of all tasks: made before the first of them.
struct Areas(UnsafeCell<[Option<Area>; TASKS]>);
// SAFETY: written by the one thread that starts the service, before there is one; only read
// after.
unsafe impl Sync for Areas {}
static AREAS: Areas = Areas(UnsafeCell::new([const { None }; TASKS]));

fn area(index: usize) -> Option<&'static Area> {
    // SAFETY: nobody writes any more when tasks are made.
    unsafe { &*AREAS.0.get() }.get(index)?.as_ref()
}

/// What the starting thread and the first task tell each other.
struct Start {
    name: &'static [u8],
    program: Program,
    /// 0: not yet, 1: runs, 2: failed.
    state: AtomicU32,
    base: AtomicUsize,
    bytes: AtomicUsize,
    reason: UnsafeCell<[u8; 400]>,
    reason_len: AtomicUsize,
}

impl Start {
    fn new(name: &'static [u8]) -> Start {
        Start {
            name,
            program: Program::current(),
            state: AtomicU32::new(0),
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            reason: UnsafeCell::new([0; 400]),
            reason_len: AtomicUsize::new(0),
        }
    }

    fn tell(&self, base: usize, bytes: usize) {
        self.base.store(base, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.done(1);
    }

    fn fail(&self, why: &str) {
        // SAFETY: the other side reads after `done`.
        let to = unsafe { &mut *self.reason.get() };
        let n = why.len().min(to.len());
        to[..n].copy_from_slice(&why.as_bytes()[..n]);
        self.reason_len.store(n, Relaxed);
        self.done(2);
    }

    fn done(&self, state: u32) {
        self.state.store(state, Release);
        futex::wake(&self.state, 1);
    }
}

/// Starts the service. Returns the range of managed memory; `None` outside `deckle run`.
/// Ends the program with one line if it cannot be managed although it should be.
fn start() -> Option<(usize, usize)> {
    let name = crate::config::group_name()?;
    match try_start(name) {
        Ok(range) => Some(range),
        Err(why) => {
            crate::sys::say(&[b"deckle: memory cannot be managed: ", why.as_bytes()]);
            end::exit_all(125)
        }
    }
}

fn try_start(name: &'static [u8]) -> Result<(usize, usize), String> {
    // SAFETY: one thread starts the service, once.
    let areas = unsafe { &mut *AREAS.0.get() };
    for place in areas.iter_mut().take(1 + OTHERS.len() + handlers()) {
        *place = Some(Area::new(STACK).map_err(|e| e.to_string())?);
    }
    begin(&Start::new(name), tasks::main)
}

/// Starts the service of a child of fork on the copy of its parent's.
fn start_in_child() -> Result<(), String> {
    let name = crate::config::group_name().ok_or("no group")?;
    for index in 0..TASKS {
        if let Some(area) = area(index) {
            // SAFETY: the parent's tasks do not run in the child's copy.
            unsafe { area.after_fork() };
        }
    }
    begin(&Start::new(name), fork::first_in_child).map(|_| ())
}

/// Makes the first task and waits until the service runs.
fn begin(start: &Start, entry: Entry) -> Result<(usize, usize), String> {
    let first = area(0).ok_or("no memory for a task")?;
    let options = Options {
        name: c"deckle",
        keep: &[],
    };
    let argument = core::ptr::from_ref(start).cast_mut().cast::<c_void>();
    // SAFETY: the areas live for ever; `start` outlives the wait below; the task calls only
    // what a service task may.
    let task = unsafe { deckle_task::spawn(first, &options, entry, argument) }
        .map_err(|e| e.to_string())?;
    loop {
        match start.state.load(Acquire) {
            1 => {
                return Ok((start.base.load(Relaxed), start.bytes.load(Relaxed)));
            }
            2 => {
                let n = start.reason_len.load(Relaxed);
                // SAFETY: the task does not write any more.
                let text = unsafe { &(&*start.reason.get())[..n] };
                return Err(String::from_utf8_lossy(text).into_owned());
            }
            _ if !task.is_alive() => return Err("its service has died".into()),
            _ => {
                futex::wait(&start.state, 0, Some(Duration::from_millis(50)));
            }
        }
    }
}

/// Makes the other tasks; called by the first.
fn spawn_others() -> Result<(), SpawnError> {
    let spawn = |index, entry, argument| {
        let place = area(index).ok_or(SpawnError::Died)?;
        // SAFETY: as in `begin`; called in the service.
        unsafe { deckle_task::spawn_thread(place, entry, argument) }
    };
    for (index, entry) in OTHERS.into_iter().enumerate() {
        spawn(1 + index, entry, core::ptr::null_mut())?;
    }
    // A child of fork may be allowed more CPUs than its parent was when areas were made.
    let first = 1 + OTHERS.len();
    for number in (0..handlers()).take_while(|n| *n == 0 || area(first + n).is_some()) {
        spawn(
            first + number,
            tasks::handler,
            core::ptr::without_provenance_mut(number),
        )?;
    }
    Ok(())
}
