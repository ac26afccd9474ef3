//! The S004 experiment: how much memory can be had as large blocks while others take small
//! ones, with page capture and without. `docs/capture-experiment.md` says exactly what is done
//! and what must come of it; it was fixed before capture existed.
//!
//! - `stage`: the zone as it is found, and the simulated CPUs.
//! - `load`: CPUs that take single pages, the two ways of reclaim, and their pace.
//! - `stream`: one CPU asks for blocks until no more are to be had.
//! - `faults`: huge page faults beside a cache.
//! - `builds`: a build beside nobody, with capture and without.
//! - `report`: what is said about it.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use deckle_mm::MAX_ORDER;
use deckle_mm::frame::CapturePolicy;

use crate::experiment::{Experiment, Lab, Tell, bad, once};
use crate::host;
use crate::size::{self, PAGE, human};
use crate::steps::steps;
use crate::{LabError, model};

mod builds;
mod faults;
mod load;
mod report;
mod stage;
mod stream;

pub use report::{CaptureRow, FaultRow, Gain, More};

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

named! {
    /// Whether pages are captured, and with which parts.
    pub enum Variant {
        /// Not at all.
        Off = "off",
        /// As designed.
        On = "on",
        /// Without merging with free buddies.
        NoAbsorption = "no-absorption",
        /// Without what others free.
        NoOthers = "no-others",
    }
}

impl Variant {
    /// Whether anything is captured.
    pub const fn captures(self) -> bool {
        !matches!(self, Self::Off)
    }

    fn policy(self) -> CapturePolicy {
        let mut policy = if self.captures() {
            CapturePolicy::ON
        } else {
            CapturePolicy::OFF
        };
        policy.absorb_free &= self != Self::NoAbsorption;
        policy.from_others &= self != Self::NoOthers;
        policy
    }
}

/// The experiment; by default as it was fixed.
#[derive(Clone, PartialEq, Eq, Debug, clap::Args)]
pub struct Capture {
    /// CPUs that take single pages (1 to 64), several separated by commas; of the second shape,
    /// that fault.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4")]
    pub threads: Vec<usize>,
    /// Size of the zone, a multiple of the block that is asked for.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    #[arg(value_parser = |text: &str| size::parse(text).map(|bytes| bytes as u64))]
    pub memory: u64,
    /// Order of the blocks that are asked for, 1 to 10.
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub order: u8,
    /// With capture, without, or with a part of it left out, separated by commas.
    #[arg(long = "capture", value_delimiter = ',')]
    #[arg(default_values_t = Variant::ALL)]
    pub variants: Vec<Variant>,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How many seeds, one after the other.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
}

impl Default for Capture {
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

impl Experiment for Capture {
    /// Does as many runs at once as there are CPUs. A zone whose books are wrong after one is an
    /// error.
    fn measure(&self, _: &Lab) -> Result<(Vec<CaptureRow>, More), LabError> {
        self.check()?;
        let jobs = self.jobs();
        let bar = steps(jobs.len() as u64, Self::NAME);
        let next = AtomicUsize::new(0);
        let done: Vec<Mutex<Option<Result<Outcome, LabError>>>> =
            jobs.iter().map(|_| Mutex::new(None)).collect();
        let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..workers.min(jobs.len()) {
                scope.spawn(|| {
                    while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed))
                        && let (Some(job), Some(slot)) = (jobs.get(i), done.get(i))
                    {
                        let result = job.run();
                        if let Ok(mut slot) = slot.lock() {
                            *slot = Some(result);
                        }
                        bar.inc(1);
                    }
                });
            }
        });
        let mut all = Vec::new();
        for (job, slot) in jobs.into_iter().zip(done) {
            let none = || Err(LabError::Model("a run ended without a result".into()));
            all.push((job, slot.into_inner().ok().flatten().unwrap_or_else(none)?));
        }
        let (rows, mut more) = report::rows(self, &all);
        if self.variants.contains(&Variant::On) && self.variants.contains(&Variant::Off) {
            more.builds = model::build::run()?;
        }
        bar.finish_and_clear();
        Ok((rows, more))
    }
}

