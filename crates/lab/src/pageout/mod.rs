//! The S000 experiment: how fast huge pages of which most is zero can be paged out, and what the
//! zero scan costs where nothing is zero.

use serde::Serialize;

use crate::experiment::{Experiment, Lab, Tell, bad, something};
use crate::host;
use crate::host::thp::Thp;
use crate::machines::Machines;
use crate::program::pageout::Content;
use crate::size::{self, BLOCK};
use crate::steps::steps;
use crate::{LabError, Side, floor, model};

mod measure;
mod report;

pub use measure::Stored;
use measure::{Bench, Measured};
pub use report::{PageoutRow, Ratio};

/// Anonymous memory that may be left beside the store after paging out, as a part of the size.
pub(crate) const LEFT: f64 = 0.02;

named! {
    /// What the pages hold.
    pub enum Case {
        /// One byte in the first page of each block; 511 pages are zero.
        Best = "best",
        /// The last byte of every page; none is zero, and each is scanned to its end.
        Worst = "worst",
        /// One byte of every page, at a place in its two middle quarters that differs from page to
        /// page: a scan that looks at the ends first cannot guess it. None is zero.
        Middle = "middle",
        /// Every page whole, at lz4 ratio 2.5:1.
        Text = "text",
    }
}

impl Case {
    /// Parses a name, or `all`.
    ///
    /// # Errors
    /// [`LabError::Option`] for anything else.
    pub fn parse(word: &str) -> Result<Cases, LabError> {
        let of = |case: &Case| word == "all" || word == case.name();
        match Self::ALL.into_iter().filter(of).collect::<Cases>() {
            none if none.is_empty() => bad(format!(
                "unknown case '{word}' (known: best, worst, middle, text, all)"
            )),
            cases => Ok(cases),
        }
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

/// Some cases, in the order of the report. By this name, since clap splits what is a `Vec`.
pub type Cases = Vec<Case>;

/// The experiment. Live and kernel runs alternate.
#[derive(Clone, Debug, clap::Args)]
pub struct Pageout {
    /// Size of the mapping, a multiple of 2M.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    pub size: usize,
    /// Content of the pages: best, worst, middle, text or all.
    #[arg(long = "case", value_name = "CASE", default_value = "all", value_parser = Case::parse)]
    pub cases: Cases,
    /// Where to run, separated by commas.
    #[arg(long = "on", value_delimiter = ',', default_value = "live,kernel")]
    pub sides: Vec<Side>,
    /// Timed runs on each side.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
}

/// What a target is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Of {
    /// The case.
    pub case: Case,
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<6} ", self.case)
    }
}

impl Experiment for Pageout {
    fn measure(&self, lab: &Lab) -> Result<(Vec<PageoutRow>, Vec<(Case, f64)>), LabError> {
        self.check()?;
        // Same-filled and incompressible pages fit too.
        let swap = self.size + self.size / 4 + (64 << 20);
        let mut machines = Machines::new(lab, Self::NAME, &self.sides, Some(swap))?;
        if let Some(guard) = machines.host() {
            // What the host has by default; the shrinker is not part of this experiment.
            let thp = Thp {
                max_ptes_none: 511,
                shrink_underused: true,
            };
            thp.set(guard, "always")?;
        }
        let all = self.cases.len() * self.sides.len() * (self.runs as usize + 1);
        let bar = steps(all as u64, Self::NAME);
        let (mut rows, mut floors) = (Vec::new(), Vec::new());
        for &case in &self.cases {
            let bench = Bench {
                size: self.size,
                case,
                machines: &machines,
            };
            let mut timed: Vec<Measured> =
                machines.sides.iter().map(|_| Measured::default()).collect();
            for _ in 0..self.runs {
                for (side, measured) in machines.sides.iter().zip(&mut timed) {
                    bench.timed_run(*side, measured)?;
                    machines.undisturbed()?;
                    bar.inc(1);
                }
            }
            for (side, measured) in machines.sides.iter().zip(timed) {
                rows.push(bench.checked_row(*side, measured)?);
                bar.inc(1);
            }
            if self.sides.contains(&Side::Model) {
                let mut runs = Vec::new();
                for _ in 0..self.runs {
                    runs.push(model::pageout::run(case, self.size)?);
                    bar.inc(1);
                }
                rows.extend(PageoutRow::of_model(case, &runs));
            }
            floors.push((case, floor::measure(self.size, case.content())?));
        }
        bar.finish_and_clear();
        machines.finish()?;
        Ok((rows, floors))
    }
}

impl Pageout {
    fn check(&self) -> Result<(), LabError> {
        if self.size == 0 || !self.size.is_multiple_of(BLOCK) {
            let bytes = self.size;
            return bad(format!(
                "--size: {bytes} bytes are no multiple of 2M, the size of a huge page"
            ));
        }
        if self.sides.iter().any(|side| *side != Side::Model) {
            // All of it is resident before it is paged out, and a little more while the host warms.
            let size = self.size as u64;
            host::fits(size, size.saturating_add(size / 16))?;
        }
        something(self.runs, &self.sides, &[self.cases.len()])
    }
}
