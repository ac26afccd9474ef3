//! The S004 experiment: how much memory can be had as large blocks while others take small
//! ones, with page capture and without. `docs/capture-experiment.md` says exactly what is done
//! and what must come of it; it was fixed before capture existed.
//!
//! - `stage`: the zone as it is found, and the simulated CPUs.
//! - `load`: CPUs that take single pages, the two ways of reclaim, and their pace.
//! - `stream`: one CPU asks for blocks until no more are to be had.
//! - `faults`: huge page faults beside a cache.
//! - `report`, `plot`: what is said about it.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use deckle_mm::MAX_ORDER;
use deckle_mm::frame::CapturePolicy;
use serde::Serialize;

use crate::LabError;
use crate::host;
use crate::program::fill::progress;
use crate::size::{self, PAGE};

mod faults;
mod load;
mod plot;
mod report;
mod stage;
mod stream;

use faults::Faults;
pub use report::{CaptureReport, CaptureRow, FaultRow, Gain};
use stream::Stream;

/// Quarters of a page taken for each page reclaimed: 0.25, 1 and 4 pages.
const RATES: [u64; 3] = [1, 4, 16];
/// Seeds of the second shape, at most.
const FAULT_SEEDS: u64 = 5;
/// Fewest blocks in a zone that the shares can be dealt to.
const FEWEST_BLOCKS: u64 = 24;
/// Most CPUs that take pages.
const MOST_THREADS: usize = 64;
/// Bytes of this process for each page of the zone: metadata, and lists while it is laid out.
const PER_PAGE: u64 = 64;

/// Whether pages are captured, and with which parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// Not at all.
    Off,
    /// As designed.
    On,
    /// Without merging with free buddies.
    NoAbsorption,
    /// Without what others free.
    NoOthers,
}

impl Variant {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Off, Self::On, Self::NoAbsorption, Self::NoOthers];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::NoAbsorption => "no-absorption",
            Self::NoOthers => "no-others",
        }
    }

    /// Whether anything is captured.
    pub const fn captures(self) -> bool {
        !matches!(self, Self::Off)
    }

    const fn policy(self) -> CapturePolicy {
        match self {
            Self::Off => CapturePolicy::OFF,
            Self::On => CapturePolicy::ON,
            Self::NoAbsorption => CapturePolicy {
                absorb_free: false,
                ..CapturePolicy::ON
            },
            Self::NoOthers => CapturePolicy {
                from_others: false,
                ..CapturePolicy::ON
            },
        }
    }
}

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureOptions {
    /// Numbers of CPUs that take single pages; of the second shape, that fault.
    pub threads: Vec<usize>,
    /// Bytes of the zone; a multiple of the block that is asked for.
    pub memory: u64,
    /// Order asked for, 1 to 10.
    pub order: u8,
    /// With capture, without, or both, and the ablations.
    pub variants: Vec<Variant>,
    /// The first seed.
    pub seed: u64,
    /// How many seeds.
    pub seeds: u64,
}

impl Default for CaptureOptions {
    /// The experiment as it was fixed.
    fn default() -> Self {
        Self {
            threads: vec![4],
            memory: 1 << 30,
            order: 9,
            variants: Variant::ALL.to_vec(),
            seed: 1,
            seeds: 20,
        }
    }
}

impl CaptureOptions {
    fn pages(&self) -> u64 {
        self.memory / PAGE as u64
    }

    /// Whether what must hold of the fixed experiment can be judged: the same memory, order
    /// and load, at least as many seeds, with and without capture.
    fn is_the_fixed_one(&self) -> bool {
        let fixed = Self::default();
        let has = |v| self.variants.contains(&v);
        self.threads == fixed.threads
            && (self.memory, self.order) == (fixed.memory, fixed.order)
            && self.seeds >= fixed.seeds
            && has(Variant::Off)
            && has(Variant::On)
    }