impl Capture {
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
        let (order, zone) = (self.order, human(self.memory));
        if !(1..=MAX_ORDER).contains(&order) {
            return bad(format!(
                "--order {order}: blocks have orders 1 to {MAX_ORDER}, and pages are captured for \
                 orders above 3"
            ));
        }
        let block = (PAGE as u64) << order;
        let (least, named) = (FEWEST_BLOCKS * block, human(block));
        if self.memory < least {
            let least = human(least);
            return bad(format!(
                "--memory: {zone} are too little for blocks of {named}: at least {least}"
            ));
        }
        if !self.memory.is_multiple_of(block) {
            return bad(format!(
                "--memory: must be a multiple of the block, {named}"
            ));
        }
        let (need, have) = (
            self.pages().saturating_mul(PER_PAGE),
            host::mem_available()?,
        );
        if self.pages() >= u64::from(u32::MAX) || need > have {
            let (need, have) = (human(need), human(have));
            return bad(format!(
                "--memory: a zone of {zone} needs {need} for its metadata, and {have} are \
                 available on this host"
            ));
        }
        if self.threads.is_empty() || self.variants.is_empty() || self.seeds == 0 {
            return bad("nothing to run: at least one thread, variant and seed are needed");
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
        once("--threads", &self.threads)?;
        once("--capture", &self.variants)
    }

    /// All runs, the longest kind first.
    fn jobs(&self) -> Vec<Job> {
        let seeds = |n: u64| (0..n).map(|i| self.seed.wrapping_add(i));
        let job = |threads, variant, quarters, seed| Job {
            variant,
            threads,
            pages: self.pages(),
            order: self.order,
            quarters,
            seed,
        };
        let mut jobs = Vec::new();
        for &quarters in RATES.iter().rev() {
            for &threads in &self.threads {
                for &variant in &self.variants {
                    let quarters = Some(quarters);
                    jobs.extend(seeds(self.seeds).map(|s| job(threads, variant, quarters, s)));
                }
            }
        }
        let whole = [Variant::Off, Variant::On];
        for &threads in &self.threads {
            for variant in whole.into_iter().filter(|v| self.variants.contains(v)) {
                let seeds = seeds(self.seeds.min(FAULT_SEEDS));
                jobs.extend(seeds.map(|s| job(threads, variant, None, s)));
            }
        }
        jobs
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Job {
    variant: Variant,
    /// CPUs that take single pages; of the second shape, that fault.
    threads: usize,
    pages: u64,
    order: u8,
    /// Of the stream, quarters of a page that they take for each page reclaimed; none of the
    /// second shape.
    quarters: Option<u64>,
    seed: u64,
}

/// What came of it.
#[derive(Clone, Default, Debug)]
struct Outcome {
    /// Blocks obtained, and those of them that came from the capture list.
    blocks: u64,
    from_capture: u64,
    /// Percent of the memory that they are; of the second shape, of the blocks faulted.
    success_pct: f64,
    /// Steps until each request, or each fault of a block, was served.
    latency: Vec<u64>,
    /// How whole the free memory was after each request, 0 to 1, averaged.
    fragmentation: f64,
    /// Pages reclaimed by who asks for blocks.
    reclaimed: u64,
    capture: deckle_mm::frame::CaptureStats,
    /// Steps and percent of memory obtained, after each request.
    progress: Vec<(u64, f64)>,
}

impl Job {
    fn run(&self) -> Result<Outcome, LabError> {
        match self.quarters {
            Some(quarters) => stream::run(self, quarters),
            None => faults::run(self),
        }
    }

    /// The zone of this run, with so many CPUs beside those that take pages.
    fn stage(&self, others: usize) -> Result<stage::Stage, LabError> {
        let stage = stage::Stage::new(self.threads + others, self.pages, self.order, self.seed)?;
        stage
            .zone()
            .set_capture(&stage.machine, self.variant.policy());
        Ok(stage)
    }
}
