//! A working set that is larger than memory: how fast it is used where pages come and go all the
//! time, at equal RAM on both sides.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::thread;

use crate::host::cgroup::Cgroup;
use crate::host::{Guard, is_root, mem_available, zram};
use crate::model::ModelSide;
use crate::program::fill::progress;
use crate::program::walk::{LENGTHS, Pattern, RATIO};
use crate::size::human;
use crate::{LabError, Side};

mod equal;
mod measure;
mod plot;
mod replace;
mod report;
mod wanted;

use equal::Found;
pub use measure::Run;
use measure::{Bench, REPEATS};
pub use replace::{Replacement, Trace};
pub use report::{OvercommitReport, OvercommitRow, Ratio};
pub use wanted::Target;

/// The smallest working set: in less memory what the program needs beside it counts.
const SMALLEST: u64 = 32 << 20;

/// What the program does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
        write!(f, "{}, threads {threads}, record {record}", pattern.name())
    }
}

/// What to run.
pub struct OvercommitOptions<'a> {
    /// Bytes of the working set; a multiple of 1 MiB.
    pub size: u64,
    /// Memory, as a part of the working set.
    pub ratio: f64,
    /// In which orders records are accessed.
    pub patterns: Vec<Pattern>,
    /// By how many threads; empty: 1, 2 and as many as there are CPUs.
    pub threads: Vec<usize>,
    /// Bytes of the records.
    pub records: Vec<usize>,
    /// The sides. Their runs alternate in this order.
    pub sides: Vec<Side>,
    /// Timed runs of each case on each side.
    pub runs: usize,
    /// How long the accesses of a run are counted, in seconds; a fourth of it before that they
    /// are not.
    pub seconds: f64,
    /// The model, if its side is asked for.
    pub model: Option<&'a mut dyn ModelSide>,
    /// The `deckle` binary, for the live side.
    pub deckle: PathBuf,
    /// Command in front of a workload's name and arguments, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
}

impl OvercommitOptions<'_> {
    /// RAM that a side may use, in bytes.
    fn memory(&self) -> u64 {
        (self.size as f64 * self.ratio) as u64 >> 20 << 20
    }

    /// What can be resident, and an eighth more: what a loop covers, in bytes.
    fn reach(&self) -> u64 {
        let resident = equal::resident(self.size, self.memory());
        (resident + resident / 8).clamp(1 << 20, self.size)
    }

    /// The sides that have a speed.
    fn timed(&self) -> Vec<Side> {
        let timed = self.sides.iter().filter(|side| **side != Side::Model);
        timed.copied().collect()
    }

    fn cases(&self) -> Vec<Case> {
        let cpus = thread::available_parallelism().map_or(1, |n| n.get());
        let default = vec![1, 2, cpus];
        let threads = match self.threads.is_empty() {
            true => &default,
            false => &self.threads,
        };
        let threads: BTreeSet<usize> = threads.iter().copied().collect();
        let mut cases = Vec::new();
        for &pattern in &self.patterns {
            for &threads in &threads {
                for &record in &self.records {
                    cases.push(Case {
                        pattern,
                        threads,
                        record,
                    });
                }
            }
        }
        cases
    }
}

