//! The real kernel as the oracle of profile `linux`: programs that follow from seeds run on the
//! host's kernel and under `deckle run --profile linux`, with the same knobs, and what came of
//! each of their steps is compared. `docs/lab.md` says what is compared and how it is counted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::child::Running;
use crate::experiment::{All, Experiment, Json, Lab, Report, Target, Tell, bad, once, words};
use crate::host::cgroup::Cgroup;
use crate::host::thp::{Thp, set_sizes};
use crate::host::{Guard, read, thp};
use crate::live_stats::TempFile;
use crate::program::oracle::plan::{Knobs, LIMIT, Plan, SIZES};
use crate::steps::steps;
use crate::{LabError, Side};

mod compare;
mod pages;
mod reasons;
#[cfg(test)]
mod tests;

use compare::Run;
pub use compare::{Difference, Kind, Totals};
pub use reasons::{CAUSES, NATURE, Reason};

/// Programs that run on one side before they run on the other: the host's knobs are given back in
/// between.
const BATCH: u64 = 200;
/// A program takes less than a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a process takes of its cgroup beside its arena, about, in bytes.
const PROCESS: usize = 1 << 20;
/// The share of steps in which decisions on memory are to agree.
const WANTED: f64 = 0.98;

/// The experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Oracle {
    /// Which two sides are compared.
    #[arg(long = "on", value_delimiter = ',', default_values_t = [Side::Live, Side::Kernel])]
    pub sides: Vec<Side>,
    /// How many programs.
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seeds: u64,
    /// The seed of the first; the others follow.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..1 << 32))]
    pub first: u64,
    /// Another setting of deckle run, to see what it would change. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl Tell for Oracle {
    const NAME: &'static str = "oracle";
    type Row = Difference;
    type More = Totals;
    type Of = All;

    fn text(report: &Report<Self>) -> String {
        let Totals {
            programs,
            steps,
            agree,
            ..
        } = report.more;
        let mut text = format!("{programs} programs, {steps} steps, of which {agree} agree\n");
        let _ = writeln!(text, "\ndiffers by nature");
        for nature in &NATURE {
            let count = report.more.by_nature.get(nature.name).unwrap_or(&0);
            let _ = writeln!(text, "  {count:>6}  {}: {}", nature.name, nature.why);
        }
        let _ = writeln!(text, "\ndiffers");
        for cause in &CAUSES {
            let is = |row: &&Difference| row.cause == Some(cause.name);
            let count = report.rows.iter().filter(is).count();
            let _ = writeln!(text, "  {count:>6}  {}: {}", cause.name, cause.why);
        }
        for (kind, count) in compare::kinds(&report.rows) {
            let _ = writeln!(text, "  {count:>6}  {kind}");
        }
        for row in &report.rows {
            let cause = row
                .cause
                .map_or(String::new(), |cause| format!(" [{cause}]"));
            let Difference {
                seed, step, what, ..
            } = row;
            let _ = writeln!(text, "  seed {seed} step {step}: {what}{cause}");
        }
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        let more = &report.more;
        let why: BTreeMap<_, _> = NATURE
            .iter()
            .chain(&CAUSES)
            .map(|r| (r.name, r.why))
            .collect();
        json.with("programs", &more.programs)
            .with("steps", &more.steps)
            .with("agree", &more.agree)
            .with("differ", &report.rows)
            .with("by_nature", &more.by_nature)
            .with("reasons", &why)
            .with("targets", &report.targets())
    }

    fn targets(report: &Report<Self>) -> Vec<Target<All>> {
        let steps = report.more.steps.max(1) as f64;
        let outcomes = report.rows.iter().filter(|row| row.kind != Kind::Memory);
        let memory = report.rows.iter().filter(|row| row.kind == Kind::Memory);
        let share = |differ: usize| 1.0 - differ as f64 / steps;
        let (outcomes, memory) = (share(outcomes.count()), share(memory.count()));
        vec![
            Target::new(
                All {},
                "steps with equal bytes, errors and ends",
                true,
                1.0,
                outcomes,
            ),
            Target::new(
                All {},
                "steps with equal decisions on memory",
                true,
                WANTED,
                memory,
            ),
        ]
    }

    fn failed(report: &Report<Self>) -> bool {
        report.targets().iter().any(|target| !target.holds)
    }
}

