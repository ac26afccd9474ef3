//! What all experiments have in common: rows are measured on some sides, told as text, as JSON and
//! as a picture, and compared with what is wanted.

use std::ffi::OsString;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::child::{Finished, Running};
use crate::{LabError, Side};

/// How an experiment is called, and what is said of what it came to.
pub trait Tell: Sized {
    /// Its name on the command line and in JSON.
    const NAME: &'static str;
    /// The title of what is wanted.
    const WANTED: &'static str = "wanted";
    /// One line of the report.
    type Row;
    /// What is reported beside the rows.
    type More;
    /// What a target is about.
    type Of: Serialize + fmt::Display;

    /// The report for people, without what is wanted.
    fn text(report: &Report<Self>) -> String;

    /// The fields of the report for programs.
    fn json(report: &Report<Self>, json: Json) -> Json;

    /// What is wanted and can be told from the rows.
    fn targets(_report: &Report<Self>) -> Vec<Target<Self::Of>> {
        Vec::new()
    }

    /// True if the result is not as it must be.
    fn failed(_report: &Report<Self>) -> bool {
        false
    }

    /// The picture as SVG; none if there is nothing to draw.
    fn plot(_report: &Report<Self>) -> Option<String> {
        None
    }
}

/// An experiment, by its options.
pub trait Experiment: Tell {
    /// Runs it.
    ///
    /// # Errors
    /// Options that make no sense, a side that cannot be run here, a workload that fails, settings
    /// that were disturbed or could not be given back.
    fn measure(&self, lab: &Lab) -> Result<(Vec<Self::Row>, Self::More), LabError>;

    /// Whether there will be something to draw.
    ///
    /// # Errors
    /// Why there will not.
    fn may_plot(&self) -> Result<(), LabError> {
        Ok(())
    }

    /// Runs it, for its report.
    ///
    /// # Errors
    /// Those of [`Experiment::measure`].
    fn run(self, lab: &Lab) -> Result<Report<Self>, LabError> {
        let (rows, more) = self.measure(lab)?;
        Ok(Report {
            options: self,
            rows,
            more,
        })
    }
}

/// What an experiment came to.
#[derive(Clone, Debug)]
pub struct Report<E: Tell> {
    /// What was run.
    pub options: E,
    /// What was measured.
    pub rows: Vec<E::Row>,
    /// What beside the rows.
    pub more: E::More,
}

