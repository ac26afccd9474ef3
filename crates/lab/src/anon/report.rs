//! The report of the anon-folio experiment.

use std::fmt::Write;

use serde::Serialize;

use super::{AnonFolio, Policy};
use crate::Side;
use crate::experiment::{All, Json, Report, Target, Tell};
use crate::model::stages::StageRow;
use crate::plot::{Bar, Panel, bars};
use crate::program::anon::{Figures, Workload};
use crate::size::human;
use crate::table::Column::{self, Left, Right};
use crate::table::{number, table};

/// What the series reported in 2023, folios of 64 KiB against base pages (Ampere Altra).
#[derive(Clone, Copy, Serialize)]
pub(super) struct Published {
    /// Which of our workloads it belongs to.
    workload: Workload,
    /// What it is of.
    what: &'static str,
    /// By how many percent it went up.
    change_pct: f64,
}

pub(super) fn published() -> [Published; 6] {
    [
        (Workload::PageFault1, "page_fault1, ops/s", 410.5),
        (Workload::Malloc1, "malloc1, ops/s", -47.1),
        (Workload::Mmap1, "mmap1, ops/s", -8.4),
        (Workload::TlbFlush, "tlb_flush1, ops/s", 5.7),
        (Workload::TlbFlush, "tlb_flush2, ops/s", 20.8),
        // 8 jobs: 373.0 s before, 342.8 s after, as runs in a time.
        (Workload::Compile, "kernel build with 8 jobs, builds/s", 8.8),
    ]
    .map(|(workload, what, change_pct)| Published {
        workload,
        what,
        change_pct,
    })
}

/// One policy of one workload on one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AnonRow {
    /// The side.
    pub on: Side,
    /// The workload.
    pub workload: Workload,
    /// The policy.
    pub policy: Policy,
    /// Operations in a second, of the run in the middle; none on the model, which has no speed.
    pub ops_per_s: Option<f64>,
    /// The same of all runs, in their order.
    pub runs_ops_per_s: Vec<f64>,
    /// Page faults of that run.
    pub faults: u64,
    /// Pages for each fault: those that base pages would have faulted for, or, where they are
    /// not known, the faults of the base row.
    pub pages_per_fault: Option<f64>,
    /// Anonymous memory at the peak, in bytes, with whatever manages it.
    pub peak_bytes: u64,
    /// The same for each byte in a page that was touched; none where that is not known.
    pub amplification: Option<f64>,
}

impl AnonRow {
    /// Of some runs; none without one.
    pub(super) fn new(
        on: Side,
        workload: Workload,
        policy: Policy,
        mut runs: Vec<Figures>,
        peak: Option<u64>,
    ) -> Option<Self> {
        let has_speed = on != Side::Model;
        let rate = |f: &Figures| f.ops as f64 / f.seconds;
        let rates = runs.iter().filter(|_| has_speed).map(rate).collect();
        runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let middle = runs.get(runs.len() / 2)?;
        let each = |a: u64, b: u64| (a > 0 && b > 0).then(|| a as f64 / b as f64);
        Some(Self {
            on,
            workload,
            policy,
            ops_per_s: has_speed.then(|| rate(middle)),
            runs_ops_per_s: rates,
            faults: middle.faults,
            pages_per_fault: each(middle.pages, middle.faults),
            peak_bytes: peak.unwrap_or(middle.used),
            amplification: each(middle.used, middle.touched),
        })
    }
}

/// Fills in what takes two rows to tell.
pub(super) fn finish(rows: &mut [AnonRow]) {
    for i in 0..rows.len() {
        let r = &rows[i];
        if let (None, Some(base)) = (r.pages_per_fault, row(rows, r.on, r.workload, Policy::Base))
            && base.faults > 0
        {
            rows[i].pages_per_fault = Some(base.faults as f64 / r.faults.max(1) as f64);
        }
    }
}

fn row(rows: &[AnonRow], on: Side, workload: Workload, policy: Policy) -> Option<&AnonRow> {
    let mut rows = rows.iter();
    rows.find(|r| (r.on, r.workload, r.policy) == (on, workload, policy))
}

