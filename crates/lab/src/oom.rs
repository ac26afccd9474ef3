//! The S003 experiment: 20 MiB limit, no swap, 40 MiB of which one page in 50 KiB is touched.
//! Whether it survives depends on the shrinker of underused huge pages and on its threshold.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::child::{Finished, Running};
use crate::host::cgroup::Cgroup;
use crate::host::thp::Thp;
use crate::host::{Guard, vmstat};
use crate::model::ModelSide;
use crate::program::fill::progress;
use crate::size::BLOCK;
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

/// What the blocks of the workload hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blocks {
    /// One byte in every 50 KiB: 471 pages of each block hold only zeros.
    Sparse,
    /// Zeros written to every page.
    Zeros,
}

/// One setting to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It ran to its end, and all its bytes were right.
    Survived,
    /// It was killed at the limit.
    Killed,
}

/// What to run.
pub struct OomOptions<'a> {
    /// The sides, in the order of the report.
    pub sides: Vec<Side>,
    /// The `deckle` binary, for the live side.
    pub deckle: PathBuf,
    /// Command in front of a workload's name and arguments, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
    /// The model, if its side is asked for.
    pub model: Option<&'a mut dyn ModelSide>,
}

/// One line of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct OomRow {
    /// The side.
    pub on: Side,
    /// See [`OomCase`].
    pub max_ptes_none: u32,
    /// See [`OomCase`].
    pub shrink_underused: bool,
    /// See [`OomCase`].
    pub blocks: Blocks,
    /// How the run ended.
    pub outcome: Outcome,
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct OomReport {
    schema: u32,
    experiment: &'static str,
    /// One row for each side and case.
    pub rows: Vec<OomRow>,
}

impl OomReport {
    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }

    /// True if all sides agree in every case.
    pub fn agree(&self) -> bool {
        CASES.iter().all(|case| {
            let mut outcomes = self.of(case).map(|row| row.outcome);
            let first = outcomes.next();
            outcomes.all(|o| Some(o) == first)
        })
    }

    /// The report as a table.
    pub fn to_text(&self) -> String {
        let mut sides: Vec<Side> = Vec::new();
        for row in &self.rows {
            if !sides.contains(&row.on) {
                sides.push(row.on);
            }
        }
        let mut text = String::from(
            "oom: 40 MiB in a limit of 20 MiB without swap; survives if underused huge pages are \
             split\n\nblocks  shrink_underused  max_ptes_none",
        );
        for side in &sides {
            let _ = write!(text, "  {side:8}");
        }
        for case in &CASES {
            let (blocks, shrink) = (
                if case.blocks == Blocks::Sparse {
                    "sparse"
                } else {
                    "zeros"
                },
                if case.shrink_underused { "on" } else { "off" },
            );
            let _ = write!(text, "\n{blocks:6}  {shrink:16}  {:13}", case.max_ptes_none);
            for side in &sides {
                let outcome = self
                    .of(case)
                    .find(|row| row.on == *side)
                    .map(|row| row.outcome);
                let word = match outcome {
                    Some(Outcome::Survived) => "survived",
                    Some(Outcome::Killed) => "killed",
                    None => "-",
                };
                let _ = write!(text, "  {word:8}");
            }
        }
        let agree = if self.agree() {
            "all sides agree"
        } else {
            "the sides DIFFER"
        };
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let mut text = lines.join("\n") + "\n";
        if sides.len() > 1 {
            let _ = writeln!(text, "\n{agree}");
        }
        text
    }

    fn of(&self, case: &OomCase) -> impl Iterator<Item = &OomRow> {
        self.rows.iter().filter(|row| {
            row.max_ptes_none == case.max_ptes_none
                && row.shrink_underused == case.shrink_underused
                && row.blocks == case.blocks
        })
    }
}

