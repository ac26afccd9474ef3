//! Where the time of tasks goes: each moment belongs to the innermost stage that a task is in.
//!
//! Two clocks are read: time, and the CPU time of the task, which is a system call of a
//! microsecond. So they are read at some changes only, many in a row and then none for a while;
//! what they show stands for all. What reading them costs is measured all along and taken off.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

use deckle_live::trace::{self, Stage};
use deckle_sys::clock::{Clock, nanos};

named! {
    /// A stage: first those of a fault, from [`Part::Pick`] on those of an eviction.
    pub(crate) enum Part {
        Message = "read the message",
        Aside = "wait while pages are unmapped",
        LookUp = "look up (core)",
        Late = "look up, wait for room (worker)",
        ReadBack = "read back",
        Look = "discarded meanwhile?",
        Install = "install and wake",
        Forget = "free the slot",
        Pick = "pick (core)",
        Unmap = "unmap",
        Scan = "look for zeros",
        Compress = "compress",
        Keep = "store",
        Free = "free the page",
    }
}

impl Part {
    fn of(stage: Stage) -> Part {
        match stage {
            Stage::Message => Part::Message,
            Stage::Fault(_) => Part::LookUp,
            Stage::Late(_) => Part::Late,
            Stage::Aside => Part::Aside,
            Stage::Look => Part::Look,
            Stage::Install => Part::Install,
            Stage::Reclaim => Part::Pick,
            Stage::Unmap => Part::Unmap,
            Stage::Scan => Part::Scan,
            Stage::Free => Part::Free,
        }
    }
}

/// What a part came to, of all tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sum {
    /// Times it was begun.
    pub calls: u64,
    /// Nanoseconds in it.
    pub wall: u64,
    /// ... of CPU.
    pub cpu: u64,
}

/// Sums of one task, which alone changes them.
#[derive(Default)]
struct Block {
    /// Of each part: times begun, time, CPU time, and from how many changes that is.
    parts: [[AtomicU64; 4]; Part::ALL.len()],
    /// Changes within a part.
    changes: AtomicU64,
    /// How often reading the clocks was timed, and the CPU time that it took.
    cost: [AtomicU64; 2],
}

fn add(sum: &AtomicU64, n: u64) {
    sum.store(sum.load(Relaxed) + n, Relaxed);
}

static BLOCKS: Mutex<Vec<&'static Block>> = Mutex::new(Vec::new());
/// Whether anybody listens.
static ON: AtomicBool = AtomicBool::new(false);

/// Deepest nesting that is told apart.
const DEEPEST: usize = 8;
/// Changes in a row that are timed.
const TIMED: u32 = 32;
/// Changes between such rows: this, and up to as many again, so that no part is in step with it.
const PAUSE: u32 = 160;

/// Nanoseconds of CPU in one go that no stage takes. A machine that its host stops for a while
/// counts that as CPU time of whoever was on: not to be taken for what the same stage takes where
/// nobody looked. It stays in the process' sum, in no stage.
pub(super) const STALL: u64 = 2_000_000;

struct Task {
    block: &'static Block,
    /// Parts that it is in, the innermost last.
    stack: Cell<[Part; DEEPEST]>,
    depth: Cell<usize>,
    /// When the last change was, if that was timed.
    last: Cell<Option<[u64; 2]>>,
    /// Changes until timing begins or ends.
    left: Cell<u32>,
    random: Cell<u32>,
    /// Whose fault it serves.
    serves: Cell<Option<&'static Watch>>,
}

thread_local! {
    static TASK: Task = Task {
        block: new_block(),
        stack: Cell::new([Part::Message; DEEPEST]),
        depth: Cell::new(0),
        last: Cell::new(None),
        left: Cell::new(0),
        random: Cell::new(1),
        serves: Cell::new(None),
    };
}

fn new_block() -> &'static Block {
    // For good: there are as many as tasks, and who sums up may come after their end.
    let block: &'static Block = Box::leak(Box::default());
    let mut all = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(block);
    block
}

/// Nanoseconds now.
pub(crate) fn time() -> u64 {
    nanos(Clock::Monotonic)
}

/// Nanoseconds now: time, and CPU time of the calling task.
pub(crate) fn now() -> [u64; 2] {
    [nanos(Clock::Monotonic), nanos(Clock::Thread)]
}

/// Nanoseconds of CPU time of the process.
pub(crate) fn cpu_of_process() -> u64 {
    nanos(Clock::Process)
}

/// Begins to listen.
pub(crate) fn attach() {
    ON.store(true, Relaxed);
    trace::attach(probe);
}