pub(super) fn targets(rows: &[AnonRow]) -> Vec<Target<All>> {
    use Policy::{Adaptive, Base, K64, Pmd};
    use Side::{Kernel, Live, Model};
    use Workload::{Compile, Fill, Malloc1, PageFault1, Sparse};
    let row = |on, workload, policy| row(rows, on, workload, policy);
    let of = |a: Option<&AnonRow>, b: Option<&AnonRow>, f: fn(&AnonRow) -> f64| {
        Some(f(a?) / f(b?)).filter(|found| found.is_finite())
    };
    let speed = |r: &AnonRow| r.ops_per_s.unwrap_or(f64::NAN);
    let peak = |r: &AnonRow| r.peak_bytes as f64;
    let faults = |r: &AnonRow| r.faults as f64;
    let mut all = Vec::new();
    for on in [Live, Model] {
        let less = of(row(on, Fill, Base), row(on, Fill, K64), faults);
        let off = less.map(|x| (x / 16.0 - 1.0).abs());
        let adaptive = of(row(on, Fill, Base), row(on, Fill, Adaptive), faults);
        let sparse = row(on, Sparse, Adaptive).and_then(|r| r.amplification);
        let compile = of(row(on, Compile, Adaptive), row(on, Compile, Base), peak);
        all.extend([
            (
                "fill, 64k: how far from 1/16 of the faults of base pages",
                false,
                0.01,
                off,
            ),
            (
                "fill, adaptive: faults of base pages for each fault",
                true,
                400.0,
                adaptive,
            ),
            ("sparse, adaptive: amplification", false, 2.0, sparse),
            (
                "compile, adaptive: memory, of that of base pages",
                false,
                1.02,
                compile,
            ),
        ]);
    }
    let fast = row(Live, PageFault1, Adaptive);
    let each = row(Model, Compile, Adaptive).and_then(|r| r.pages_per_fault);
    let base = of(fast, row(Kernel, PageFault1, Base), speed);
    let pmd = of(fast, row(Kernel, PageFault1, Pmd), speed);
    let malloc = of(
        row(Live, Malloc1, Adaptive),
        row(Live, Malloc1, Base),
        speed,
    );
    all.extend([
        (
            "compile, adaptive on the model: pages for each fault",
            true,
            3.0,
            each,
        ),
        ("page_fault1, live adaptive / kernel base", true, 1.3, base),
        ("page_fault1, live adaptive / kernel pmd", true, 0.8, pmd),
        ("malloc1, live adaptive / live base", true, 0.95, malloc),
    ]);
    let target = |(what, at_least, want, found): (_, _, _, Option<f64>)| {
        Some(Target::new(All {}, what, at_least, want, found?))
    };
    all.into_iter().filter_map(target).collect()
}

/// A row, and its speed as a part of that with base pages.
type Line = (AnonRow, Option<f64>);

const COLUMNS: [Column<Line>; 8] = [
    Left("", |(r, _)| r.policy.to_string()),
    Left("on", |(r, _)| r.on.to_string()),
    Right("ops/s", |(r, _)| {
        number(r.ops_per_s, if r.ops_per_s < Some(100.0) { 2 } else { 0 })
    }),
    Right("of base", |(_, of_base)| number(*of_base, 2)),
    Right("faults", |(r, _)| r.faults.to_string()),
    Right("pages/fault", |(r, _)| number(r.pages_per_fault, 1)),
    Right("memory", |(r, _)| human(r.peak_bytes)),
    Right("amplif.", |(r, _)| number(r.amplification, 2)),
];

const STAGES: [Column<StageRow>; 4] = [
    Left("stage", |r| r.stage.to_string()),
    Right("faults", |r| r.faults.to_string()),
    Right("copied", |r| r.copied.to_string()),
    Right("memory", |r| human(r.peak_bytes)),
];

/// What each stage brings, and what the faults of each kind were served.
fn stages(text: &mut String, rows: &[StageRow]) {
    let Some(last) = rows.last() else { return };
    text.push_str(
        "\nstages, on the model: a program of 16 MiB that writes to holes, to zero pages, to what \
         a child has, too,\nand to what that has left (folios of up to 64 KiB)\n",
    );
    table(text, 2, &STAGES, rows, |_| None);
    text.push_str("  faults of the last stage, as pages:times\n");
    let paths = &last.paths;
    for (name, path) in [
        ("anonymous", &paths.anonymous),
        ("zero page", &paths.zero_page),
        ("copy", &paths.copy),
        ("reuse", &paths.reuse),
    ] {
        let hits: Vec<String> = path
            .iter()
            .map(|(n, times)| format!("{n}:{times}"))
            .collect();
        let _ = writeln!(text, "    {name:10} {}", hits.join(", "));
    }
}

