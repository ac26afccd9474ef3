//! The S003 experiment: what huge pages everywhere bring and cost, and what is left of both when
//! those that are mostly zeros are split under pressure.
//!
//! The series' three settings (huge pages on request, everywhere, everywhere with the shrinker)
//! and a sweep over its threshold, on the live pager, on the host kernel and, for the programs
//! that are accesses only, on the model. `docs/underused-experiment.md` has what is run and set.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::host::cgroup::Cgroup;
use crate::host::{Guard, is_root};
use crate::model::ModelSide;
use crate::program::fill::progress;
use crate::program::underused::Program;
use crate::{LabError, Side};

mod measure;
mod plot;
mod pressure;
mod report;
mod setting;

use measure::Bench;
pub use measure::Run;
pub use report::{Target, UnderusedReport, UnderusedRow};
pub use setting::{META, Setting};

/// What to run.
pub struct UnderusedOptions<'a> {
    /// The programs, in the order of the report.
    pub programs: Vec<Program>,
    /// The settings.
    pub settings: Vec<Setting>,
    /// The sides. Live and kernel runs alternate in this order.
    pub sides: Vec<Side>,
    /// Runs of each setting whose time counts; of the others there is one.
    pub runs: usize,
    /// The `deckle` binary, for the live side.
    pub deckle: PathBuf,
    /// Command in front of a program's name, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
    /// The model, if its side is asked for.
    pub model: Option<&'a mut dyn ModelSide>,
}

/// Memory above this is under pressure, where a program needs `madvise` bytes at its peak without
/// huge pages and `always` with them everywhere: a third of what is between, which is what was
/// left in production (2.4 of 7.7 %), and no less than what a run uses more by chance.
pub fn high(madvise: u64, always: u64) -> u64 {
    madvise + (always.saturating_sub(madvise) / 3).max(madvise / 32)
}

/// Runs the experiment. A program whose command is not on this system is left out, and named in
/// the report and on stderr.
///
/// # Errors
/// Options that make no sense, a side that cannot be run here, a program that fails, settings
/// that were disturbed or could not be given back.
pub fn run(mut options: UnderusedOptions<'_>) -> Result<UnderusedReport, LabError> {
    if options.runs == 0
        || options.programs.is_empty()
        || options.settings.is_empty()
        || options.sides.is_empty()
    {
        let why = "nothing to run: at least one run, program, setting and side are needed";
        return Err(LabError::Option(why.into()));
    }
    let mut model = options.model.take();
    if options.sides.contains(&Side::Model) && model.is_none() {
        return Err(LabError::Model("not part of this build".into()));
    }
    let mut report = UnderusedReport::default();
    let machines: Vec<Side> = (options.sides.iter().copied())
        .filter(|side| *side != Side::Model)
        .collect();
    if !machines.is_empty() {
        options.programs.retain(|program| match missing(*program) {
            Some(command) => {
                eprintln!("SKIPPED program {}: no {command} here", program.name());
                report.skipped.push(program.name());
                false
            }
            None => true,
        });
    }
    let kernel = machines.contains(&Side::Kernel);
    let mut guard = match !machines.is_empty() && (kernel || is_root()) {
        true => Some(Guard::new(&options.program_cmd)?),
        false => None,
    };
    // It tells what a tree holds; without one, the processes are asked.
    let cgroup = Cgroup::if_any(guard.as_mut(), "underused", kernel)?;
    let bar = progress(steps(&options, &machines), "underused");
    for &program in &options.programs {
        let bench = Bench {
            options: &options,
            program,
            cgroup: cgroup.as_ref(),
        };
        let mut one = |side: Side, setting: Setting, high: Option<u64>| {
            if let (true, Some(guard)) = (kernel, guard.as_mut()) {
                // A manager asks for huge pages itself, and gets them where that is allowed.
                match side {
                    Side::Kernel => setting.set(guard)?,
                    _ => Setting::Madvise.set(guard)?,
                }
            }
            let run = bench.run(side, setting, high)?;
            guard.as_ref().map_or(Ok(()), Guard::undisturbed)?;
            bar.inc(1);
            Ok::<Run, LabError>(run)
        };
        let mut highs = Vec::new();
        for &side in &machines {
            let madvise = one(side, Setting::Madvise, None)?.peak;
            highs.push(high(madvise, one(side, Setting::Always, None)?.peak));
        }
        let mut runs = vec![vec![Vec::new(); options.settings.len()]; machines.len()];
        for n in 0..options.runs {
            for (k, &setting) in options.settings.iter().enumerate() {
                for (i, &side) in machines.iter().enumerate() {
                    if setting.is_on(side) && (n == 0 || setting.is_timed()) {
                        runs[i][k].push(one(side, setting, Some(highs[i]))?);
                    }
                }
            }
        }
        for (i, &side) in machines.iter().enumerate() {
            for (&setting, runs) in options.settings.iter().zip(&runs[i]) {
                report.add(side, program, setting, highs[i], runs);
            }
        }
        if let (Some(model), true) = (&mut model, options.sides.contains(&Side::Model)) {
            let mut one =
                |setting: Setting, high| model.underused(program, setting.tunables(), high);
            let needed = (one(Setting::Madvise, None)?, one(Setting::Always, None)?);
            let (Some(madvise), Some(always)) = needed else {
                continue;
            };
            let high = high(madvise.peak, always.peak);
            for &setting in &options.settings {
                let run = one(setting, Some(high))?;
                report.add(Side::Model, program, setting, high, run.as_slice());
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    guard.map_or(Ok(()), Guard::finish)?;
    Ok(report)
}

/// The command that a program needs and that cannot be started here.
fn missing(program: Program) -> Option<&'static str> {
    let command = program.needs()?;
    let mut version = Command::new(command);
    version.arg("--version").stdin(Stdio::null());
    version.stdout(Stdio::null()).stderr(Stdio::null());
    let works = version.status().is_ok_and(|status| status.success());
    (!works).then_some(command)
}

fn steps(options: &UnderusedOptions<'_>, machines: &[Side]) -> u64 {
    let runs = |setting: &Setting, side: &Side| match (setting.is_on(*side), setting.is_timed()) {
        (false, _) => 0,
        (_, true) => options.runs,
        (_, false) => 1,
    };
    let on = |side| {
        1 + (options.settings.iter())
            .map(|s| runs(s, side))
            .sum::<usize>()
    };
    let modelled = match options.sides.contains(&Side::Model) {
        true => options.settings.len(),
        false => 0,
    };
    (options.programs.len() * (machines.iter().map(on).sum::<usize>() + modelled)) as u64
}