fn probe(stage: Option<Stage>) {
    TASK.with(|task| match stage {
        Some(stage) => {
            match stage {
                Stage::Fault(page) | Stage::Late(page) => {
                    task.serves.set(Watch::on(page.0, time()))
                }
                Stage::Install => {
                    if let Some(watch) = task.serves.get() {
                        watch.installs(time());
                    }
                }
                _ => {}
            }
            task.change(Some(Part::of(stage)));
        }
        None => {
            task.change(None);
            if task.depth.get() == 0 {
                task.serves.set(None);
            }
        }
    });
}

/// Runs `work` as a part, if anybody listens.
pub(crate) fn within<T>(part: Part, work: impl FnOnce() -> T) -> T {
    if !ON.load(Relaxed) {
        return work();
    }
    TASK.with(|task| task.change(Some(part)));
    let result = work();
    TASK.with(|task| task.change(None));
    result
}

/// From here on the innermost part is another.
pub(crate) fn turn_to(part: Part) {
    if !ON.load(Relaxed) {
        return;
    }
    TASK.with(|task| {
        task.change(None);
        task.change(Some(part));
    });
}

impl Task {
    /// Begins a part, or ends the last.
    fn change(&self, begin: Option<Part>) {
        let (depth, mut stack) = (self.depth.get(), self.stack.get());
        let (then, mut now) = (self.last.get(), self.is_timed().then(now));
        if depth > 0 {
            add(&self.block.changes, 1);
        }
        match (then, now) {
            (Some(then), Some(now)) if depth > 0 => {
                let sums = &self.block.parts[stack[(depth - 1).min(DEEPEST - 1)] as usize];
                add(&sums[1], now[0] - then[0]);
                let cpu = now[1] - then[1];
                add(&sums[2], if cpu < STALL { cpu } else { 0 });
                add(&sums[3], 1);
            }
            (None, Some(first)) => {
                // The first of a row: how long does it take?
                let second = self::now();
                add(&self.block.cost[0], 1);
                add(&self.block.cost[1], second[1] - first[1]);
                now = Some(second);
            }
            _ => {}
        }
        self.last.set(now);
        match begin {
            Some(part) => {
                if let Some(place) = stack.get_mut(depth) {
                    *place = part;
                }
                self.stack.set(stack);
                self.depth.set(depth + 1);
                add(&self.block.parts[part as usize][0], 1);
            }
            None => self.depth.set(depth.saturating_sub(1)),
        }
    }

    /// Whether this change is.
    fn is_timed(&self) -> bool {
        let is = self.last.get().is_some();
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            return is;
        }
        // Xorshift.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        self.random.set(random);
        self.left.set(match is {
            true => PAUSE + random % PAUSE,
            false => TIMED,
        });
        !is
    }
}

/// What all parts have come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    /// As in [`Block`].
    parts: [[u64; 4]; Part::ALL.len()],
    changes: u64,
    cost: [u64; 2],
}

impl Sums {
    /// Of all tasks until now.
    pub fn now() -> Sums {
        Self::of(&BLOCKS.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn of(all: &[&Block]) -> Sums {
        let sum = |of: &dyn Fn(&Block) -> &AtomicU64| -> u64 {
            all.iter().map(|b| of(b).load(Relaxed)).sum()
        };
        Sums {
            parts: Part::ALL
                .map(|part| [0, 1, 2, 3].map(|i| sum(&|block| &block.parts[part as usize][i]))),
            changes: sum(&|block| &block.changes),
            cost: [0, 1].map(|i| sum(&|block| &block.cost[i])),
        }
    }

    /// What was added since `before`.
    pub fn since(&self, before: &Sums) -> Sums {
        let less = |after: u64, before: u64| after.saturating_sub(before);
        let mut sums = *self;
        for (part, before) in sums.parts.iter_mut().zip(&before.parts) {
            *part = [0, 1, 2, 3].map(|i| less(part[i], before[i]));
        }
        sums.changes = less(self.changes, before.changes);
        sums.cost = [0, 1].map(|i| less(self.cost[i], before.cost[i]));
        sums
    }

    fn timed(&self) -> u64 {
        self.parts.iter().map(|part| part[3]).sum()
    }

    /// CPU time that reading the clocks once takes, in nanoseconds.
    pub fn cost(&self) -> u64 {
        self.cost[1] / self.cost[0].max(1)
    }

    /// CPU time that reading the clocks took, in nanoseconds.
    pub fn clocks(&self) -> u64 {
        (self.timed() + 2 * self.cost[0]) * self.cost()
    }

    /// Each part, those changes included that were not timed.
    pub fn parts(&self) -> [Sum; Part::ALL.len()] {
        let timed = self.timed().max(1);
        let whole =
            |ns: u64| u128::from(ns) * u128::from(self.changes.max(timed)) / u128::from(timed);
        self.parts.map(|[calls, wall, cpu, times]| {
            let clocks = times * self.cost();
            Sum {
                calls,
                wall: whole(wall.saturating_sub(clocks)) as u64,
                cpu: whole(cpu.saturating_sub(clocks)) as u64,
            }
        })
    }
}

/// Most threads whose faults are followed.
pub(crate) const WATCHES: usize = 64;

/// A thread that is about to touch a page, for who serves the fault.
pub(crate) struct Watch {
    page: AtomicU64,
    read: AtomicU64,
    installs: AtomicU64,
}

static ALL: [Watch; WATCHES] = [const {
    Watch {
        page: AtomicU64::new(u64::MAX),
        read: AtomicU64::new(0),
        installs: AtomicU64::new(0),
    }
}; WATCHES];

impl Watch {
    /// That of a thread by its number, below [`WATCHES`].
    pub fn of(thread: usize) -> &'static Watch {
        &ALL[thread % WATCHES]
    }

    /// The thread is about to touch this page.
    pub fn begin(&self, page: u64) {
        self.read.store(0, Relaxed);
        self.installs.store(0, Relaxed);
        self.page.store(page, Release);
    }

    /// When somebody began to serve the fault, and when to install the page, in nanoseconds. None:
    /// nobody served one, so there was none.
    pub fn end(&self) -> Option<[u64; 2]> {
        self.page.store(u64::MAX, Relaxed);
        let read = self.read.load(Acquire);
        let installs = self.installs.load(Acquire);
        (read > 0).then_some([read, installs.max(read)])
    }

    /// Who serves a fault on this page from `now` on looks whose it is.
    fn on(page: u64, now: u64) -> Option<&'static Watch> {
        let watch = ALL.iter().find(|w| w.page.load(Acquire) == page)?;
        // Who was handed it later is not the first.
        let _ = watch.read.compare_exchange(0, now, Release, Relaxed);
        Some(watch)
    }