/// A panel for each workload, a bar for each row: speed where a side has one, else pages for each
/// fault. The scale is logarithmic.
pub(super) fn plot(rows: &[AnonRow]) -> Option<String> {
    const COLOURS: [&str; 3] = ["#0a6", "#555", "#38c"];
    let speed = rows.iter().any(|r| r.ops_per_s.is_some());
    let value = |r: &AnonRow| {
        if speed {
            r.ops_per_s
        } else {
            r.pages_per_fault
        }
    };
    let panel = |workload: Workload| {
        let of = rows.iter().filter(|r| r.workload == workload);
        let values: Vec<(&AnonRow, f64)> = of
            .filter_map(|r| Some((r, value(r).filter(|v| *v > 0.0)?)))
            .collect();
        let least = values.iter().map(|v| v.1).fold(f64::INFINITY, f64::min);
        let most = values.iter().map(|v| v.1).fold(0.0, f64::max);
        // A bar of the smallest value is still seen.
        let scale = (most / least).ln().max(0.7);
        let bar = |(r, value): &(&AnonRow, f64)| {
            let high = 0.05 + 0.95 * (value / least).ln() / scale;
            Bar {
                name: ["4k", "64k", "ad", "2M"][r.policy as usize].into(),
                value: format!("{:.1}", value / least),
                parts: vec![(high, COLOURS[r.on as usize])],
            }
        };
        let bars: Vec<Bar> = values.iter().map(bar).collect();
        let title = workload.to_string();
        (!bars.is_empty()).then_some(Panel { title, bars })
    };
    let panels = Workload::ALL.into_iter().filter_map(panel).collect();
    let what = if speed {
        "Operations per second"
    } else {
        "Pages for each fault"
    };
    let title = format!("{what}, logarithmic; in each panel the smallest is 1");
    let legend = Side::ALL.map(|on| (on.name(), COLOURS[on as usize]));
    (!rows.is_empty()).then(|| bars(&title, &legend, &[panels]))
}

impl Tell for AnonFolio {
    const NAME: &'static str = "anon-folio";
    type Row = AnonRow;
    /// What each stage brings, on the model.
    type More = Vec<StageRow>;
    type Of = All;

    fn text(report: &Report<Self>) -> String {
        let mut text = String::from(
            "anon-folio: anonymous memory in folios of one page (base), up to 64 KiB, adaptive, \
             and 2 MiB (pmd)\n",
        );
        let all = &report.rows;
        for workload in Workload::ALL {
            let line = |r: &AnonRow| {
                let base = row(all, r.on, workload, Policy::Base);
                (
                    r.clone(),
                    base.and_then(|b| Some(r.ops_per_s? / b.ops_per_s?)),
                )
            };
            let of = all.iter().filter(|r| r.workload == workload);
            let lines: Vec<Line> = of.map(line).collect();
            if lines.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n{workload}");
            table(&mut text, 2, &COLUMNS, &lines, |_| None);
            for p in published().iter().filter(|p| p.workload == workload) {
                let _ = write!(
                    text,
                    "  64 KiB against base, published: {} {:+.1} %",
                    p.what, p.change_pct
                );
                for on in [Side::Live, Side::Kernel] {
                    let of = |policy| row(all, on, workload, policy)?.ops_per_s;
                    if let (Some(large), Some(base)) = (of(Policy::K64), of(Policy::Base)) {
                        let change = (large / base - 1.0) * 100.0;
                        let _ = write!(text, ", here {on} {change:+.1} %");
                    }
                }
                text.push('\n');
            }
        }
        stages(&mut text, &report.more);
        if all.iter().any(|r| r.on == Side::Model) {
            text.push_str(
                "\nmodel: no speed; fork there is with the child's memory, and compile is a \
                 pattern (see docs/fault-order.md)\n",
            );
        }
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        json.with("rows", &report.rows)
            .with("targets", &report.targets())
            .with("published", &published())
            .with("stages", &report.more)
    }

