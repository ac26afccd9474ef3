//! Simulated CPUs: one thread each, exactly one of which runs at any time.
//!
//! A CPU gives the turn away only at the places where the core says that another may go
//! first, when it waits, and (if a model is attached) before an operation on memory. Who is
//! next is drawn from the seed. So the seed decides the whole interleaving.

use crate::rng::Rng;
use crate::sched::{Cpu, Locks, Sched};
use crate::trace::{Event, RunError, Trace};
use deckle_mm::{LockClass, Machine, Site, Work};
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What one CPU does in a run.
pub type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A [`Job`] of a closure.
pub fn cpu<'a>(work: impl FnOnce() + Send + 'a) -> Job<'a> {
    Box::new(work)
}

/// Steps after which a run counts as a livelock, unless set otherwise.
const MAX_STEPS: u64 = 20_000_000;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The machine and the CPU that this thread is.
    static SELF: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
}

/// What unwinds a CPU whose run was ended by another.
struct Aborted;

/// The model's CPUs: a handle, clones are the same machine.
///
/// Outside of [`ModelMachine::run`] the calling thread counts as CPU 0 and is alone: nothing
/// is switched, and to wait for a word that is as expected is a deadlock (a panic).
#[derive(Clone)]
pub struct ModelMachine(Arc<Shared>);

struct Shared {
    id: u64,
    nr_cpus: usize,
    sched: Mutex<Sched>,
    turns: Vec<Condvar>,
}

