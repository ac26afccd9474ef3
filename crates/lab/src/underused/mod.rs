//! The S003 experiment: what huge pages everywhere bring and cost, and what is left of both when
//! those that are mostly zeros are split under pressure. `docs/underused-experiment.md` has what
//! is run and set.

use std::process::{Command, Stdio};

use serde::Serialize;

use crate::experiment::{Experiment, Lab, Tell, runs, something};
use crate::machines::Machines;
use crate::program::underused::Program;
use crate::steps::steps;
use crate::{LabError, Side, model};

mod measure;
mod pressure;
mod report;
mod setting;

pub use measure::Run;
pub use report::UnderusedRow;
pub use setting::{META, Setting};

/// The experiment. Live and kernel runs alternate.
#[derive(Clone, Debug, clap::Args)]
pub struct Underused {
    /// Where to run it, separated by commas.
    #[arg(long = "on", value_delimiter = ',', default_values_t = Side::ALL)]
    pub sides: Vec<Side>,
    /// Which programs, separated by commas.
    #[arg(long = "program", value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Program::ALL)]
    pub programs: Vec<Program>,
    /// Which settings, separated by commas: madvise, always, shrink-N, deckle.
    #[arg(long = "setting", value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = Setting::parse, default_values_t = Setting::ALL)]
    pub settings: Vec<Setting>,
    /// Runs of madvise, always, shrink-409 and deckle; of the others there is one.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = runs())]
    pub runs: u32,
}

/// What a target is about.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Of {
    /// The program.
    pub program: Program,
    /// With which shrinker.
    pub setting: Setting,
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<8} {:<11} ", self.program, self.setting.to_string())
    }
}

/// Memory above this is under pressure, where a program needs `madvise` bytes at its peak without
/// huge pages and `always` with them everywhere: a third of what is between, which is what was
/// left in production (2.4 of 7.7 %), and no less than what a run uses more by chance.
pub fn high(madvise: u64, always: u64) -> u64 {
    madvise + (always.saturating_sub(madvise) / 3).max(madvise / 32)
}

impl Experiment for Underused {
    fn measure(&self, lab: &Lab) -> Result<(Vec<UnderusedRow>, Vec<Program>), LabError> {
        let lists = [self.programs.len(), self.settings.len()];
        something(self.runs, &self.sides, &lists)?;
        let mut machines = Machines::new(lab, Self::NAME, &self.sides, None)?;
        let (mut programs, mut skipped) = (self.programs.clone(), Vec::new());
        if !machines.sides.is_empty() {
            programs.retain(|program| match missing(*program) {
                Some(command) => {
                    eprintln!("SKIPPED program {program}: no {command} here");
                    skipped.push(*program);
                    false
                }
                None => true,
            });
        }
        let on_model = self.sides.contains(&Side::Model);
        let bar = steps(self.steps(programs.len(), &machines.sides), Self::NAME);
        let mut rows = Vec::new();
        for program in programs {
            rows.extend(self.on_machines(program, &mut machines, &|| bar.inc(1))?);
            if on_model {
                rows.extend(self.on_model(program, &|| bar.inc(1))?);
            }
        }
        bar.finish_and_clear();
        machines.finish()?;
        Ok((rows, skipped))
    }
}

impl Underused {
    /// Rows of one program on the sides that run it.
    fn on_machines(
        &self,
        program: Program,
        machines: &mut Machines<'_>,
        step: &dyn Fn(),
    ) -> Result<Vec<UnderusedRow>, LabError> {
        let mut one = |side: Side, setting: Setting, high: Option<u64>| {
            if let Some(guard) = machines.host() {
                // A manager asks for huge pages itself, and gets them where that is allowed.
                match side {
                    Side::Kernel => setting.set(guard)?,
                    _ => Setting::Madvise.set(guard)?,
                }
            }
            let run = measure::run(machines, program, side, setting, high)?;
            machines.undisturbed()?;
            step();
            Ok::<Run, LabError>(run)
        };
        let sides = self.sides.iter().filter(|side| **side != Side::Model);
        let mut highs = Vec::new();
        for &side in sides {
            let mut peaks = [Setting::Madvise, Setting::Always].map(|setting| (setting, 0));
            for (setting, peak) in &mut peaks {
                for _ in 0..self.mark_runs() {
                    *peak += one(side, *setting, None)?.peak / u64::from(self.mark_runs());
                }
            }
            let [(_, madvise), (_, always)] = peaks;
            highs.push((side, high(madvise, always)));
        }
        let mut rows: Vec<(Side, Setting, u64, Vec<Run>)> = Vec::new();
        for &setting in &self.settings {
            let has = highs.iter().filter(|(side, _)| setting.is_on(*side));
            rows.extend(has.map(|(side, high)| (*side, setting, *high, Vec::new())));
        }
        for n in 0..self.runs {
            for (side, setting, high, runs) in &mut rows {
                if n == 0 || setting.is_timed() {
                    runs.push(one(*side, *setting, Some(*high))?);
                }
            }
        }
        rows.sort_by_key(|row| highs.iter().position(|(side, _)| *side == row.0));
        let gauge = pressure::gauge(machines.cgroup.as_ref());
        let row = |(side, setting, high, runs): (_, _, _, Vec<Run>)| {
            UnderusedRow::new(side, program, setting, (high, gauge), &runs)
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    /// Rows of one program on the model; none of one that the machine cannot run.
    fn on_model(&self, program: Program, step: &dyn Fn()) -> Result<Vec<UnderusedRow>, LabError> {
        let one = |setting: Setting, high| model::underused::run(program, setting.tunables(), high);
        let needed = (one(Setting::Madvise, None)?, one(Setting::Always, None)?);
        let (Some(madvise), Some(always)) = needed else {
            return Ok(Vec::new());
        };
        let high = high(madvise.peak, always.peak);
        let mut rows = Vec::new();
        for &setting in &self.settings {
            let run = one(setting, Some(high))?;
            rows.extend(UnderusedRow::new(
                Side::Model,
                program,
                setting,
                (high, "the account"),
                run.as_slice(),
            ));
            step();
        }
        Ok(rows)
    }

    /// Runs of each of the two settings whose peaks make the mark.
    fn mark_runs(&self) -> u32 {
        self.runs.min(5)
    }

    fn steps(&self, programs: usize, machines: &[Side]) -> u64 {
        let runs = |setting: &Setting| {
            if setting.is_timed() {
                self.runs as usize
            } else {
                1
            }
        };
        let on = |side: &Side| {
            let has = self.settings.iter().filter(|setting| setting.is_on(*side));
            2 * self.mark_runs() as usize + has.map(runs).sum::<usize>()
        };
        let modelled = self.sides.iter().filter(|s| **s == Side::Model).count();
        let each = machines.iter().map(on).sum::<usize>() + modelled * self.settings.len();
        (programs * each) as u64
    }
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