/// Runs the experiment.
///
/// # Errors
/// Options that make no sense, a side that cannot be run here, a program that finds a wrong byte or
/// fails, settings that could not be given back. A row all of whose runs were killed is in the
/// report, marked as failed.
pub fn run(mut options: OvercommitOptions<'_>) -> Result<OvercommitReport, LabError> {
    check(&options)?;
    let mut model = options.model.take();
    let options = &options;
    let kernel = options.sides.contains(&Side::Kernel);
    // As root, live runs are in a cgroup too: it counts the CPU time of the whole tree.
    // The model alone touches nothing of the host.
    let mut guard = match !options.timed().is_empty() && (kernel || is_root()) {
        true => Some(Guard::new(&options.program_cmd)?),
        false => None,
    };
    // Before the cgroup, so that it is given back after that, when what ran there is gone: of a
    // program at its limit swapoff could not bring the pages back.
    if let Some(guard) = guard.as_mut().filter(|_| kernel) {
        let size = options.size + options.size / 4 + (64 << 20);
        zram::swap_on(guard, size as usize)?;
    }
    let cgroup = Cgroup::if_any(guard.as_mut(), "overcommit", kernel)?;
    let cases = options.cases();
    let steps =
        cases.len() * options.timed().len() * options.runs + cases.len() * usize::from(kernel);
    let bar = progress(steps as u64, "overcommit");
    let mut report = OvercommitReport::new(options);
    let mut limit = equal::resident(options.size, options.memory());
    for case in cases {
        let bench = Bench {
            options,
            case,
            cgroup: cgroup.as_ref(),
        };
        let mut rows: Vec<Tally> = options.timed().into_iter().map(Tally::new).collect();
        for row in &mut rows {
            row.limit = options.memory();
            if row.side == Side::Kernel {
                match bench.find_limit(limit, &mut row.killed)? {
                    Found::Limit(found) => limit = found,
                    Found::Killed(at) => row.fail(at),
                }
                row.limit = limit;
                bar.inc(1);
            }
        }
        for _ in 0..options.runs {
            for row in rows.iter_mut().filter(|row| row.error.is_none()) {
                match bench.timed_run(row.side, row.limit, &mut row.killed)? {
                    Some(run) => row.runs.push(run),
                    None => row.fail(row.limit),
                }
                guard.as_ref().map_or(Ok(()), Guard::undisturbed)?;
                bar.inc(1);
            }
        }
        report
            .rows
            .extend(rows.into_iter().map(|row| row.row(case)));
    }
    bar.finish_and_clear();
    guard.map_or(Ok(()), Guard::finish)?;
    if let (Some(model), true) = (&mut model, options.sides.contains(&Side::Model)) {
        report.replacement = replacement(options, *model)?;
    }
    Ok(report)
}

/// The model's part: one thread, since with more each has a part of the memory for itself.
fn replacement(
    options: &OvercommitOptions<'_>,
    model: &mut dyn ModelSide,
) -> Result<Vec<Replacement>, LabError> {
    let one = options
        .cases()
        .into_iter()
        .map(|case| Case { threads: 1, ..case });
    let cases: BTreeSet<Case> = one.collect();
    let bar = progress(cases.len() as u64, "overcommit on the model");
    let mut all = Vec::new();
    for case in cases {
        let (size, memory) = (options.size, options.memory());
        let trace = model.overcommit(case, size, memory, options.reach())?;
        all.push(Replacement::of(case, &trace));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(all)
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
        let limit = human(limit);
        let times = REPEATS + 1;
        self.error = Some(format!(
            "killed {times} times in a row at a limit of {limit}"
        ));
    }

    fn row(self, case: Case) -> OvercommitRow {
        OvercommitRow::new(self.side, case, &self.runs, self.killed, self.error)
    }
}

