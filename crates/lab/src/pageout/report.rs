//! The report of the pageout experiment, and what is wanted of the live side. The bounds are for
//! `--size 4G`: what does not grow with the size weighs more in a smaller one.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::measure::{Measured, Stored};
use super::{Case, Of, Pageout};
use crate::Side;
use crate::experiment::{Json, Report, Target, Tell};
use crate::figures::median;
use crate::model::pageout::ModelPageout;
use crate::size::human;
use crate::table::Column::{self, Left, Right};
use crate::table::table;

/// What the model's times are of.
const SIMULATION: &str = "simulation";
/// Most of the kernel's CPU time that the live side may take.
const CPU: f64 = 1.0;
/// How many times the floor's seconds the live side may take in the best case.
const FLOOR: f64 = 1.6;

/// Most of the kernel's wall time that the live side may take.
const fn time(case: Case) -> f64 {
    match case {
        Case::Best => 0.4,
        Case::Worst => 0.25,
        Case::Middle => 0.3,
        Case::Text => 0.6,
    }
}

/// One side of one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PageoutRow {
    /// The side.
    pub on: Side,
    /// The case.
    pub case: Case,
    /// Median wall time of the whole process, in seconds.
    pub median_s: f64,
    /// All of them, in the order of the runs.
    pub runs_s: Vec<f64>,
    /// Median CPU time of the process tree, user and system, in seconds.
    pub cpu_s: f64,
    /// Zero-filled pages that were dropped.
    pub zero_pages: u64,
    /// Pages that were compressed and kept.
    pub stored_pages: u64,
    /// Their size in the store, in bytes.
    pub stored_bytes: u64,
    /// Runs discarded because the machine was cold.
    pub discarded: usize,
    /// `simulation` where the times are those of a simulation, which say nothing about the
    /// machine that it simulates and stay out of every ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_of: Option<&'static str>,
    /// Why the row does not count: wrong bytes, or memory not given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PageoutRow {
    pub(super) fn new(
        on: Side,
        case: Case,
        measured: Measured,
        stored: Stored,
        error: Option<String>,
    ) -> Self {
        Self {
            on,
            case,
            median_s: median(&measured.wall_s),
            runs_s: measured.wall_s,
            cpu_s: median(&measured.cpu_s),
            zero_pages: stored.zero_pages,
            stored_pages: stored.stored_pages,
            stored_bytes: stored.stored_bytes,
            discarded: measured.discarded,
            times_of: (on == Side::Model).then_some(SIMULATION),
            error,
        }
    }

    /// The model's row; none without a run.
    pub(super) fn of_model(case: Case, runs: &[ModelPageout]) -> Option<Self> {
        let measured = Measured {
            wall_s: runs.iter().map(|run| run.wall_s).collect(),
            cpu_s: runs.iter().map(|run| run.cpu_s).collect(),
            discarded: 0,
        };
        let stored = runs.last()?.stored;
        Some(Self::new(Side::Model, case, measured, stored, None))
    }
}

/// How the live side compares with the kernel.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// Wall time, median by median.
    pub live_to_kernel: f64,
    /// CPU time, median by median.
    pub cpu_live_to_kernel: f64,
}

/// What is told of cases, by case.
pub(super) fn by_case<T>(all: impl Iterator<Item = (Case, T)>) -> BTreeMap<Case, T> {
    all.collect()
}

impl Report<Pageout> {
    fn row(&self, on: Side, case: Case) -> Option<&PageoutRow> {
        self.rows
            .iter()
            .find(|row| row.on == on && row.case == case)
    }

    /// Live against kernel, for each case that has both.
    pub fn ratios(&self) -> BTreeMap<Case, Ratio> {
        let ratio = |case| {
            let (live, kernel) = (self.row(Side::Live, case)?, self.row(Side::Kernel, case)?);
            let ratio = Ratio {
                live_to_kernel: live.median_s / kernel.median_s,
                cpu_live_to_kernel: live.cpu_s / kernel.cpu_s,
            };
            Some((case, ratio))
        };
        by_case(Case::ALL.into_iter().filter_map(ratio))
    }

    /// For each case how many times the floor's seconds the live side takes.
    pub fn live_to_floor(&self) -> BTreeMap<Case, f64> {
        let times = |&(case, floor): &(Case, f64)| {
            let live = self.row(Side::Live, case)?;
            Some((case, live.median_s / floor))
        };
        by_case(self.more.iter().filter_map(times))
    }
}

const COLUMNS: [Column<PageoutRow>; 8] = [
    Left("case", |r| r.case.to_string()),
    Left("on", |r| r.on.to_string()),
    Right("median s", |r| format!("{:.3}", r.median_s)),
    Right("cpu s", |r| format!("{:.3}", r.cpu_s)),
    Right("zero pages", |r| r.zero_pages.to_string()),
    Right("stored pages", |r| r.stored_pages.to_string()),
    Right("stored", |r| human(r.stored_bytes)),
    Left("runs s", |r| {
        let mut runs: Vec<String> = r.runs_s.iter().map(|s| format!("{s:.3}")).collect();
        runs.extend(
            r.times_of
                .map(|what| format!(" (times of the {what}, in no ratio)")),
        );
        if r.discarded > 0 {
            runs.push(format!(" ({} cold runs repeated)", r.discarded));
        }
        runs.join(" ")
    }),
];

