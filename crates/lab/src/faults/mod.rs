//! What a fault and an eviction cost, stage by stage, where memory is short.
//!
//! The pager is embedded in the lab's own program, with the loops, the store's sizes and the knobs
//! of `deckle run`: in a program under that nobody can listen, and the tasks are the same.

use std::time::Duration;

use crate::child::Running;
use crate::experiment::{Experiment, Lab, Tell, runs, something};
use crate::figures::median;
use crate::program::walk::Pattern;
use crate::program::walk::faults::{MOST_THREADS, Told};
use crate::steps::steps;
use crate::working_set::WorkingSet;
use crate::{LabError, Side};

mod report;

pub use report::{FaultsRow, StageRow};

/// A run that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);

/// The experiment.
#[derive(Clone, PartialEq, Debug, clap::Args)]
pub struct Faults {
    /// The working set.
    #[command(flatten)]
    pub set: WorkingSet,
    /// In which order it is accessed, separated by commas.
    #[arg(long = "pattern", value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "uniform")]
    pub patterns: Vec<Pattern>,
    /// By how many threads, several separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "1,2")]
    pub threads: Vec<usize>,
    /// Timed runs of each row, of which the one in the middle is told.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = runs())]
    pub runs: u32,
}

impl Experiment for Faults {
    fn measure(&self, lab: &Lab) -> Result<(Vec<FaultsRow>, ()), LabError> {
        self.set.check(&self.threads, MOST_THREADS)?;
        let lists = [self.patterns.len(), self.threads.len()];
        something(self.runs, &[Side::Live], &lists)?;
        let cases: Vec<(Pattern, usize)> = (self.patterns.iter())
            .flat_map(|p| self.threads.iter().map(move |t| (*p, *t)))
            .collect();
        let bar = steps((cases.len() * self.runs as usize * 2) as u64, Self::NAME);
        let mut rows = Vec::new();
        for (pattern, threads) in cases {
            let (mut bare, mut timed) = (Vec::new(), Vec::new());
            for _ in 0..self.runs {
                for (all, option) in [(&mut bare, " --bare"), (&mut timed, "")] {
                    lab.warm(self.set.memory() as usize)?;
                    all.push(self.one(lab, pattern, threads, option)?);
                    bar.inc(1);
                }
            }
            let speed = |told: &Told| told.ops as f64 / told.seconds.max(1e-9);
            let bare: Vec<f64> = bare.iter().map(speed).collect();
            // That of middle speed, whole, so that its figures belong together.
            timed.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
            let told = &timed[timed.len() / 2];
            rows.push(FaultsRow::new(
                pattern,
                threads,
                median(&bare),
                speed(told),
                told,
            ));
        }
        bar.finish_and_clear();
        Ok((rows, ()))
    }
}

impl Faults {
    fn one(
        &self,
        lab: &Lab,
        pattern: Pattern,
        threads: usize,
        option: &str,
    ) -> Result<Told, LabError> {
        let (size, memory) = (self.set.size >> 20, self.set.memory() >> 20);
        let (seconds, settle) = (self.set.seconds, self.set.seconds / 4.0);
        let program = format!(
            "faults {size} {memory} {pattern} {threads} --seconds {seconds} --settle \
             {settle}{option}"
        );
        let command = lab.command(Side::Kernel, [], None, &program);
        let run = Running::start(
            "the walk over memory of its own pager",
            &command,
            Vec::new(),
        )?;
        run.within(DEADLINE).succeed()?.figures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_faults_refuses_options_that_make_no_sense() {
        let refused = |change: fn(&mut Faults), says: &str| {
            let mut options = Faults {
                set: WorkingSet {
                    size: 64 << 20,
                    ratio: 0.5,
                    seconds: 1.0,
                },
                patterns: vec![Pattern::Uniform],
                threads: vec![1],
                runs: 1,
            };
            change(&mut options);
            match options.run(&Lab::default()) {
                Err(LabError::Option(why)) => assert!(why.contains(says), "{says}: {why}"),
                other => panic!("{says}: {other:?}"),
            }
        };
        refused(|o| o.set.size = 1 << 20, "size");
        refused(|o| o.set.size = 1 << 45, "--size");
        refused(|o| o.set.ratio = 0.34, "--ratio 0.34");
        refused(|o| o.set.seconds = f64::NAN, "--seconds");
        refused(|o| o.threads = vec![65], "--threads 65");
        refused(|o| o.threads.clear(), "nothing to run");
        refused(|o| o.runs = 0, "nothing to run");
    }
}
