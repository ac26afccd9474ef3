//! The S000 experiment: how fast huge pages of which most is zero can be paged out, and what the
//! zero scan costs where nothing is zero.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;

use crate::host::cgroup::Cgroup;
use crate::host::thp::Thp;
use crate::host::{Guard, is_root, mem_available, zram};
use crate::model::ModelSide;
use crate::program::fill::progress;
use crate::program::pageout::Content;
use crate::size::{BLOCK, human};
use crate::{LabError, Side, floor};

mod measure;
mod report;
mod wanted;

use measure::{Bench, Measured};
pub use report::{PageoutReport, PageoutRow, Ratio};
pub use wanted::Target;

/// Anonymous memory that may be left beside the store after paging out, as a part of the size.
pub(crate) const LEFT: f64 = 0.02;

/// What the pages hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// One byte in the first page of each block; 511 pages are zero.
    Best,
    /// The last byte of every page; none is zero, and each is scanned to its end.
    Worst,
    /// One byte of every page, at a place in its two middle quarters that differs from page to
    /// page: a scan that looks at the ends first cannot guess it. None is zero.
    Middle,
    /// Every page whole, at lz4 ratio 2.5:1.
    Text,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Best, Self::Worst, Self::Middle, Self::Text];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Worst => "worst",
            Self::Middle => "middle",
            Self::Text => "text",
        }
    }

    /// Parses `best`, `worst`, `middle`, `text` or `all`.
    ///
    /// # Errors
    /// [`LabError::Option`] for anything else.
    pub fn parse(word: &str) -> Result<Vec<Self>, LabError> {
        if word == "all" {
            return Ok(Self::ALL.to_vec());
        }
        let case = Self::ALL.into_iter().find(|case| case.name() == word);
        case.map(|case| vec![case]).ok_or_else(|| {
            LabError::Option(format!(
                "unknown case '{word}' (known: best, worst, middle, text, all)"
            ))
        })
    }

    /// What the program writes.
    pub const fn content(self) -> Content {
        match self {
            Self::Best => Content::Byte {
                offset: 0,
                dirty: 1,
            },
            Self::Worst => Content::Byte {
                offset: 4095,
                dirty: 512,
            },
            Self::Middle => Content::Middle,
            Self::Text => Content::Text,
        }
    }
}

/// What to run.
pub struct PageoutOptions<'a> {
    /// Size of the mapping in bytes; a multiple of 2 MiB.
    pub size: usize,
    /// The cases, in the order of the report.
    pub cases: Vec<Case>,
    /// The sides. Live and kernel runs alternate in this order.
    pub sides: Vec<Side>,
    /// Timed runs of each case on each side.
    pub runs: usize,
    /// The `deckle` binary, for the live side.
    pub deckle: PathBuf,
    /// Command in front of a workload's name and arguments, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
    /// The model, if its side is asked for.
    pub model: Option<&'a mut dyn ModelSide>,
}

/// Runs the experiment.
///
/// # Errors
/// Options that make no sense, a side that cannot be run here, a workload that fails, a machine
/// that is never warm, settings that were disturbed or could not be given back. A row whose
/// memory was not given back or whose bytes were wrong is in the report, marked as failed.
pub fn run(mut options: PageoutOptions<'_>) -> Result<PageoutReport, LabError> {
    check(&options)?;
    let mut model = options.model.take();
    let machines: Vec<Side> = options
        .sides
        .iter()
        .copied()
        .filter(|side| *side != Side::Model)
        .collect();
    let kernel = machines.contains(&Side::Kernel);

    // As root, live runs are in a cgroup too: it counts the CPU time of the whole tree.
    let mut guard = match !machines.is_empty() && (kernel || is_root()) {
        true => Some(Guard::new(&options.program_cmd)?),
        false => None,
    };
    let cgroup = Cgroup::if_any(guard.as_mut(), "pageout", kernel)?;
    if let Some(guard) = guard.as_mut().filter(|_| kernel) {
        // What the host has by default; the shrinker is not part of this experiment.
        Thp {
            max_ptes_none: 511,
            shrink_underused: true,
        }
        .set(guard)?;
        // Same-filled and incompressible pages fit too.
        zram::swap_on(guard, options.size + options.size / 4 + (64 << 20))?;
    }

    let steps = options.cases.len() * options.sides.len() * (options.runs + 1);
    let bar = progress(steps as u64, "pageout");
    let mut report = PageoutReport::new(options.size);
    for &case in &options.cases {
        let bench = Bench {
            options: &options,
            case,
            cgroup: cgroup.as_ref(),
        };
        let mut timed: Vec<Measured> = machines.iter().map(|_| Measured::default()).collect();
        for _ in 0..options.runs {
            for (side, measured) in machines.iter().zip(&mut timed) {
                bench.timed_run(*side, measured)?;
                guard.as_ref().map_or(Ok(()), Guard::undisturbed)?;
                bar.inc(1);
            }
        }
        for (side, measured) in machines.iter().zip(timed) {
            report.rows.push(bench.checked_row(*side, measured)?);
            bar.inc(1);
        }
        if let (Some(model), true) = (&mut model, options.sides.contains(&Side::Model)) {
            let mut runs = Vec::new();
            for _ in 0..options.runs {
                runs.push(model.pageout(case, options.size)?);
                bar.inc(1);
            }
            report.rows.extend(PageoutRow::of_model(case, &runs));
        }
        let floor = floor::measure(options.size, case.content())?;
        report.floor.push((case, floor));
    }
    bar.finish_and_clear();
    guard.map_or(Ok(()), Guard::finish)?;
    Ok(report)
}

fn check(options: &PageoutOptions<'_>) -> Result<(), LabError> {
    let bad = |why: String| Err(LabError::Option(why));
    if options.size == 0 || !options.size.is_multiple_of(BLOCK) {
        return bad(format!(
            "size of {} bytes: must be a multiple of 2 MiB",
            options.size
        ));
    }
    if options.sides.iter().any(|side| *side != Side::Model) {
        // All of it is resident before it is paged out, and a little more while the host warms.
        let (size, have) = (options.size as u64, mem_available()?);
        if size.saturating_add(size / 16) > have {
            return bad(format!(
                "--size: {} do not fit into memory, of which {} can be had: give a smaller size",
                human(size),
                human(have)
            ));
        }
    }
    if options.runs == 0 || options.cases.is_empty() || options.sides.is_empty() {
        return bad("nothing to run: at least one run, case and side are needed".into());
    }
    if options.sides.contains(&Side::Model) && options.model.is_none() {
        return Err(LabError::Model("not part of this build".into()));
    }
    Ok(())
}