impl Tell for Pageout {
    const NAME: &'static str = "pageout";
    const WANTED: &'static str = "wanted of live, at 4G";
    type Row = PageoutRow;
    /// For each case, the seconds that zeroing and scanning alone take with all CPUs.
    type More = Vec<(Case, f64)>;
    type Of = Of;

    fn text(report: &Report<Self>) -> String {
        let mut text = format!(
            "pageout: {} in huge pages, MADV_PAGEOUT, unmap; best: 1 page of 512 holds a byte, \
             worst: the last byte of each, middle: a byte in the middle half of each, text: lz4 \
             2.5:1\n\n",
            human(report.options.size as u64)
        );
        let failed = |r: &PageoutRow| r.error.as_ref().map(|error| format!("FAILED: {error}"));
        table(&mut text, 0, &COLUMNS, &report.rows, failed);
        text.push('\n');
        for (case, ratio) in report.ratios() {
            let (time, cpu) = (ratio.live_to_kernel, ratio.cpu_live_to_kernel);
            let _ = writeln!(
                text,
                "{case:6}  live / kernel: {time:.2} of the time, {cpu:.2} of the CPU time"
            );
        }
        let live = report.live_to_floor();
        for (case, seconds) in &report.more {
            let live = live.get(case).map_or(String::new(), |times| {
                format!("; live takes {times:.2} times as long")
            });
            let _ = writeln!(
                text,
                "{case:6}  floor: {seconds:.3} s to zero and scan it once with all CPUs{live}"
            );
        }
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        json.with("size_bytes", &report.options.size)
            .with("rows", &report.rows)
            .with("ratios", &report.ratios())
            .with("floor_s", &by_case(report.more.iter().copied()))
            .with("live_to_floor", &report.live_to_floor())
            .with("wanted", &report.targets())
    }

    /// Beside the kernel the cases that have both sides, beside the floor those that have the live
    /// one. Nothing holds where a row does not count.
    fn targets(report: &Report<Self>) -> Vec<Target<Of>> {
        let (ratios, floors) = (report.ratios(), report.live_to_floor());
        let mut all = Vec::new();
        for case in Case::ALL {
            let counts = |sides: &[Side]| {
                let mut of = report
                    .rows
                    .iter()
                    .filter(|r| r.case == case && sides.contains(&r.on));
                of.all(|r| r.error.is_none())
            };
            let mut most = |what, want, found, counts: bool| {
                let target = Target::new(Of { case }, what, false, want, found);
                all.push(Target {
                    at_least: None,
                    holds: target.holds && counts,
                    ..target
                });
            };
            if let Some(r) = ratios.get(&case) {
                let both = counts(&[Side::Live, Side::Kernel]);
                most("of the kernel's time", time(case), r.live_to_kernel, both);
                most("of its CPU time", CPU, r.cpu_live_to_kernel, both);
            }
            if let (Some(times), Case::Best) = (floors.get(&case), case) {
                most("of the floor", FLOOR, *times, counts(&[Side::Live]));
            }
        }
        all
    }

