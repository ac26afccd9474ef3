//! The report of the underused experiment.

use std::fmt::Write;

use serde::Serialize;

use super::{META, Of, Run, Setting, Underused};
use crate::Side;
use crate::experiment::{Json, Report, Target, Tell};
use crate::figures::{Kept, Mean};
use crate::plot::{Bar, Panel, bars};
use crate::program::underused::Program;
use crate::size::human;
use crate::table::Column::{self, Left, Right};
use crate::table::{or_dash, table};

/// What the series reported in 2024 of Meta's production machines, against huge pages on request.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Published {
    setting: Setting,
    speed_pct: f64,
    memory_pct: f64,
}

pub(super) const PUBLISHED: [Published; 2] = [
    Published {
        setting: Setting::Always,
        speed_pct: 1.8,
        memory_pct: 7.7,
    },
    Published {
        setting: META,
        speed_pct: 1.7,
        memory_pct: 2.4,
    },
];

/// Of the extra memory of `always`, what the shrinker may leave.
const KEPT_MEMORY: f64 = 1.0 / 3.0;
/// Of the speed that `always` gains, what the shrinker must leave: as published, 1.7 of 1.8.
const KEPT_GAIN: f64 = 0.94;
/// A gain is one from so many standard errors on.
const ERRORS: f64 = 3.0;

/// One setting of one program on one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct UnderusedRow {
    /// The program.
    pub program: Program,
    /// The setting.
    pub setting: Setting,
    /// Mean time of the runs, in seconds; none on the model, which has no speed.
    pub time_s: Option<f64>,
    /// Its standard error; none for less than two runs.
    pub time_error_s: Option<f64>,
    /// The time of each run, in their order.
    pub runs_s: Vec<f64>,
    /// The most memory, in bytes: anonymous memory of all processes, with whatever manages it;
    /// like all that follows, of the run in the middle by settled memory.
    pub peak_bytes: u64,
    /// Memory after pressure and a pause, in bytes.
    pub settled_bytes: u64,
    /// The same of each run, in their order.
    pub settled_runs_bytes: Vec<u64>,
    /// Huge pages left then, in bytes.
    pub huge_bytes: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Huge pages split because they were underused.
    pub underused_splits: u64,
    /// Pages dropped by the shrinker that were soon written again; none on the kernel, which
    /// does not count them.
    pub retouches: Option<u64>,
    /// Above this there was pressure, in bytes.
    pub high_bytes: u64,
    /// How memory was told: what a cgroup is charged for, the sum of Pss_Anon, or the model's
    /// account.
    pub gauge: &'static str,
    /// The side.
    pub on: Side,
}