/// Runs the experiment.
///
/// # Errors
/// A side that cannot be run here, a workload that ends in any other way than by surviving or
/// by being killed at the limit, settings that were disturbed or could not be given back.
pub fn run(mut options: OomOptions<'_>) -> Result<OomReport, LabError> {
    let bar = progress((options.sides.len() * CASES.len()) as u64, "oom");
    let mut rows = Vec::new();
    for on in options.sides.clone() {
        let mut guard = match on {
            Side::Kernel => Some(Guard::new(&options.program_cmd)?),
            Side::Live | Side::Model => None,
        };
        for (n, case) in CASES.iter().enumerate() {
            let outcome = match (on, guard.as_mut()) {
                (Side::Kernel, Some(guard)) => kernel(guard, &options.program_cmd, n, case)?,
                (Side::Live, _) => live(&options, case)?,
                _ => match options.model.as_deref_mut() {
                    Some(model) => model.oom(case)?,
                    None => return Err(LabError::Model("not part of this build".into())),
                },
            };
            let OomCase {
                max_ptes_none,
                shrink_underused,
                blocks,
            } = *case;
            rows.push(OomRow {
                on,
                max_ptes_none,
                shrink_underused,
                blocks,
                outcome,
            });
            bar.inc(1);
        }
        guard.map_or(Ok(()), Guard::finish)?;
    }
    bar.finish_and_clear();
    Ok(OomReport {
        schema: 1,
        experiment: "oom",
        rows,
    })
}

/// One case on the host kernel.
fn kernel(
    guard: &mut Guard,
    program_cmd: &[OsString],
    n: usize,
    case: &OomCase,
) -> Result<Outcome, LabError> {
    let OomCase {
        max_ptes_none,
        shrink_underused,
        ..
    } = *case;
    Thp {
        max_ptes_none,
        shrink_underused,
    }
    .set(guard)?;
    let cgroup = Cgroup::new(guard, &format!("oom{n}"))?;
    cgroup.limit_without_swap(LIMIT)?;
    let command = workload(program_cmd, case);
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
fn live(options: &OomOptions<'_>, case: &OomCase) -> Result<Outcome, LabError> {
    let shrink = if case.shrink_underused { "on" } else { "off" };
    let mut command = vec![options.deckle.clone().into_os_string()];
    command.extend(
        [
            "run",
            "--profile",
            "linux",
            "--thp",
            "always",
            "--memory-max",
            &LIMIT.to_string(),
        ]
        .map(OsString::from),
    );
    command.extend(["--swap", "none", "--max-ptes-none"].map(OsString::from));
    command.push(case.max_ptes_none.to_string().into());
    command.extend(["--shrink-underused", shrink, "--"].map(OsString::from));
    command.extend(workload(&options.program_cmd, case));
    let run = Running::start(&name(Side::Live, case), &command, Vec::new())?;
    let end = run.within(PATIENCE).finish()?;
    outcome(&end, end.status.code() == Some(KILLED))
}

fn outcome(end: &Finished, killed: bool) -> Result<Outcome, LabError> {
    match (
        killed,
        end.status.success() && end.line("checked: ").is_some(),
    ) {
        (true, _) => Ok(Outcome::Killed),
        (_, true) => Ok(Outcome::Survived),
        _ => Err(end.failure("neither survived nor was killed at the limit")),
    }
}

fn workload(program_cmd: &[OsString], case: &OomCase) -> Vec<OsString> {
    let mut command = program_cmd.to_vec();
    let (size, stride) = (SIZE.to_string(), STRIDE.to_string());
    command.extend(["oom-sparse", "--size", &size, "--stride", &stride].map(OsString::from));
    if case.blocks == Blocks::Zeros {
        command.push("--zero-blocks".into());
    }
    command
}

fn name(side: Side, case: &OomCase) -> String {
    format!("oom on {side}, {case:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r137_report_has_the_promised_shape() {
        let row = |on, outcome| OomRow {
            on,
            max_ptes_none: 470,
            shrink_underused: true,
            blocks: Blocks::Sparse,
            outcome,
        };
        let rows = vec![
            row(Side::Live, Outcome::Survived),
            row(Side::Kernel, Outcome::Killed),
        ];
        let report = OomReport {
            schema: 1,
            experiment: "oom",
            rows,
        };
        assert_eq!(
            report.to_json(),
            r#"{"schema":1,"experiment":"oom","rows":[{"on":"live","max_ptes_none":470,"#
                .to_owned()
                + r#""shrink_underused":true,"blocks":"sparse","outcome":"survived"},"#
                + r#"{"on":"kernel","max_ptes_none":470,"shrink_underused":true,"#
                + r#""blocks":"sparse","outcome":"killed"}]}"#
        );
        assert!(!report.agree());
        assert!(
            report.to_text().contains("the sides DIFFER"),
            "{}",
            report.to_text()
        );
    }
}