fn check(options: &OvercommitOptions<'_>) -> Result<(), LabError> {
    let bad = |why: String| Err(LabError::Option(why));
    if options.sides.contains(&Side::Model) && options.model.is_none() {
        return bad("--on model: there is no model in this program".into());
    }
    if options.size < SMALLEST || !options.size.is_multiple_of(1 << 20) {
        let least = human(SMALLEST);
        return bad(format!(
            "size of {} bytes: must be a multiple of 1 MiB, and {least} at least",
            options.size
        ));
    }
    // Compressed whole it takes a third, and something must be left to work with.
    let least = 1.0 / RATIO + 0.05;
    if !(least..=1.0).contains(&options.ratio) {
        // Rounded up, or the value that is told were itself refused.
        let told = (least * 100.0).ceil() / 100.0;
        return bad(format!(
            "--ratio {}: must be from {told}, below which content of {RATIO}:1 does not fit, to 1",
            options.ratio
        ));
    }
    if !(0.1..=600.0).contains(&options.seconds) {
        return bad(format!("--seconds {}: must be 0.1 to 600", options.seconds));
    }
    let most = (options.size >> 20).min(1024) as usize;
    if let Some(threads) = options.threads.iter().find(|n| !(1..=most).contains(n)) {
        return bad(format!("--threads {threads}: must be 1 to {most}"));
    }
    if let Some(record) = options.records.iter().find(|n| !LENGTHS.contains(n)) {
        let [page, small] = LENGTHS;
        return bad(format!("--record {record}: must be {page} or {small}"));
    }
    // All of it is in memory, compressed or not, and a little more while the host warms.
    let have = mem_available()?;
    if options.size.saturating_add(options.size / 4) > have {
        return bad(format!(
            "--size: {} do not fit into memory, of which {} can be had: give a smaller size",
            human(options.size),
            human(have)
        ));
    }
    if options.runs == 0
        || options.patterns.is_empty()
        || options.records.is_empty()
        || options.sides.is_empty()
    {
        return bad("nothing to run: at least one run, pattern, record and side are needed".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> OvercommitOptions<'static> {
        OvercommitOptions {
            size: 64 << 20,
            ratio: 0.5,
            patterns: vec![Pattern::Uniform],
            threads: Vec::new(),
            records: LENGTHS.to_vec(),
            sides: vec![Side::Live],
            runs: 1,
            seconds: 1.0,
            model: None,
            deckle: PathBuf::new(),
            program_cmd: Vec::new(),
        }
    }

    #[test]
    fn r150_each_number_of_threads_is_run_once() {
        let cpus = thread::available_parallelism().map_or(1, |n| n.get());
        let numbers = BTreeSet::from([1, 2, cpus]).len();
        assert_eq!(options().cases().len(), numbers * LENGTHS.len());
        let twice = OvercommitOptions {
            threads: vec![3, 3],
            ..options()
        };
        assert_eq!(twice.cases().len(), LENGTHS.len());
    }

    #[test]
    fn r150_memory_and_reach_follow_size_and_ratio() {
        let options = options();
        assert_eq!(options.memory(), 32 << 20);
        // 16 of 64 MiB fit beside 16 compressed ones.
        assert_eq!(options.reach() >> 20, 18);
    }

    #[test]
    fn r150_overcommit_refuses_what_makes_no_sense() {
        let base = options;
        let bad = [
            (
                OvercommitOptions {
                    sides: vec![Side::Live, Side::Model],
                    ..base()
                },
                "--on model",
            ),
            (
                OvercommitOptions {
                    ratio: 0.34,
                    ..base()
                },
                "--ratio 0.34",
            ),
            (
                OvercommitOptions {
                    ratio: f64::NAN,
                    ..base()
                },
                "--ratio",
            ),
            (
                OvercommitOptions {
                    size: 31 << 20,
                    ..base()
                },
                "size",
            ),
            (
                OvercommitOptions {
                    size: 1 << 45,
                    ..base()
                },
                "--size",
            ),
            (
                OvercommitOptions {
                    threads: vec![0],
                    ..base()
                },
                "--threads 0",
            ),
            (
                OvercommitOptions {
                    records: vec![100],
                    ..base()
                },
                "--record 100",
            ),
            (
                OvercommitOptions {
                    seconds: f64::INFINITY,
                    ..base()
                },
                "--seconds",
            ),
            (OvercommitOptions { runs: 0, ..base() }, "nothing to run"),
        ];
        for (options, says) in bad {
            match run(options) {
                Err(LabError::Option(why)) => assert!(why.contains(says), "{says}: {why}"),
                other => panic!("{says}: {other:?}"),
            }
        }
    }
}