impl UnderusedRow {
    /// Of so many runs; none, none.
    pub(super) fn new(
        on: Side,
        program: Program,
        setting: Setting,
        (high_bytes, gauge): (u64, &'static str),
        runs: &[Run],
    ) -> Option<Self> {
        let mut by_settled = runs.to_vec();
        by_settled.sort_by_key(|run| run.settled);
        let middle = by_settled.get(runs.len() / 2)?;
        let times: Vec<f64> = runs.iter().filter_map(|run| run.time_s).collect();
        let time = Mean::of(times.iter().copied());
        Some(Self {
            program,
            setting,
            time_s: (!times.is_empty()).then_some(time.mean),
            time_error_s: time.error,
            runs_s: times,
            peak_bytes: middle.peak,
            settled_bytes: middle.settled,
            settled_runs_bytes: runs.iter().map(|run| run.settled).collect(),
            huge_bytes: middle.huge,
            splits: middle.splits,
            underused_splits: middle.underused_splits,
            retouches: middle.retouches,
            high_bytes,
            gauge,
            on,
        })
    }

    fn time(&self) -> Option<Mean> {
        let error = self.time_error_s;
        self.time_s.map(|mean| Mean { mean, error })
    }

    fn settled(&self) -> Mean {
        Mean::of(self.settled_runs_bytes.iter().map(|bytes| *bytes as f64))
    }
}

fn row(
    rows: &[UnderusedRow],
    on: Side,
    program: Program,
    setting: Setting,
) -> Option<&UnderusedRow> {
    let mut rows = rows.iter();
    rows.find(|r| (r.on, r.program, r.setting) == (on, program, setting))
}

/// What is wanted of the live shrinker.
pub(super) fn targets(rows: &[UnderusedRow]) -> Vec<Target<Of>> {
    let mut all = Vec::new();
    for program in Program::ALL {
        let of = |setting| row(rows, Side::Live, program, setting);
        let (Some(madvise), Some(always)) = (of(Setting::Madvise), of(Setting::Always)) else {
            continue;
        };
        for shrink in [META, Setting::Deckle].into_iter().filter_map(of) {
            let setting = shrink.setting;
            let target = |what, at_least, want, kept: Kept| Target {
                error: kept.error,
                ..Target::new(Of { program, setting }, what, at_least, want, kept.share)
            };
            let extra = always.settled().mean > madvise.settled().mean;
            if matches!(program, Program::Sparse | Program::Churn) && extra {
                let found = Kept::of(madvise.settled(), always.settled(), shrink.settled());
                let what = "of the extra memory of always, kept";
                all.push(target(what, false, KEPT_MEMORY, found));
            }
            if let Some(found) = kept(madvise, always, shrink) {
                let what = "of the speed that always gains, kept";
                all.push(target(what, true, KEPT_GAIN, found));
            }
        }
    }
    all
}

/// What `shrink` keeps of the speed that `always` gains over `madvise`; none where that is no
/// more than chance.
fn kept(madvise: &UnderusedRow, always: &UnderusedRow, shrink: &UnderusedRow) -> Option<Kept> {
    let [m, a, s] = [madvise.time()?, always.time()?, shrink.time()?];
    let error = m.error?.hypot(a.error?);
    (m.mean - a.mean >= ERRORS * error && m.mean > a.mean)
        .then(|| Kept::of(m.inverse(), a.inverse(), s.inverse()))
}

/// A row, and by how many percent it is faster and larger than `madvise` beside it.
type Line = (UnderusedRow, Option<f64>, Option<f64>);

const COLUMNS: [Column<Line>; 10] = [
    Left("setting", |(r, ..)| r.setting.to_string()),
    Right("time", |(r, ..)| ms(r.time_s)),
    Right("+-", |(r, ..)| ms(r.time_error_s)),
    Right("speed", |(_, speed, _)| percent(*speed)),
    Right("peak", |(r, ..)| human(r.peak_bytes)),
    Right("settled", |(r, ..)| human(r.settled_bytes)),
    Right("memory", |(_, _, memory)| percent(*memory)),
    Right("huge", |(r, ..)| human(r.huge_bytes)),
    Right("splits", |(r, ..)| r.splits.to_string()),
    Right("re-touch", |(r, ..)| or_dash(r.retouches)),
];

fn ms(seconds: Option<f64>) -> String {
    or_dash(seconds.map(|s| format!("{:.0} ms", s * 1e3)))
}

fn percent(change: Option<f64>) -> String {
    or_dash(change.map(|change| format!("{change:+.1} %")))
}

fn line(rows: &[UnderusedRow], r: &UnderusedRow) -> Line {
    let madvise = row(rows, r.on, r.program, Setting::Madvise);
    let speed = madvise.and_then(|m| Some((m.time_s? / r.time_s? - 1.0) * 100.0));
    let memory = madvise.map(|m| r.settled_bytes as f64 / m.settled_bytes as f64 - 1.0);
    (r.clone(), speed, memory.map(|x| x * 100.0))
}

/// The rows of a program on a side, by setting.
fn sorted(rows: &[UnderusedRow], on: Side, program: Program) -> Vec<&UnderusedRow> {
    let of = rows.iter().filter(|r| (r.on, r.program) == (on, program));
    let mut of: Vec<&UnderusedRow> = of.collect();
    of.sort_by_key(|r| r.setting);
    of
}

/// For each side a line, for each program a panel, for each setting a bar of settled memory.
pub(super) fn plot(rows: &[UnderusedRow]) -> Option<String> {
    let panel = |on: Side, program: Program| {
        let rows = sorted(rows, on, program);
        let most = rows.iter().map(|r| r.settled_bytes).max()?.max(1);
        let bar = |r: &&UnderusedRow| {
            let part = |bytes: u64| bytes as f64 / most as f64;
            let huge = r.huge_bytes.min(r.settled_bytes);
            Bar {
                name: match r.setting {
                    Setting::Madvise => "adv".into(),
                    Setting::Always => "alw".into(),
                    Setting::Shrink(n) => n.to_string(),
                    Setting::Deckle => "dkl".into(),
                },
                value: (r.settled_bytes >> 20).to_string(),
                parts: vec![(part(r.settled_bytes), "#9cf"), (part(huge), "#369")],
            }
        };
        let title = format!("{program} on {on}");
        let bars = rows.iter().map(bar).collect();
        Some(Panel { title, bars })
    };
    let line = |on| {
        Program::ALL
            .into_iter()
            .filter_map(|p| panel(on, p))
            .collect::<Vec<_>>()
    };
    let lines = Side::ALL
        .map(line)
        .into_iter()
        .filter(|line| !line.is_empty());
    let lines: Vec<Vec<Panel>> = lines.collect();
    let title = "Memory after pressure, MiB; dark: in huge pages";
    (!lines.is_empty()).then(|| bars(title, &[], &lines))
}

impl Tell for Underused {
    const NAME: &'static str = "underused";
    const WANTED: &'static str = "wanted, on live";
    type Row = UnderusedRow;
    /// Programs whose command is not on this system: left out, and named on stderr, too.
    type More = Vec<Program>;
    type Of = Of;

