//! A working set that is larger than memory: how fast it is used where pages come and go all the
//! time, at equal RAM on both sides.

use std::collections::BTreeSet;
use std::fmt;
use std::thread;

use serde::Serialize;

use crate::experiment::{Experiment, Lab, Tell, bad, runs, something};
use crate::host::thp;
use crate::machines::Machines;
use crate::program::walk::{LENGTHS, Pattern};
use crate::size::human;
use crate::steps::steps;
use crate::working_set::WorkingSet;
use crate::{LabError, Side, model};

mod equal;
mod measure;
mod replace;
mod report;
mod wanted;

use equal::Found;
pub use measure::Run;
use measure::{Bench, REPEATS};
pub use replace::{Replacement, Trace};
pub use report::{OvercommitRow, Ratio};

/// What the program does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Case {
    /// In which order records are accessed.
    pub pattern: Pattern,
    /// By how many threads.
    pub threads: usize,
    /// Bytes of a record.
    pub record: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pattern,
            threads,
            record,
        } = self;
        write!(f, "{pattern}, threads {threads}, record {record}")
    }
}

/// The experiment. Runs of the sides alternate.
#[derive(Clone, PartialEq, Debug, clap::Args)]
pub struct Overcommit {
    /// Where to run it, separated by commas. The model has no speed: it tells how often a page has
    /// to be read back, beside FIFO, LRU and MIN on the same accesses.
    #[arg(long = "on", value_delimiter = ',', default_value = "live,kernel")]
    pub sides: Vec<Side>,
    /// The working set.
    #[command(flatten)]
    pub set: WorkingSet,
    /// In which order it is accessed, separated by commas.
    #[arg(long = "pattern", value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Pattern::ALL)]
    pub patterns: Vec<Pattern>,
    /// By how many threads, several separated by commas. Default: 1, 2 and as many as CPUs.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Bytes of a record, 4096, 200 or both.
    #[arg(long = "record", value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = LENGTHS)]
    pub records: Vec<usize>,
    /// Runs of each row; the one in the middle counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = runs())]
    pub runs: u32,
}

/// What is reported beside the rows.
#[derive(Clone, PartialEq, Debug)]
pub struct More {
    /// `enabled` of the host's transparent huge pages, which the experiment leaves alone.
    pub thp: Option<String>,
    /// What was read back on the model, for each pattern and record.
    pub replacement: Vec<Replacement>,
}

/// What a target is about, with records of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Of {
    /// In which order records are accessed.
    pub pattern: Pattern,
    /// By how many threads.
    pub threads: usize,
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<10} threads {} ", self.pattern, self.threads)
    }
}

impl Experiment for Overcommit {
    /// A row all of whose runs were killed is in the report, marked as failed.
    fn measure(&self, lab: &Lab) -> Result<(Vec<OvercommitRow>, More), LabError> {
        self.check()?;
        let size = self.set.size;
        let swap = size + size / 4 + (64 << 20);
        // The model alone touches nothing of the host.
        let machines = Machines::new(lab, Self::NAME, &self.sides, Some(swap as usize))?;
        let cases = self.cases();
        let each = machines.sides.len() * self.runs as usize + usize::from(machines.kernel);
        let bar = steps((cases.len() * each) as u64, Self::NAME);
        let mut rows = Vec::new();
        let mut limit = equal::resident(size, self.set.memory());
        for case in cases {
            let bench = Bench {
                options: self,
                case,
                machines: &machines,
            };
            let mut tallies: Vec<Tally> = machines.sides.iter().map(|s| Tally::new(*s)).collect();
            for tally in &mut tallies {
                tally.limit = self.set.memory();
                if tally.side == Side::Kernel {
                    match bench.find_limit(limit, &mut tally.killed)? {
                        Found::Limit(found) => limit = found,
                        Found::Killed(at) => tally.fail(at),
                    }
                    tally.limit = limit;
                    bar.inc(1);
                }
            }
            for _ in 0..self.runs {
                for tally in tallies.iter_mut().filter(|tally| tally.error.is_none()) {
                    match bench.timed_run(tally.side, tally.limit, &mut tally.killed)? {
                        Some(run) => tally.runs.push(run),
                        None => tally.fail(tally.limit),
                    }
                    machines.undisturbed()?;
                    bar.inc(1);
                }
            }
            rows.extend(tallies.into_iter().map(|tally| tally.row(case)));
        }
        bar.finish_and_clear();
        machines.finish()?;
        let more = More {
            thp: thp::enabled(),
            replacement: self.replacement()?,
        };
        Ok((rows, more))
    }

    fn may_plot(&self) -> Result<(), LabError> {
        match self.sides[..] {
            [Side::Model] => {
                bad("--plot: the model has no speed to draw; add live or kernel to --on")
            }
            _ => Ok(()),
        }
    }
}

