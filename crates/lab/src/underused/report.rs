//! The report of the underused experiment, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::{META, Run, Setting, plot};
use crate::program::underused::Program;
use crate::size;
use crate::{LabError, Side, wanted};

/// What the series reported in 2024 of Meta's production machines, against huge pages on request:
/// setting, speed and memory in percent.
const PUBLISHED: [(Setting, f64, f64); 2] = [(Setting::Always, 1.8, 7.7), (META, 1.7, 2.4)];

/// Of the extra memory of `always`, what the shrinker may leave.
const KEPT_MEMORY: f64 = 1.0 / 3.0;
/// Of the speed that `always` gains, what the shrinker must leave: as published, 1.7 of 1.8.
const KEPT_GAIN: f64 = 0.94;
/// A gain is one from so many standard errors on.
const ERRORS: f64 = 3.0;

/// One setting of one program on one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct UnderusedRow {
    /// The program's name.
    pub program: &'static str,
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
    /// The side.
    pub on: Side,
}

/// Something that is wanted of the shrinker.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Target {
    /// The program's name.
    pub program: &'static str,
    /// With which shrinker.
    pub setting: Setting,
    /// What.
    pub what: &'static str,
    /// At least so much, or at most.
    pub at_least: bool,
    /// How much.
    pub want: f64,
    /// What was measured.
    pub found: f64,
    /// Whether it is so.
    pub holds: bool,
}

/// All rows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct UnderusedReport {
    /// One row for each side, program and setting.
    pub rows: Vec<UnderusedRow>,
    /// Programs whose command is not on this system.
    pub skipped: Vec<&'static str>,
}

#[derive(Serialize)]
struct Published {
    setting: Setting,
    speed_pct: f64,
    memory_pct: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    experiment: &'static str,
    rows: &'a [UnderusedRow],
    skipped: &'a [&'static str],
    targets: Vec<Target>,
    published: Vec<Published>,
}

impl UnderusedReport {
    /// Adds a row of so many runs; none, none.
    pub(super) fn add(
        &mut self,
        on: Side,
        program: Program,
        setting: Setting,
        high: u64,
        runs: &[Run],
    ) {
        let mut by_settled = runs.to_vec();
        by_settled.sort_by_key(|run| run.settled);
        let Some(middle) = by_settled.get(runs.len() / 2) else {
            return;
        };
        let times: Vec<f64> = runs.iter().filter_map(|run| run.time_s).collect();
        let n = times.len() as f64;
        let mean = (!times.is_empty()).then(|| times.iter().sum::<f64>() / n);
        let error = mean.filter(|_| n > 1.0).map(|mean| {
            let squares: f64 = times.iter().map(|t| (t - mean) * (t - mean)).sum();
            (squares / (n - 1.0) / n).sqrt()
        });
        self.rows.push(UnderusedRow {
            program: program.name(),
            setting,
            time_s: mean,
            time_error_s: error,
            runs_s: times,
            peak_bytes: middle.peak,
            settled_bytes: middle.settled,
            huge_bytes: middle.huge,
            splits: middle.splits,
            underused_splits: middle.underused_splits,
            retouches: middle.retouches,
            high_bytes: high,
            on,
        });
    }

    fn row(&self, on: Side, program: &str, setting: Setting) -> Option<&UnderusedRow> {
        let mut rows = self.rows.iter();
        rows.find(|r| (r.on, r.program, r.setting) == (on, program, setting))
    }