    fn text(report: &Report<Self>) -> String {
        let mut text = String::from(
            "underused: huge pages on request (madvise), everywhere (always), and everywhere with \
             those split\nunder pressure that have more than N zero pages (shrink-N)\n",
        );
        let all = &report.rows;
        for program in Program::ALL {
            for on in Side::ALL {
                let lines: Vec<Line> = sorted(all, on, program)
                    .into_iter()
                    .map(|r| line(all, r))
                    .collect();
                if let Some((first, ..)) = lines.first() {
                    let gauge = first.gauge;
                    let _ = writeln!(text, "\n{program} on {on} (memory: {gauge})");
                    table(&mut text, 2, &COLUMNS, &lines, |_| None);
                }
            }
        }
        for program in &report.more {
            let _ = writeln!(
                text,
                "\nSKIPPED {program}: its command is not on this system"
            );
        }
        for of in &PUBLISHED {
            let (setting, speed, memory) = (of.setting, of.speed_pct, of.memory_pct);
            let _ = writeln!(
                text,
                "\npublished (Meta, production), {setting}: {speed:+.1} % speed, {memory:+.1} % \
                 memory"
            );
            for r in all.iter().filter(|r| r.setting == setting) {
                if let (r, Some(speed), Some(memory)) = line(all, r) {
                    let (program, on) = (r.program, r.on);
                    let _ = writeln!(
                        text,
                        "  here {program} on {on}: {speed:+.1} % speed, {memory:+.1} % memory"
                    );
                }
            }
        }
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        json.with("rows", &report.rows)
            .with("skipped", &report.more)
            .with("targets", &report.targets())
            .with("published", &PUBLISHED)
    }

    fn targets(report: &Report<Self>) -> Vec<Target<Of>> {
        targets(&report.rows)
    }

    fn plot(report: &Report<Self>) -> Option<String> {
        plot(&report.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(time_s: f64, settled_mib: u64) -> Run {
        Run {
            time_s: Some(time_s),
            peak: 200 << 20,
            settled: settled_mib << 20,
            huge: 2 << 20,
            splits: 3,
            underused_splits: 2,
            retouches: Some(1),
        }
    }

    fn of_rows(rows: impl IntoIterator<Item = Option<UnderusedRow>>) -> Report<Underused> {
        let options = Underused {
            sides: Side::ALL.to_vec(),
            programs: Program::ALL.to_vec(),
            settings: Setting::ALL.to_vec(),
            runs: 2,
        };
        Report {
            options,
            rows: rows.into_iter().flatten().collect(),
            more: Vec::new(),
        }
    }

    fn report(always: f64, shrink: u64) -> Report<Underused> {
        let row = |setting, a: Run, b: Run| {
            UnderusedRow::new(
                Side::Live,
                Program::Churn,
                setting,
                (1 << 20, "cgroup"),
                &[a, b],
            )
        };
        of_rows([
            row(Setting::Madvise, run(1.0, 60), run(1.02, 60)),
            row(Setting::Always, run(always, 120), run(always + 0.02, 120)),
            row(META, run(0.95, shrink), run(0.95, shrink)),
        ])
    }

    #[test]
    fn r138_the_report_has_the_promised_shape() {
        let json: serde_json::Value = serde_json::from_str(&report(0.9, 70).to_json()).unwrap();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["experiment"], "underused");
        let row = &json["rows"][0];
        assert_eq!(row["program"], "churn");
        assert_eq!(row["setting"], "madvise");
        assert_eq!(row["on"], "live");
        assert!((row["time_s"].as_f64().unwrap() - 1.01).abs() < 1e-9);
        for (name, value) in [
            ("peak_bytes", 200 << 20),
            ("settled_bytes", 60 << 20),
            ("huge_bytes", 2 << 20),
            ("splits", 3),
            ("retouches", 1),
        ] {
            assert_eq!(row[name], value, "{name}");
        }
        assert_eq!(json["published"][0]["memory_pct"], 7.7);
        assert_eq!(json["rows"][2]["setting"], "shrink-409");
    }

    #[test]
    fn r138_targets_are_judged_where_there_is_something_to_keep() {
        let targets = report(0.8, 70).targets();
        assert_eq!(targets.len(), 2, "{targets:?}");
        assert!((targets[0].found - 1.0 / 6.0).abs() < 1e-9 && targets[0].holds);
        assert!(!targets[1].holds, "{targets:?}");
        // A gain within the noise is none; memory that stays is told.
        let targets = report(0.99, 110).targets();
        assert_eq!(targets.len(), 1, "{targets:?}");
        assert!(!targets[0].holds);
        let text = report(0.8, 70).to_text();
        assert!(
            text.contains("yes churn") && text.contains("NO  churn"),
            "{text}"
        );
        assert!(text.contains("here churn on live"), "{text}");
    }

    #[test]
    fn r138_each_setting_has_a_bar() {
        let row = |setting, mib| {
            UnderusedRow::new(
                Side::Model,
                Program::Sparse,
                setting,
                (0, "model"),
                &[run(1.0, mib)],
            )
        };
        let picture = of_rows([row(Setting::Madvise, 20), row(META, 77)])
            .to_svg()
            .unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(
            picture.contains("sparse on model") && picture.contains(">77<"),
            "{picture}"
        );
        assert!(
            picture.contains(">409<") && !picture.contains("NaN"),
            "{picture}"
        );
        assert!(of_rows([]).to_svg().is_err());
    }
}