impl ModelMachine {
    /// A machine with `cpus` CPUs (at least 1). The seed decides who runs when, and how often
    /// CPUs are switched.
    pub fn new(cpus: usize, seed: u64) -> ModelMachine {
        let nr_cpus = cpus.max(1);
        let mut rng = Rng::new(seed);
        let switch_of = [1, 2, 4, 16][rng.below(4) as usize];
        let sched = Sched {
            seed,
            rng,
            switch_of,
            max_steps: MAX_STEPS,
            cpus: Vec::new(),
            locks: Vec::new(),
            outside: Locks::default(),
            running: None,
            trace: Trace::default(),
            kicks: Vec::new(),
            parked: 0,
            taken: BTreeMap::new(),
            closing: false,
            abort: None,
        };
        ModelMachine(Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            nr_cpus,
            sched: Mutex::new(sched),
            turns: (0..nr_cpus).map(|_| Condvar::new()).collect(),
        }))
    }

    /// A machine with one CPU, which is the calling thread: no thread, no switch.
    pub fn single() -> ModelMachine {
        ModelMachine::new(1, 0)
    }

    /// At a site the next CPU is drawn once in `n` times (1: at each site). The default is
    /// drawn from the seed.
    pub fn set_switch_of(&self, n: u32) {
        self.lock().switch_of = n.max(1);
    }
    /// After how many steps a run is given up.
    pub fn set_max_steps(&self, steps: u64) {
        self.lock().max_steps = steps;
    }

    /// Steps of the run so far, of all CPUs together: the only clock that the model has.
    pub fn steps(&self) -> u64 {
        self.lock().trace.steps()
    }

    /// How often a CPU was parked so far.
    pub fn parked(&self) -> u64 {
        self.lock().parked
    }

    /// How often locks of a class were taken so far.
    pub fn locks_taken(&self, class: LockClass) -> u64 {
        self.lock().taken.get(&class).copied().unwrap_or(0)
    }

    /// Runs the jobs, one on each CPU, until all have returned.
    ///
    /// The same seed, jobs and history of the machine give the same trace. An error ends the
    /// run: the other CPUs are unwound. Panics if there are more jobs than CPUs.
    pub fn run(&self, jobs: Vec<Job<'_>>) -> Result<Trace, RunError> {
        assert!(jobs.len() <= self.0.nr_cpus, "more jobs than CPUs");
        if jobs.is_empty() {
            return Ok(Trace::default());
        }
        {
            let mut sched = self.lock();
            sched.cpus = vec![Cpu::Runnable; jobs.len()];
            sched.locks = jobs.iter().map(|_| Locks::default()).collect();
            sched.trace = Trace::default();
            sched.closing = false;
            sched.abort = None;
            sched.choose();
        }
        std::thread::scope(|scope| {
            for (me, job) in jobs.into_iter().enumerate() {
                scope.spawn(move || {
                    SELF.set(Some((self.0.id, me)));
                    let result = catch_unwind(AssertUnwindSafe(|| {
                        drop(self.wait_turn(self.lock(), me));
                        job();
                    }));
                    self.finish(me, result);
                });
            }
        });
        let mut sched = self.lock();
        sched.cpus.clear();
        sched.running = None;
        match sched.abort.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut sched.trace)),
        }
    }

    /// Waits for background work: what a background CPU (kswapd) does in a loop. `None` when
    /// all other CPUs have returned or wait here too, so that no work can come any more.
    /// Outside of a run it does not wait.
    pub fn wait_kick(&self) -> Option<Work> {
        let Some(me) = self.me() else {
            return self.take_kick();
        };
        let mut sched = self.lock();
        loop {
            self.check_abort(&sched);
            if let Some(work) = sched.kicks.pop() {
                return Some(work);
            }
            if sched.closing {
                return None;
            }
            sched.step(me, Event::Idle);
            sched.cpus[me] = Cpu::Idle;
            sched.choose();
            sched = self.wait_turn(sched, me);
        }
    }
    /// Background work that was asked for, if any.
    pub fn take_kick(&self) -> Option<Work> {
        self.lock().kicks.pop()
    }

    fn lock(&self) -> MutexGuard<'_, Sched> {
        self.0.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The CPU of this machine that the calling thread is, during a run.
    fn me(&self) -> Option<usize> {
        SELF.get()
            .and_then(|(id, cpu)| (id == self.0.id).then_some(cpu))
    }

    /// Unwinds the calling CPU if the run has been ended; not if it unwinds already.
    fn check_abort(&self, sched: &Sched) {
        if sched.abort.is_some() && !std::thread::panicking() {
            resume_unwind(Box::new(Aborted));
        }
    }

    /// Wakes the CPU whose turn it is, and sleeps until it is this one's.
    fn wait_turn<'a>(
        &'a self,
        mut sched: MutexGuard<'a, Sched>,
        me: usize,
    ) -> MutexGuard<'a, Sched> {
        self.pass(&sched);
        loop {
            if sched.abort.is_some() {
                drop(sched);
                if !std::thread::panicking() {
                    resume_unwind(Box::new(Aborted));
                }
                // Unwinding beside others that do: their guards will let go in time.
                std::thread::yield_now();
                return self.lock();
            }
            if sched.running == Some(me) {
                return sched;
            }
            sched = (self.0.turns[me].wait(sched)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes whoever has to see the new state.
    fn pass(&self, sched: &Sched) {
        match (&sched.abort, sched.running) {
            (None, Some(next)) => self.0.turns[next].notify_one(),
            (None, None) => {}
            (Some(_), _) => self.0.turns.iter().for_each(Condvar::notify_one),
        }
    }

    fn finish(&self, me: usize, result: Result<(), Box<dyn Any + Send>>) {
        let mut sched = self.lock();
        sched.cpus[me] = Cpu::Finished;
        let message = match result {
            Ok(()) => (sched.locks[me].held.first())
                .map(|(c, a)| format!("returned while {c:?} at {a:#x} is held")),
            Err(payload) if payload.is::<Aborted>() => None,
            Err(payload) => Some(message_of(&*payload)),
        };
        if let (Some(message), None) = (message, &sched.abort) {
            sched.abort = Some(RunError::Panicked {
                seed: sched.seed,
                cpu: me,
                message,
                trace: sched.trace.clone(),
            });
        }
        if sched.abort.is_none() {
            sched.step(me, Event::Finish);
            sched.choose();
        }
        self.pass(&sched);
    }

    /// A step at which another CPU may go first.
    fn switch(&self, event: Event) {
        let Some(me) = self.me() else { return };
        let mut sched = self.lock();
        self.check_abort(&sched);
        if sched.abort.is_some() {
            return;
        }
        sched.step(me, event);
        let one_in = sched.switch_of;
        if sched.rng.chance(1, one_in) {
            sched.choose();
        }
        if sched.running != Some(me) || sched.abort.is_some() {
            drop(self.wait_turn(sched, me));
        }
    }

    /// Before operation `op` of an attached model.
    pub(crate) fn turn(&self, op: &'static str) {
        self.switch(Event::Op(op));
    }

    /// Panics with the complaint, unless the thread unwinds already.
    fn complain(&self, checked: Result<(), String>) {
        if let Err(complaint) = checked
            && !std::thread::panicking()
        {
            panic!("{complaint}");
        }
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(s), _) => s.to_string(),
        (_, Some(s)) => s.clone(),
        _ => "a panic without text".to_string(),
    }
}

