//! The S003 experiment: 20 MiB limit, no swap, 40 MiB of which one page in 50 KiB is touched.
//! Whether it survives depends on the shrinker of underused huge pages and on its threshold.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use serde::Serialize;

use crate::child::{Finished, Running};
use crate::experiment::{All, Experiment, Json, Lab, Report, Tell, something, words};
use crate::host::cgroup::Cgroup;
use crate::host::thp::Thp;
use crate::host::{Guard, vmstat};
use crate::model;
use crate::size::BLOCK;
use crate::steps::steps;
use crate::table::Column::{self, Left, Right};
use crate::table::{or_dash, table};
use crate::{LabError, Side};

/// The memory limit, in bytes.
pub const LIMIT: usize = 20 << 20;
/// What the workload maps, in bytes.
pub const SIZE: usize = 40 << 20;
/// Distance of the bytes it writes, in bytes.
pub const STRIDE: usize = 50 << 10;
/// Huge pages that fit under the limit beside the program itself: a kernel row with fewer says
/// nothing, since there was little to split.
const HUGE_PAGES: u64 = (LIMIT / BLOCK - 1) as u64;
/// A case that takes longer hangs; it takes a second.
const PATIENCE: Duration = Duration::from_secs(120);
/// Exit status of `deckle run` for a program killed at the limit.
const KILLED: i32 = 137;

named! {
    /// What the blocks of the workload hold.
    pub enum Blocks {
        /// One byte in every 50 KiB: 471 pages of each block hold only zeros.
        Sparse = "sparse",
        /// Zeros written to every page.
        Zeros = "zeros",
    }
}

named! {
    /// How a run ended.
    pub enum Outcome {
        /// It ran to its end, and all its bytes were right.
        Survived = "survived",
        /// It was killed at the limit.
        Killed = "killed",
    }
}

/// One setting to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct OomCase {
    /// More zero-filled pages than this, and a huge page is split.
    pub max_ptes_none: u32,
    /// Whether the shrinker is on.
    pub shrink_underused: bool,
    /// The workload.
    pub blocks: Blocks,
}

const fn case(max_ptes_none: u32, shrink_underused: bool, blocks: Blocks) -> OomCase {
    OomCase {
        max_ptes_none,
        shrink_underused,
        blocks,
    }
}

/// All settings of the experiment.
pub const CASES: [OomCase; 9] = [
    case(450, false, Blocks::Sparse),
    case(450, true, Blocks::Sparse),
    case(470, true, Blocks::Sparse),
    case(471, true, Blocks::Sparse),
    case(490, true, Blocks::Sparse),
    case(510, true, Blocks::Sparse),
    case(511, true, Blocks::Sparse),
    case(510, true, Blocks::Zeros),
    case(511, true, Blocks::Zeros),
];

/// The experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Oom {
    /// Where to run, separated by commas.
    #[arg(long = "on", value_delimiter = ',', default_values_t = Side::ALL)]
    pub sides: Vec<Side>,
}

/// One line of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct OomRow {
    /// The side.
    pub on: Side,
    /// The setting.
    #[serde(flatten)]
    pub case: OomCase,
    /// How the run ended.
    pub outcome: Outcome,
}

/// A case with its outcomes on all sides.
type Line = (OomCase, [Option<Outcome>; 3]);

const CASE: [Column<Line>; 3] = [
    Left("blocks", |(case, _)| case.blocks.to_string()),
    Left("shrink_underused", |(case, _)| {
        on_off(case.shrink_underused).into()
    }),
    Right("max_ptes_none", |(case, _)| case.max_ptes_none.to_string()),
];

const OUTCOMES: [Column<Line>; 3] = [
    Left(Side::Live.name(), |(_, on)| {
        or_dash(on[Side::Live as usize])
    }),
    Left(Side::Kernel.name(), |(_, on)| {
        or_dash(on[Side::Kernel as usize])
    }),
    Left(Side::Model.name(), |(_, on)| {
        or_dash(on[Side::Model as usize])
    }),
];

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl Tell for Oom {
    const NAME: &'static str = "oom";
    type Row = OomRow;
    type More = ();
    type Of = All;

    fn text(report: &Report<Self>) -> String {
        let lines = CASES.map(|case| {
            let of = |on| report.rows.iter().find(|r| (r.on, r.case) == (on, case));
            (case, Side::ALL.map(|on| of(on).map(|r| r.outcome)))
        });
        let sides = &report.options.sides;
        let columns = CASE
            .iter()
            .chain(sides.iter().map(|on| &OUTCOMES[*on as usize]));
        let mut text = String::from(
            "oom: 40 MiB in a limit of 20 MiB without swap; survives if underused huge pages are \
             split\n\n",
        );
        table(&mut text, 0, columns, &lines, |_| None);
        text + match (sides.len(), report.failed()) {
            (0 | 1, _) => "",
            (_, false) => "\nall sides agree\n",
            (_, true) => "\nthe sides DIFFER\n",
        }
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        json.with("rows", &report.rows)
    }

    /// True if sides differ in a case.
    fn failed(report: &Report<Self>) -> bool {
        report.rows.iter().any(|row| {
            let mut same = report.rows.iter().filter(|r| r.case == row.case);
            same.any(|other| other.outcome != row.outcome)
        })
    }
}