    /// True if a row does not count.
    fn failed(report: &Report<Self>) -> bool {
        report.rows.iter().any(|row| row.error.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(on: Side, case: Case, wall_s: &[f64], cpu_s: f64) -> PageoutRow {
        let measured = Measured {
            wall_s: wall_s.into(),
            cpu_s: vec![cpu_s],
            discarded: 0,
        };
        let stored = Stored {
            zero_pages: 511,
            stored_pages: 1,
            stored_bytes: 20,
        };
        PageoutRow::new(on, case, measured, stored, None)
    }

    fn of_rows(rows: Vec<PageoutRow>, more: Vec<(Case, f64)>) -> Report<Pageout> {
        let options = Pageout {
            size: 2 << 20,
            cases: Case::ALL.to_vec(),
            sides: Side::ALL.to_vec(),
            runs: 1,
        };
        Report {
            options,
            rows,
            more,
        }
    }

    #[test]
    fn r115_report_has_the_promised_shape() {
        let rows = vec![
            row(Side::Live, Case::Best, &[2.0, 0.5, 1.0], 2.0),
            row(Side::Kernel, Case::Best, &[4.0], 2.0),
        ];
        let report = of_rows(rows, vec![(Case::Best, 0.25)]);
        assert_eq!(
            report.to_json(),
            r#"{"schema":1,"experiment":"pageout","size_bytes":2097152,"rows":["#.to_owned()
                + r#"{"on":"live","case":"best","median_s":1.0,"runs_s":[2.0,0.5,1.0],"cpu_s":2.0,"#
                + r#""zero_pages":511,"stored_pages":1,"stored_bytes":20,"discarded":0},"#
                + r#"{"on":"kernel","case":"best","median_s":4.0,"runs_s":[4.0],"cpu_s":2.0,"#
                + r#""zero_pages":511,"stored_pages":1,"stored_bytes":20,"discarded":0}],"#
                + r#""ratios":{"best":{"live_to_kernel":0.25,"cpu_live_to_kernel":1.0}},"#
                + r#""floor_s":{"best":0.25},"live_to_floor":{"best":4.0},"wanted":["#
                + r#"{"case":"best","what":"of the kernel's time","want":0.4,"found":0.25,"#
                + r#""holds":true},{"case":"best","what":"of its CPU time","want":1.0,"#
                + r#""found":1.0,"holds":true},{"case":"best","what":"of the floor","#
                + r#""want":1.6,"found":4.0,"holds":false}]}"#
        );
        assert!(!report.failed());
        let text = report.to_text();
        assert!(text.contains("live / kernel: 0.25"), "{text}");
    }

    #[test]
    fn r115_a_failed_row_is_told_in_both_forms() {
        let rows = vec![row(Side::Live, Case::Best, &[1.0, 2.0], 2.0)];
        let mut report = of_rows(rows, Vec::new());
        report.rows[0].error = Some("lost a byte".into());
        assert!(report.failed());
        assert!(report.to_json().contains(r#""error":"lost a byte""#));
        assert!(report.to_text().contains("FAILED: lost a byte"));
        assert!(report.ratios().is_empty());
        assert_eq!(report.rows[0].median_s, 1.5);
    }

    fn report() -> Report<Pageout> {
        let rows = vec![
            row(Side::Live, Case::Best, &[4.0], 10.5),
            row(Side::Kernel, Case::Best, &[10.0], 10.0),
            row(Side::Live, Case::Worst, &[2.6], 10.0),
            row(Side::Kernel, Case::Worst, &[10.0], 10.0),
            row(Side::Model, Case::Worst, &[900.0], 900.0),
            row(Side::Live, Case::Middle, &[3.0], 9.0),
            row(Side::Kernel, Case::Middle, &[10.0], 10.0),
            row(Side::Live, Case::Text, &[6.0], 1.0),
        ];
        of_rows(rows, vec![(Case::Best, 2.0), (Case::Worst, 1.3)])
    }

    #[test]
    fn r99_r115_what_is_wanted_is_judged_case_by_case() {
        let report = report();
        let targets = report.targets().into_iter();
        let got: Vec<_> = targets
            .map(|t| (t.of.case, t.want, t.found, t.holds))
            .collect();
        // No word on text: the kernel has not run it.
        assert_eq!(
            got,
            [
                (Case::Best, 0.4, 0.4, true),
                (Case::Best, 1.0, 1.05, false),
                (Case::Best, 1.6, 2.0, false),
                (Case::Worst, 0.25, 0.26, false),
                (Case::Worst, 1.0, 1.0, true),
                (Case::Middle, 0.3, 0.3, true),
                (Case::Middle, 1.0, 0.9, true),
            ]
        );
        let floors: Vec<_> = report.live_to_floor().into_iter().collect();
        assert_eq!(floors, [(Case::Best, 2.0), (Case::Worst, 2.0)]);
        let text = report.to_text();
        let yes = "  yes best   of the kernel's time  at most 0.40: 0.400\n";
        assert!(text.contains(yes), "{text}");
        assert!(text.contains("  NO  worst  of the kernel's time  at most 0.25: 0.260\n"));
        let floor = "  NO  best   of the floor          at most 1.60: 2.000\n";
        assert!(text.contains(floor), "{text}");
        assert!(text.contains("live takes 2.00 times as long"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["wanted"][1]["holds"], false);
        assert_eq!(json["wanted"][1]["found"], 1.05);
        assert_eq!(json["live_to_floor"]["worst"], 2.0);
    }

    #[test]
    fn r115_a_row_that_does_not_count_holds_nothing() {
        let mut report = report();
        report.rows[0].error = Some("lost a byte".into());
        let holds = |case| {
            let of = report.targets().into_iter().filter(|t| t.of.case == case);
            of.map(|t| t.holds).collect::<Vec<_>>()
        };
        assert_eq!(holds(Case::Best), [false, false, false]);
        assert_eq!(holds(Case::Worst), [false, true], "the others stand");
        report.rows[0].median_s = f64::NAN;
        report.rows[0].error = None;
        assert!(!report.targets()[0].holds, "nor does what was not measured");
        assert!(!report.targets()[2].holds, "beside the floor too");
    }

    #[test]
    fn r99_r115_the_floor_asks_for_the_live_row_alone() {
        let rows = vec![
            row(Side::Live, Case::Best, &[3.2], 1.0),
            row(Side::Live, Case::Worst, &[9.0], 1.0),
            row(Side::Model, Case::Best, &[900.0], 900.0),
        ];
        let mut report = of_rows(rows, vec![(Case::Best, 2.0), (Case::Worst, 2.0)]);
        let [best] = &report.targets()[..] else {
            panic!("{:?}", report.targets());
        };
        assert_eq!((best.of.case, best.want), (Case::Best, 1.6));
        assert_eq!((best.found, best.holds), (1.6, true));
        report.rows[0].error = Some("lost a byte".into());
        assert!(!report.targets()[0].holds);
    }
}