    fn installs(&self, now: u64) {
        let _ = self.installs.compare_exchange(0, now, Release, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// What of `work`, done many times, falls to each part.
    fn falls_to(times: usize, work: impl Fn() + Sync) -> [Sum; Part::ALL.len()] {
        attach();
        // A thread of its own: no other test's parts are in its block.
        let (before, after) = std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                let block = TASK.with(|task| task.block);
                let sums = || Sums::of(&[block]);
                let before = sums();
                (0..times).for_each(|_| work());
                (before, sums())
            });
            one.join().expect("no panic")
        });
        after.since(&before).parts()
    }

    #[test]
    fn each_moment_belongs_to_the_innermost_part() {
        const TIMES: usize = 4000;
        let rest = Duration::from_micros(100);
        let busy = || {
            let begun = Instant::now();
            while begun.elapsed() < rest {}
        };
        let sums = falls_to(TIMES, || {
            within(Part::Pick, || {
                within(Part::Unmap, || std::thread::sleep(rest));
                busy();
            });
        });
        let [outer, inner] = [sums[Part::Pick as usize], sums[Part::Unmap as usize]];
        assert_eq!((inner.calls, outer.calls), (TIMES as u64, TIMES as u64));
        // What was not timed is in it, give or take a third.
        let least = TIMES as u64 * rest.as_nanos() as u64 * 2 / 3;
        assert!(inner.wall >= least && outer.wall >= least, "{sums:?}");
        // Sleeping is no CPU time, and no time of the part around it.
        assert!(
            inner.cpu < inner.wall / 2 && outer.cpu > least / 2,
            "{sums:?}"
        );
        assert!(outer.wall < 6 * least, "{sums:?}");
    }

    #[test]
    fn what_a_host_that_stops_takes_is_no_part_s() {
        let busy = || {
            let begun = now()[1];
            while now()[1] < begun + 2 * STALL {}
        };
        let sums = falls_to(50, || within(Part::Pick, busy));
        let part = sums[Part::Pick as usize];
        assert!(
            part.wall > 2 * STALL && part.cpu < STALL,
            "each was as long as a stall: {sums:?}"
        );
    }

    #[test]
    fn a_part_that_turns_into_another_ends() {
        let sums = falls_to(10, || within(Part::Compress, || turn_to(Part::Keep)));
        let calls = [Part::Compress, Part::Keep].map(|part| sums[part as usize].calls);
        assert_eq!(calls, [10, 10]);
    }

    #[test]
    fn who_serves_a_fault_is_seen_by_who_waits_for_it() {
        let watch = Watch::of(WATCHES - 1);
        watch.begin(77);
        assert!(Watch::on(78, 5).is_none());
        let found = Watch::on(77, 5).expect("watched");
        found.installs(9);
        // Who was handed the fault comes later.
        Watch::on(77, 11).expect("watched").installs(12);
        assert_eq!(watch.end(), Some([5, 9]));
        watch.begin(79);
        assert_eq!(watch.end(), None);
        assert!(Watch::on(79, 1).is_none());
    }
}