impl Experiment for Oom {
    fn measure(&self, lab: &Lab) -> Result<(Vec<OomRow>, ()), LabError> {
        something(1, &self.sides, &[])?;
        let bar = steps((self.sides.len() * CASES.len()) as u64, "oom");
        let mut rows = Vec::new();
        for &on in &self.sides {
            let mut guard = match on {
                Side::Kernel => Some(Guard::new(&lab.program_cmd)?),
                Side::Live | Side::Model => None,
            };
            for (n, case) in CASES.iter().enumerate() {
                let outcome = match (on, guard.as_mut()) {
                    (Side::Kernel, Some(guard)) => kernel(guard, lab, n, case)?,
                    (Side::Live, _) => live(lab, case)?,
                    _ => model::oom::run(case, model::oom::PROCESS_PAGES)?,
                };
                let case = *case;
                rows.push(OomRow { on, case, outcome });
                bar.inc(1);
            }
            guard.map_or(Ok(()), Guard::finish)?;
        }
        bar.finish_and_clear();
        Ok((rows, ()))
    }
}

/// One case on the host kernel.
fn kernel(guard: &mut Guard, lab: &Lab, n: usize, case: &OomCase) -> Result<Outcome, LabError> {
    let thp = Thp {
        max_ptes_none: case.max_ptes_none,
        shrink_underused: case.shrink_underused,
    };
    thp.set(guard, "always")?;
    let cgroup = Cgroup::new(guard, &format!("oom{n}"))?;
    cgroup.limit_without_swap(LIMIT)?;
    let command = lab.command(Side::Kernel, [], None, &workload(case));
    let before = vmstat("thp_fault_alloc")?;
    let run = Running::start(&name(Side::Kernel, case), &command, cgroup.doors()?)?;
    let end = run.within(PATIENCE).finish()?;
    guard.undisturbed()?;
    let huge = vmstat("thp_fault_alloc")?.saturating_sub(before);
    if huge < HUGE_PAGES {
        let why = format!("got {huge} huge pages of {HUGE_PAGES}: the host's memory is fragmented");
        return Err(end.failure(&why));
    }
    let killed = end.status.signal() == Some(libc::SIGKILL) && cgroup.oom_kills()? > 0;
    outcome(&end, killed)
}

/// One case under `deckle run`.
fn live(lab: &Lab, case: &OomCase) -> Result<Outcome, LabError> {
    let (none, shrink) = (case.max_ptes_none, on_off(case.shrink_underused));
    let options = format!(
        "--profile linux --thp always --memory-max {LIMIT} --swap none --max-ptes-none {none} \
         --shrink-underused {shrink}"
    );
    let command = lab.command(Side::Live, words(&options), None, &workload(case));
    let run = Running::start(&name(Side::Live, case), &command, Vec::new())?;
    let end = run.within(PATIENCE).finish()?;
    outcome(&end, end.status.code() == Some(KILLED))
}

fn outcome(end: &Finished, killed: bool) -> Result<Outcome, LabError> {
    let survived = end.status.success() && end.line("checked: ").is_some();
    match (killed, survived) {
        (true, _) => Ok(Outcome::Killed),
        (_, true) => Ok(Outcome::Survived),
        _ => Err(end.failure("neither survived nor was killed at the limit")),
    }
}

fn workload(case: &OomCase) -> String {
    let zeros = if case.blocks == Blocks::Zeros {
        " --zero-blocks"
    } else {
        ""
    };
    format!("oom-sparse --size {SIZE} --stride {STRIDE}{zeros}")
}

fn name(side: Side, case: &OomCase) -> String {
    format!("oom on {side}, {case:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r137_report_has_the_promised_shape() {
        let case = case(470, true, Blocks::Sparse);
        let row = |on, outcome| OomRow { on, case, outcome };
        let rows = vec![
            row(Side::Live, Outcome::Survived),
            row(Side::Kernel, Outcome::Killed),
        ];
        let sides = vec![Side::Live, Side::Kernel];
        let report = Report {
            options: Oom { sides },
            rows,
            more: (),
        };
        assert_eq!(
            report.to_json(),
            r#"{"schema":1,"experiment":"oom","rows":[{"on":"live","max_ptes_none":470,"#
                .to_owned()
                + r#""shrink_underused":true,"blocks":"sparse","outcome":"survived"},"#
                + r#"{"on":"kernel","max_ptes_none":470,"shrink_underused":true,"#
                + r#""blocks":"sparse","outcome":"killed"}]}"#
        );
        assert!(report.failed());
        let text = report.to_text();
        assert!(text.contains("the sides DIFFER"), "{text}");
    }
}
