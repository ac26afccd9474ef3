//! What a fault and an eviction cost, stage by stage, where memory is short.
//!
//! The pager is embedded in the lab's own program, with the loops, the store's sizes and the knobs
//! of `deckle run`: in a program under that nobody can listen, and the tasks are the same.

use std::ffi::OsString;
use std::time::Duration;

use crate::LabError;
use crate::child::{Running, warm};
use crate::figures::median;
use crate::host::mem_available;
use crate::program::fill::progress;
use crate::program::walk::faults::{FIGURES_LINE, MOST_THREADS, Told};
use crate::program::walk::{Pattern, RATIO};
use crate::size::human;

mod report;

pub use report::{FaultsReport, FaultsRow, StageRow};

/// The smallest working set: in less memory what the pager needs beside it counts.
const SMALLEST: u64 = 32 << 20;
/// A run that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);

/// What to run.
pub struct FaultsOptions {
    /// Bytes of the working set; a multiple of 1 MiB.
    pub size: u64,
    /// Memory, as a part of the working set.
    pub ratio: f64,
    /// In which orders records are accessed.
    pub patterns: Vec<Pattern>,
    /// By how many threads.
    pub threads: Vec<usize>,
    /// Runs of each case, timed and not, that alternate.
    pub runs: usize,
    /// How long the accesses of a run are counted, in seconds; a fourth of it before that they
    /// are not.
    pub seconds: f64,
    /// Command in front of a workload's name and arguments, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
}

/// Runs the experiment.
///
/// # Errors
/// Options that make no sense, a system without userfaultfd, a program that finds a wrong byte or
/// fails.
pub fn run(options: &FaultsOptions) -> Result<FaultsReport, LabError> {
    check(options)?;
    let cases: Vec<(Pattern, usize)> = (options.patterns.iter())
        .flat_map(|p| options.threads.iter().map(move |t| (*p, *t)))
        .collect();
    let bar = progress((cases.len() * options.runs * 2) as u64, "faults");
    let mut report = FaultsReport::new(options);
    for (pattern, threads) in cases {
        let (mut bare, mut timed) = (Vec::new(), Vec::new());
        for _ in 0..options.runs {
            for (all, is_bare) in [(&mut bare, true), (&mut timed, false)] {
                warm(&options.program_cmd, options.memory() as usize)?;
                all.push(one(options, pattern, threads, is_bare)?);
                bar.inc(1);
            }
        }
        let speed = |told: &Told| told.ops as f64 / told.seconds.max(1e-9);
        let bare: Vec<f64> = bare.iter().map(speed).collect();
        // That of middle speed, whole, so that its figures belong together.
        timed.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
        let told = &timed[timed.len() / 2];
        let row = FaultsRow::new(pattern, threads, median(&bare), speed(told), told);
        report.rows.push(row);
    }
    bar.finish_and_clear();
    Ok(report)
}

fn one(
    options: &FaultsOptions,
    pattern: Pattern,
    threads: usize,
    bare: bool,
) -> Result<Told, LabError> {
    let mut command = options.program_cmd.clone();
    let seconds = options.seconds;
    let words = format!(
        "faults {} {} {} {threads} --seconds {seconds} --settle {}{}",
        options.size >> 20,
        options.memory() >> 20,
        pattern.name(),
        seconds / 4.0,
        if bare { " --bare" } else { "" },
    );
    command.extend(words.split(' ').map(OsString::from));
    let run = Running::start(
        "the walk over memory of its own pager",
        &command,
        Vec::new(),
    )?;
    let end = run.within(DEADLINE).finish()?;
    if !end.status.success() {
        return Err(end.failure("failed"));
    }
    let told = end.line(FIGURES_LINE);
    let told = told.and_then(|line| serde_json::from_str(line).ok());
    told.ok_or_else(|| end.failure("did not print its figures"))
}

impl FaultsOptions {
    /// RAM that the pager may use, in bytes.
    fn memory(&self) -> u64 {
        (self.size as f64 * self.ratio) as u64 >> 20 << 20
    }
}

fn check(options: &FaultsOptions) -> Result<(), LabError> {
    let bad = |why: String| Err(LabError::Option(why));
    if options.size < SMALLEST || !options.size.is_multiple_of(1 << 20) {
        let least = human(SMALLEST);
        return bad(format!(
            "size of {} bytes: must be a multiple of 1 MiB, and {least} at least",
            options.size
        ));
    }
    let least = 1.0 / RATIO + 0.05;
    if !(least..=1.0).contains(&options.ratio) {
        let told = (least * 100.0).ceil() / 100.0;
        return bad(format!(
            "--ratio {}: must be from {told}, below which content of {RATIO}:1 does not fit, to 1",
            options.ratio
        ));
    }
    if !(0.1..=600.0).contains(&options.seconds) {
        return bad(format!("--seconds {}: must be 0.1 to 600", options.seconds));
    }
    let most = ((options.size >> 20) as usize).min(MOST_THREADS);
    if let Some(threads) = options.threads.iter().find(|n| !(1..=most).contains(n)) {
        return bad(format!("--threads {threads}: must be 1 to {most}"));
    }
    let have = mem_available()?;
    if options.size.saturating_add(options.size / 4) > have {
        return bad(format!(
            "--size: {} do not fit into memory, of which {} can be had: give a smaller size",
            human(options.size),
            human(have)
        ));
    }
    if options.runs == 0 || options.patterns.is_empty() || options.threads.is_empty() {
        return bad("nothing to run: at least one run, pattern and thread are needed".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_faults_refuses_options_that_make_no_sense() {
        let base = || FaultsOptions {
            size: 64 << 20,
            ratio: 0.5,
            patterns: vec![Pattern::Uniform],
            threads: vec![1],
            runs: 1,
            seconds: 1.0,
            program_cmd: Vec::new(),
        };
        let bad = [
            (
                FaultsOptions {
                    size: 1 << 20,
                    ..base()
                },
                "size",
            ),
            (
                FaultsOptions {
                    size: 1 << 45,
                    ..base()
                },
                "--size",
            ),
            (
                FaultsOptions {
                    ratio: 0.34,
                    ..base()
                },
                "--ratio 0.34",
            ),
            (
                FaultsOptions {
                    seconds: f64::NAN,
                    ..base()
                },
                "--seconds",
            ),
            (
                FaultsOptions {
                    threads: vec![65],
                    ..base()
                },
                "--threads 65",
            ),
            (
                FaultsOptions {
                    threads: vec![],
                    ..base()
                },
                "nothing to run",
            ),
            (FaultsOptions { runs: 0, ..base() }, "nothing to run"),
        ];
        for (options, says) in bad {
            match run(&options) {
                Err(LabError::Option(why)) => assert!(why.contains(says), "{says}: {why}"),
                other => panic!("{says}: {other:?}"),
            }
        }
    }
}