impl Machine for ModelMachine {
    fn this_cpu(&self) -> usize {
        self.me().unwrap_or(0)
    }
    fn nr_cpus(&self) -> usize {
        self.0.nr_cpus
    }
    fn park(&self, word: &AtomicU32, expected: u32) {
        let me = self.me();
        let mut sched = self.lock();
        if me.is_some() {
            self.check_abort(&sched);
        }
        let allowed = sched.locks_of(me).may_park();
        if allowed.is_err() && !std::thread::panicking() {
            drop(sched);
            return self.complain(allowed);
        }
        if word.load(Ordering::SeqCst) != expected {
            return;
        }
        let Some(me) = me else {
            let held = std::mem::take(&mut sched.outside).held;
            drop(sched);
            panic!("deadlock: park on an unchanged word ({expected}) with one CPU; held: {held:?}");
        };
        if sched.abort.is_none() {
            sched.step(me, Event::Park);
            sched.parked += 1;
            sched.cpus[me] = Cpu::Parked(word.as_ptr() as usize);
            sched.choose();
        }
        drop(self.wait_turn(sched, me));
    }
    fn unpark(&self, word: &AtomicU32, count: u32) {
        let Some(me) = self.me() else { return };
        let mut sched = self.lock();
        let woken = sched.wake(word.as_ptr() as usize, count);
        if sched.abort.is_none() {
            sched.step(me, Event::Unpark(woken));
        }
    }
    fn kick(&self, work: Work) {
        let mut sched = self.lock();
        if !sched.kicks.contains(&work) {
            sched.kicks.push(work);
        }
        for cpu in &mut sched.cpus {
            if *cpu == Cpu::Idle {
                *cpu = Cpu::Runnable;
            }
        }
        if let (Some(me), None) = (self.me(), &sched.abort) {
            sched.step(me, Event::Kick(work));
        }
    }
    fn preempt(&self, site: Site) {
        if let Site::Lock(_) = site {
            self.lock().locks_of(self.me()).acquiring = true;
        }
        self.switch(Event::Site(site));
    }
    fn now(&self) -> u64 {
        // With one CPU nothing is switched: what is taken shows that something was done.
        let sched = self.lock();
        sched.trace.steps() + sched.taken.values().sum::<u64>()
    }
    fn lock_taken(&self, class: LockClass, at: u64) {
        let mut sched = self.lock();
        *sched.taken.entry(class).or_default() += 1;
        let checked = sched.locks_of(self.me()).take(class, at);
        drop(sched);
        self.complain(checked);
    }
    fn lock_released(&self, class: LockClass, at: u64) {
        let checked = self.lock().locks_of(self.me()).release(class, at);
        self.complain(checked);
    }
}