impl Experiment for Oracle {
    fn measure(&self, lab: &Lab) -> Result<(Vec<Difference>, Totals), LabError> {
        once("--on", &self.sides)?;
        if self.sides.contains(&Side::Model) {
            return bad("--on: the model runs no programs: oracle compares live with kernel");
        }
        if self.sides.len() != 2 {
            return bad("--on: one side alone has nothing to be compared with: live,kernel");
        }
        if let Some(set) = self.set.iter().find(|set| !set.contains('=')) {
            return bad(format!("--set: `{set}` has no value: write KEY=VALUE"));
        }
        let bar = steps(2 * self.seeds, Self::NAME);
        let (mut rows, mut totals) = (Vec::new(), Totals::default());
        let all: Vec<u64> = (self.first..self.first + self.seeds).collect();
        for batch in all.chunks(BATCH as usize) {
            let plans: Vec<_> = batch.iter().map(|seed| (*seed, Plan::new(*seed))).collect();
            let mut guard = Guard::new(&lab.program_cmd)?;
            let cgroups = Cgroups::new(&mut guard)?;
            let mut native = Vec::new();
            for (seed, plan) in &plans {
                native.push(kernel(&mut guard, &cgroups, lab, *seed, &plan.knobs)?);
                bar.inc(1);
            }
            guard.finish()?;
            for ((seed, plan), kernel) in plans.iter().zip(native) {
                let live = live(lab, *seed, &plan.knobs, &self.set)?;
                compare::compare(*seed, plan, &kernel, &live, &mut rows, &mut totals);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok((rows, totals))
    }
}

/// Where programs of the kernel's side run.
struct Cgroups {
    free: Cgroup,
    limited: Cgroup,
}

impl Cgroups {
    fn new(guard: &mut Guard) -> Result<Self, LabError> {
        let free = Cgroup::new(guard, "oracle")?;
        let limited = Cgroup::new(guard, "oracle-limited")?;
        limited.limit_without_swap(LIMIT + PROCESS)?;
        Ok(Self { free, limited })
    }
}

/// A program on the host's kernel.
fn kernel(
    guard: &mut Guard,
    cgroups: &Cgroups,
    lab: &Lab,
    seed: u64,
    knobs: &Knobs,
) -> Result<Run, LabError> {
    let thp = Thp {
        max_ptes_none: knobs.max_ptes_none,
        shrink_underused: knobs.shrink_underused,
    };
    let sizes: Vec<_> = SIZES.into_iter().zip(knobs.sizes).collect();
    set_sizes(guard, knobs.enabled, &sizes)?;
    thp.set(guard, knobs.enabled)?;
    thp::khugepaged_rests(guard)?;
    let cgroup = match knobs.limit {
        Some(_) => &cgroups.limited,
        None => &cgroups.free,
    };
    let run = finish((lab, Side::Kernel, "", None), seed, cgroup.doors()?);
    guard.undisturbed()?;
    run
}

/// A program under `deckle run`.
fn live(lab: &Lab, seed: u64, knobs: &Knobs, set: &[String]) -> Result<Run, LabError> {
    let shrink = if knobs.shrink_underused { "on" } else { "off" };
    let mut options = format!(
        "--quiet --profile linux --swap none --thp {} --max-ptes-none {} --shrink-underused \
         {shrink} --set transparent_hugepage.khugepaged.pages_to_scan=0",
        knobs.enabled, knobs.max_ptes_none
    );
    for (kib, mode) in SIZES.iter().zip(knobs.sizes) {
        let _ = write!(
            options,
            " --set transparent_hugepage.hugepages-{kib}kB.enabled={mode}"
        );
    }
    if let Some(limit) = knobs.limit {
        let _ = write!(options, " --memory-max {limit}");
    }
    for setting in set {
        let _ = write!(options, " --set {setting}");
    }
    let stats = TempFile::new("oracle.json");
    let command = (lab, Side::Live, options.as_str(), Some(stats.path()));
    let run = finish(command, seed, Vec::new())?;
    let managed = |json: &Value| json["programs_managed"].as_u64();
    match managed(&serde_json::from_str(&read(stats.path())?).unwrap_or_default()) {
        Some(1..) => Ok(run),
        _ => bad(format!(
            "oracle {seed} was not managed by deckle run: nothing to compare"
        )),
    }
}

/// Runs a program: by which side's command, with which options and statistics.
fn finish(
    (lab, side, options, stats): (&Lab, Side, &str, Option<&Path>),
    seed: u64,
    doors: Vec<File>,
) -> Result<Run, LabError> {
    let command = lab.command(side, words(options), stats, &format!("oracle {seed}"));
    let mut run = Running::start(&format!("oracle {seed} on {side}"), &command, doors)?;
    run = run.within(PATIENCE);
    while !run.listen(PATIENCE)? {}
    Run::new(&run.finish()?)
}