impl<E: Tell> Report<E> {
    /// The report for people.
    pub fn to_text(&self) -> String {
        let mut text = E::text(self);
        let targets = self.targets();
        let of: Vec<String> = targets
            .iter()
            .map(|t| format!("{}{}", t.of, t.what))
            .collect();
        let wide = of.iter().map(String::len).max().unwrap_or(0);
        for (i, (t, of)) in targets.iter().zip(of).enumerate() {
            if i == 0 {
                let _ = writeln!(text, "\n{}", E::WANTED);
            }
            let holds = if t.holds { "yes" } else { "NO" };
            let bound = match t.at_least {
                Some(true) => "at least",
                _ => "at most",
            };
            let (want, found) = (t.want, t.found);
            let error = t.error.map_or(String::new(), |e| format!(" +- {e:.3}"));
            let _ = writeln!(
                text,
                "  {holds:<3} {of:<wide$}  {bound} {want:.2}: {found:.3}{error}"
            );
        }
        text
    }

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        let name = E::NAME;
        let begin = Json(format!(r#"{{"schema":1,"experiment":"{name}""#));
        E::json(self, begin).0 + "}"
    }

    /// The picture as SVG.
    ///
    /// # Errors
    /// If there is nothing to draw.
    pub fn to_svg(&self) -> Result<String, LabError> {
        let none = || LabError::Option("--plot: no row to draw".into());
        E::plot(self).ok_or_else(none)
    }

    /// What is wanted and can be told from the rows.
    pub fn targets(&self) -> Vec<Target<E::Of>> {
        E::targets(self)
    }

    /// True if the result is not as it must be: a row does not count, or sides disagree.
    pub fn failed(&self) -> bool {
        E::failed(self)
    }

    /// True if a target is missed.
    pub fn misses(&self) -> bool {
        self.targets().iter().any(|target| !target.holds)
    }
}

/// An object of JSON that is being written, its fields in their order.
pub struct Json(String);

impl Json {
    /// Adds a field.
    pub fn with(mut self, key: &str, value: &(impl Serialize + ?Sized)) -> Self {
        let value = serde_json::to_string(value).expect("numbers, names, and lists of them");
        let _ = write!(self.0, r#","{key}":{value}"#);
        self
    }

    /// Adds a list, unless it is empty.
    pub fn with_some<T: Serialize>(self, key: &str, all: &[T]) -> Self {
        if all.is_empty() {
            return self;
        }
        self.with(key, all)
    }
}

/// Something that is wanted of the rows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Target<Of> {
    /// Of which of them.
    #[serde(flatten)]
    pub of: Of,
    /// What.
    pub what: &'static str,
    /// At least so much, or at most; none where all targets are at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<bool>,
    /// How much.
    pub want: f64,
    /// What was measured.
    pub found: f64,
    /// Its standard error, where that is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Whether it is so; of what could not be measured nothing holds.
    pub holds: bool,
}

impl<Of> Target<Of> {
    /// At least `want` is wanted, or at most.
    pub fn new(of: Of, what: &'static str, at_least: bool, want: f64, found: f64) -> Self {
        Self {
            holds: if at_least {
                found >= want
            } else {
                found <= want
            },
            at_least: Some(at_least),
            of,
            what,
            want,
            found,
            error: None,
        }
    }
}

/// Of all rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct All {}

impl fmt::Display for All {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The programs that an experiment runs; by default none, which is enough for the model alone.
#[derive(Clone, Debug, Default)]
pub struct Lab {
    /// The `deckle` binary, for the live side.
    pub deckle: PathBuf,
    /// Command in front of a workload's name and arguments, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
}

impl Lab {
    /// The command of a workload on a side: `live` are the options of `deckle run` there, `stats`
    /// is where it writes its statistics.
    pub(crate) fn command(
        &self,
        side: Side,
        live: impl IntoIterator<Item = OsString>,
        stats: Option<&Path>,
        program: &str,
    ) -> Vec<OsString> {
        let mut command: Vec<OsString> = Vec::new();
        if side == Side::Live {
            command.extend([self.deckle.clone().into(), "run".into()]);
            command.extend(live);
            command.extend(
                stats
                    .into_iter()
                    .flat_map(|path| ["--stats".into(), path.into()]),
            );
            command.push("--".into());
        }
        command.extend(self.program_cmd.iter().cloned());
        command.extend(words(program));
        command
    }

    /// Has so many bytes touched and freed, so that the run that is next finds them at hand.
    pub(crate) fn warm(&self, bytes: usize) -> Result<Finished, LabError> {
        let command = self.command(Side::Kernel, [], None, &format!("warm {bytes}"));
        Running::start("warming", &command, Vec::new())?.succeed()
    }
}

/// The words of a command that has no spaces in them.
pub(crate) fn words(text: &str) -> impl Iterator<Item = OsString> {
    text.split_whitespace().map(OsString::from)
}

/// How often something may be run.
pub(crate) fn runs() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=100)
}

/// Refuses options with a reason.
pub(crate) fn bad<T>(why: impl Into<String>) -> Result<T, LabError> {
    Err(LabError::Option(why.into()))
}

/// Refuses a list in which something is named twice.
pub(crate) fn once<T: PartialEq + fmt::Display>(option: &str, all: &[T]) -> Result<(), LabError> {
    match (1..all.len()).find(|&i| all[..i].contains(&all[i])) {
        Some(i) => bad(format!("{option}: {} is named twice", all[i])),
        None => Ok(()),
    }
}

/// Refuses to run nothing: no side, no run, or an empty one of the lists.
pub(crate) fn something(runs: u32, sides: &[Side], lists: &[usize]) -> Result<(), LabError> {
    if runs == 0 || sides.is_empty() || lists.contains(&0) {
        return bad("nothing to run: at least one run, side, and entry of each list are needed");
    }
    once("--on", sides)
}