    /// What is wanted of the live shrinker and can be told from these rows.
    pub fn targets(&self) -> Vec<Target> {
        let mut all = Vec::new();
        for program in Program::ALL.map(Program::name) {
            let of = |setting| self.row(Side::Live, program, setting);
            let (Some(madvise), Some(always)) = (of(Setting::Madvise), of(Setting::Always)) else {
                continue;
            };
            let over = |r: &UnderusedRow| r.settled_bytes as f64 - madvise.settled_bytes as f64;
            for shrink in [META, Setting::Deckle].into_iter().filter_map(of) {
                let mut add = |what, at_least, want, found: f64| {
                    all.push(Target {
                        program,
                        setting: shrink.setting,
                        what,
                        at_least,
                        want,
                        found,
                        holds: wanted::holds(at_least, want, found),
                    });
                };
                if ["sparse", "churn"].contains(&program) && over(always) > 0.0 {
                    let what = "of the extra memory of always, kept";
                    add(what, false, KEPT_MEMORY, over(shrink) / over(always));
                }
                // Sparse gains only what its first faults cost less: judged on memory.
                if let (Some(found), true) = (kept(madvise, always, shrink), program != "sparse") {
                    add(
                        "of the speed that always gains, kept",
                        true,
                        KEPT_GAIN,
                        found,
                    );
                }
            }
        }
        all
    }

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        let published = PUBLISHED.map(|(setting, speed_pct, memory_pct)| Published {
            setting,
            speed_pct,
            memory_pct,
        });
        let json = Json {
            schema: 1,
            experiment: "underused",
            rows: &self.rows,
            skipped: &self.skipped,
            targets: self.targets(),
            published: published.into(),
        };
        serde_json::to_string(&json).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }

    /// The report as tables.
    pub fn to_text(&self) -> String {
        let mut text = String::from(
            "underused: huge pages on request (madvise), everywhere (always), and everywhere with \
             those split\nunder pressure that have more than N zero pages (shrink-N)\n",
        );
        for program in Program::ALL.map(Program::name) {
            for on in [Side::Live, Side::Kernel, Side::Model] {
                self.table(&mut text, on, program);
            }
        }
        for program in &self.skipped {
            let _ = writeln!(
                text,
                "\nSKIPPED {program}: its command is not on this system"
            );
        }
        for (setting, speed, memory) in PUBLISHED {
            let _ = writeln!(
                text,
                "\npublished (Meta, production), {}: {speed:+.1} % speed, {memory:+.1} % memory{}",
                setting.name(),
                self.changes(setting)
            );
        }
        let line = |t: Target| {
            let of = format!("{:<8} {:<11} {:<36}", t.program, t.setting.name(), t.what);
            let bound = wanted::bound(t.at_least);
            (t.holds, format!("{of} {bound} {:.2}", t.want), t.found)
        };
        wanted::write(
            &mut text,
            "wanted, on live",
            self.targets().into_iter().map(line),
        );
        text
    }

    fn table(&self, text: &mut String, on: Side, program: &str) {
        let of = |r: &&UnderusedRow| r.on == on && r.program == program;
        let mut rows: Vec<&UnderusedRow> = self.rows.iter().filter(of).collect();
        rows.sort_by_key(|r| r.setting);
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\n{program} on {on}\n  {:<11} {:>8} {:>7} {:>7} {:>10} {:>10} {:>8} {:>10} \
             {:>7} {:>9}",
            "setting",
            "time",
            "+-",
            "speed",
            "peak",
            "settled",
            "memory",
            "huge",
            "splits",
            "re-touch",
        );
        for r in rows {
            let percent = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:+.1} %"));
            let ms = |n: Option<f64>| n.map_or("-".into(), |n| format!("{:.0} ms", n * 1e3));
            let (speed, memory) = self.change(r);
            let _ = writeln!(
                text,
                "  {:<11} {:>8} {:>7} {:>7} {:>10} {:>10} {:>8} {:>10} {:>7} {:>9}",
                r.setting.name(),
                ms(r.time_s),
                ms(r.time_error_s),
                percent(speed),
                size::human(r.peak_bytes),
                size::human(r.settled_bytes),
                percent(memory),
                size::human(r.huge_bytes),
                r.splits,
                r.retouches.map_or("-".into(), |n| n.to_string()),
            );
        }
    }

    /// By how many percent a row is faster and larger than `madvise` beside it.
    fn change(&self, r: &UnderusedRow) -> (Option<f64>, Option<f64>) {
        let madvise = self.row(r.on, r.program, Setting::Madvise);
        let speed = madvise.and_then(|m| Some((m.time_s? / r.time_s? - 1.0) * 100.0));
        let memory = madvise.map(|m| r.settled_bytes as f64 / m.settled_bytes as f64 - 1.0);
        (speed, memory.map(|x| x * 100.0))
    }

    /// Ours beside the published figures.
    fn changes(&self, setting: Setting) -> String {
        let mut text = String::new();
        let rows = self.rows.iter().filter(|r| r.setting == setting);
        for r in rows {
            if let (Some(speed), Some(memory)) = self.change(r) {
                let _ = write!(
                    text,
                    "\n  here {} on {}: {speed:+.1} % speed, {memory:+.1} % memory",
                    r.program, r.on
                );
            }
        }
        text
    }

    /// A picture: settled memory of each row.
    ///
    /// # Errors
    /// No rows.
    pub fn to_svg(&self) -> Result<String, LabError> {
        match self.rows.is_empty() {
            true => Err(LabError::Option("nothing was run: no picture".into())),
            false => Ok(plot::svg(&self.rows)),
        }
    }
}

/// What `shrink` keeps of the speed that `always` gains over `madvise`; none where that is no
/// more than chance.
fn kept(madvise: &UnderusedRow, always: &UnderusedRow, shrink: &UnderusedRow) -> Option<f64> {
    let (m, a, s) = (madvise.time_s?, always.time_s?, shrink.time_s?);
    let error = madvise.time_error_s?.hypot(always.time_error_s?);
    (m - a >= ERRORS * error && m > a).then(|| (m / s - 1.0) / (m / a - 1.0))
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

    fn report(always: f64, shrink: u64) -> UnderusedReport {
        let mut report = UnderusedReport::default();
        let mut add = |setting, runs: &[Run]| {
            report.add(Side::Live, Program::Churn, setting, 1 << 20, runs);
        };
        add(Setting::Madvise, &[run(1.0, 60), run(1.02, 60)]);
        add(
            Setting::Always,
            &[run(always, 120), run(always + 0.02, 120)],
        );
        add(META, &[run(0.95, shrink), run(0.95, shrink)]);
        report
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
}