    fn targets(report: &Report<Self>) -> Vec<Target<All>> {
        targets(&report.rows)
    }

    fn plot(report: &Report<Self>) -> Option<String> {
        plot(&report.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ops: u64, faults: u64) -> Figures {
        Figures {
            ops,
            seconds: 0.5,
            faults,
            pages: ops,
            used: 8192,
            touched: 4096,
        }
    }

    fn of_rows(rows: impl IntoIterator<Item = Option<AnonRow>>) -> Report<AnonFolio> {
        let mut rows: Vec<AnonRow> = rows.into_iter().flatten().collect();
        finish(&mut rows);
        let options = AnonFolio {
            sides: vec![Side::Live],
            workloads: Workload::ALL.to_vec(),
            policies: Policy::ALL.to_vec(),
            runs: 3,
        };
        Report {
            options,
            rows,
            more: Vec::new(),
        }
    }

    fn report() -> Report<AnonFolio> {
        let w = Workload::Fill;
        let runs = vec![figures(64, 64), figures(32, 32), figures(640, 640)];
        of_rows([
            AnonRow::new(Side::Live, w, Policy::Base, runs, None),
            AnonRow::new(Side::Live, w, Policy::K64, vec![figures(64, 4)], Some(4096)),
        ])
    }

    #[test]
    fn r150_the_report_of_folios_has_the_promised_shape() {
        let json = report().to_json();
        let row = concat!(
            r#"{"schema":1,"experiment":"anon-folio","rows":[{"on":"live","workload":"fill","#,
            r#""policy":"base","ops_per_s":128.0,"runs_ops_per_s":[128.0,64.0,1280.0],"#,
            r#""faults":64,"pages_per_fault":1.0,"peak_bytes":8192,"amplification":2.0},"#
        );
        assert!(json.starts_with(row), "{json}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["rows"][1]["policy"], "64k");
        assert_eq!(json["rows"][1]["peak_bytes"], 4096);
        assert_eq!(json["published"][0]["change_pct"], 410.5);
    }

    #[test]
    fn r150_targets_are_told_where_both_rows_are_there() {
        let targets = report().targets();
        assert_eq!(targets.len(), 1, "{targets:?}");
        assert!(targets[0].holds && targets[0].found < 1e-9, "{targets:?}");
        let text = report().to_text();
        assert!(text.contains("yes fill, 64k"), "{text}");
        assert!(report().to_svg().unwrap().contains("fill"));
    }

    #[test]
    fn r150_pages_of_a_compiler_are_those_of_base_pages() {
        let unknown = |faults| Figures {
            pages: 0,
            used: 0,
            touched: 0,
            ..figures(1, faults)
        };
        let w = Workload::Compile;
        let rows = of_rows([
            AnonRow::new(Side::Kernel, w, Policy::Base, vec![unknown(900)], Some(1)),
            AnonRow::new(Side::Kernel, w, Policy::Pmd, vec![unknown(300)], Some(1)),
        ])
        .rows;
        assert_eq!(rows[1].pages_per_fault, Some(3.0));
        assert_eq!(rows[1].amplification, None);
    }

    #[test]
    fn r150_the_picture_has_a_bar_for_each_row_and_no_empty_panel() {
        let row = |workload, policy, ops_per_s| AnonRow {
            ops_per_s,
            pages_per_fault: Some(16.0),
            ..AnonRow::new(Side::Live, workload, policy, vec![figures(1, 1)], None).unwrap()
        };
        let rows = [
            row(Workload::Fill, Policy::Base, Some(10.0)),
            row(Workload::Fill, Policy::Pmd, Some(80.0)),
            row(Workload::Sparse, Policy::Base, None),
        ];
        let picture = plot(&rows).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(
            picture.contains("Operations") && picture.contains(">8.0<"),
            "{picture}"
        );
        assert!(
            !picture.contains("sparse") && !picture.contains("NaN"),
            "{picture}"
        );
        let faults = plot(&rows[2..]).unwrap();
        assert!(faults.contains("Pages for each") && faults.contains("sparse"));
    }
}