impl Overcommit {
    fn check(&self) -> Result<(), LabError> {
        self.set.check(&self.threads, 1024)?;
        if let Some(record) = self.records.iter().find(|n| !LENGTHS.contains(n)) {
            let [page, small] = LENGTHS;
            return bad(format!("--record {record}: must be {page} or {small}"));
        }
        let lists = [self.patterns.len(), self.records.len()];
        something(self.runs, &self.sides, &lists)
    }

    /// What can be resident, and an eighth more: what a loop covers, in bytes.
    fn reach(&self) -> u64 {
        let resident = equal::resident(self.set.size, self.set.memory());
        (resident + resident / 8).clamp(1 << 20, self.set.size)
    }

    fn cases(&self) -> Vec<Case> {
        let cpus = thread::available_parallelism().map_or(1, |n| n.get());
        let threads: BTreeSet<usize> = match self.threads.is_empty() {
            true => BTreeSet::from([1, 2, cpus]),
            false => self.threads.iter().copied().collect(),
        };
        let mut cases = Vec::new();
        for &pattern in &self.patterns {
            for &threads in &threads {
                cases.extend(self.records.iter().map(|&record| Case {
                    pattern,
                    threads,
                    record,
                }));
            }
        }
        cases
    }

    /// The model's part, if it is asked for: one thread, since with more each has a part of the
    /// memory for itself.
    fn replacement(&self) -> Result<Vec<Replacement>, LabError> {
        if !self.sides.contains(&Side::Model) {
            return Ok(Vec::new());
        }
        let one = self
            .cases()
            .into_iter()
            .map(|case| Case { threads: 1, ..case });
        let cases: BTreeSet<Case> = one.collect();
        let bar = steps(cases.len() as u64, "overcommit on the model");
        let mut all = Vec::new();
        for case in cases {
            let (size, memory) = (self.set.size, self.set.memory());
            let trace = model::replace::run(case, size, memory, self.reach())?;
            all.push(Replacement::of(case, &trace));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(all)
    }
}

/// Runs of one row.
struct Tally {
    side: Side,
    limit: u64,
    runs: Vec<Run>,
    /// Runs that were killed, those that looked for the limit too.
    killed: usize,
    error: Option<String>,
}

impl Tally {
    fn new(side: Side) -> Self {
        Self {
            side,
            limit: 0,
            runs: Vec::new(),
            killed: 0,
            error: None,
        }
    }

    fn fail(&mut self, limit: u64) {
        let (times, limit) = (REPEATS + 1, human(limit));
        let error = format!("killed {times} times in a row at a limit of {limit}");
        self.error = Some(error);
    }

    fn row(self, case: Case) -> OvercommitRow {
        OvercommitRow::new(self.side, case, &self.runs, self.killed, self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Overcommit {
        Overcommit {
            set: WorkingSet {
                size: 64 << 20,
                ratio: 0.5,
                seconds: 1.0,
            },
            patterns: vec![Pattern::Uniform],
            threads: Vec::new(),
            records: LENGTHS.to_vec(),
            sides: vec![Side::Live],
            runs: 1,
        }
    }

    #[test]
    fn r150_each_number_of_threads_is_run_once() {
        let cpus = thread::available_parallelism().map_or(1, |n| n.get());
        let numbers = BTreeSet::from([1, 2, cpus]).len();
        assert_eq!(options().cases().len(), numbers * LENGTHS.len());
        let twice = Overcommit {
            threads: vec![3, 3],
            ..options()
        };
        assert_eq!(twice.cases().len(), LENGTHS.len());
    }

    #[test]
    fn r150_memory_and_reach_follow_size_and_ratio() {
        let options = options();
        assert_eq!(options.set.memory(), 32 << 20);
        // 16 of 64 MiB fit beside 16 compressed ones.
        assert_eq!(options.reach() >> 20, 18);
    }

    #[test]
    fn r150_overcommit_refuses_what_makes_no_sense() {
        let refused = |change: fn(&mut Overcommit), says: &str| {
            let mut options = options();
            change(&mut options);
            match options.run(&Lab::default()) {
                Err(LabError::Option(why)) => assert!(why.contains(says), "{says}: {why}"),
                other => panic!("{says}: {other:?}"),
            }
        };
        refused(|o| o.sides.push(Side::Live), "named twice");
        refused(|o| o.set.ratio = 0.34, "--ratio 0.34");
        refused(|o| o.set.ratio = f64::NAN, "--ratio");
        refused(|o| o.set.size = 31 << 20, "size");
        refused(|o| o.set.size = 1 << 45, "--size");
        refused(|o| o.threads = vec![0], "--threads 0");
        refused(|o| o.records = vec![100], "--record 100");
        refused(|o| o.set.seconds = f64::INFINITY, "--seconds");
        refused(|o| o.runs = 0, "nothing to run");
    }
}