    fn check(&self) -> Result<(), LabError> {
        let bad = |why: String| Err(LabError::Option(why));
        if !(1..=MAX_ORDER).contains(&self.order) {
            return bad(format!(
                "--order {}: blocks have orders 1 to {MAX_ORDER}, and pages are captured for \
                 orders above 3",
                self.order
            ));
        }
        let block = (PAGE as u64) << self.order;
        let least = FEWEST_BLOCKS * block;
        if self.memory < least {
            return bad(format!(
                "--memory: {} are too little for blocks of {}: at least {}",
                size::human(self.memory),
                size::human(block),
                size::human(least)
            ));
        }
        if !self.memory.is_multiple_of(block) {
            return bad(format!(
                "--memory: must be a multiple of the block, {}",
                size::human(block)
            ));
        }
        let (need, have) = (
            self.pages().saturating_mul(PER_PAGE),
            host::mem_available()?,
        );
        if self.pages() >= u64::from(u32::MAX) || need > have {
            return bad(format!(
                "--memory: a zone of {} needs {} for its metadata, and {} are available on this \
                 host",
                size::human(self.memory),
                size::human(need),
                size::human(have)
            ));
        }
        if self.threads.is_empty() || self.variants.is_empty() || self.seeds == 0 {
            return bad("nothing to run: at least one thread, variant and seed are needed".into());
        }
        if let Some(n) = self
            .threads
            .iter()
            .find(|n| !(1..=MOST_THREADS).contains(*n))
        {
            return bad(format!(
                "--threads {n}: from 1 to {MOST_THREADS} are possible"
            ));
        }
        twice("--threads", &self.threads, |n| n.to_string())?;
        twice("--capture", &self.variants, |v| v.name().to_owned())
    }
}

fn twice<T: PartialEq>(
    option: &str,
    all: &[T],
    name: impl Fn(&T) -> String,
) -> Result<(), LabError> {
    match (1..all.len()).find(|&i| all[..i].contains(&all[i])) {
        Some(i) => Err(LabError::Option(format!(
            "{option}: {} is named twice",
            name(&all[i])
        ))),
        None => Ok(()),
    }
}

/// One run of one shape.
enum Job {
    Stream(Variant, Stream),
    Faults(Variant, Faults),
}

/// What it came to.
enum Done {
    Stream(Variant, Stream, stream::Outcome),
    Faults(Variant, Faults, faults::Outcome),
}

/// Runs the experiment, as many runs at once as there are CPUs.
///
/// # Errors
/// Options that make no sense, and a zone whose books are wrong after a run.
pub fn run(options: &CaptureOptions) -> Result<CaptureReport, LabError> {
    options.check()?;
    let jobs = jobs(options);
    let bar = progress(jobs.len() as u64, "capture");
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<Done, LabError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed))
                    && let (Some(job), Some(slot)) = (jobs.get(i), done.get(i))
                {
                    let result = match *job {
                        Job::Stream(v, s) => s.run().map(|o| Done::Stream(v, s, o)),
                        Job::Faults(v, f) => f.run().map(|o| Done::Faults(v, f, o)),
                    };
                    if let Ok(mut slot) = slot.lock() {
                        *slot = Some(result);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let (mut streams, mut faults) = (Vec::new(), Vec::new());
    for slot in done {
        match slot.into_inner().ok().flatten() {
            Some(Ok(Done::Stream(v, s, o))) => streams.push((v, s, o)),
            Some(Ok(Done::Faults(v, f, o))) => faults.push((v, f, o)),
            Some(Err(e)) => return Err(e),
            None => return Err(LabError::Model("a run ended without a result".into())),
        }
    }
    Ok(CaptureReport::new(options, &streams, &faults))
}

/// All runs, the longest kind first.
fn jobs(options: &CaptureOptions) -> Vec<Job> {
    let (pages, order) = (options.pages(), options.order);
    let seeds = |n: u64| (0..n).map(|i| options.seed.wrapping_add(i));
    let mut jobs = Vec::new();
    for &quarters in RATES.iter().rev() {
        for &threads in &options.threads {
            for &variant in &options.variants {
                jobs.extend(seeds(options.seeds).map(|seed| {
                    let policy = variant.policy();
                    Job::Stream(
                        variant,
                        Stream {
                            threads,
                            pages,
                            order,
                            quarters,
                            policy,
                            seed,
                        },
                    )
                }));
            }
        }
    }
    let whole = [Variant::Off, Variant::On];
    for &threads in &options.threads {
        for variant in whole.into_iter().filter(|v| options.variants.contains(v)) {
            jobs.extend(seeds(options.seeds.min(FAULT_SEEDS)).map(|seed| {
                let policy = variant.policy();
                Job::Faults(
                    variant,
                    Faults {
                        threads,
                        pages,
                        order,
                        policy,
                        seed,
                    },
                )
            }));
        }
    }
    jobs
}
