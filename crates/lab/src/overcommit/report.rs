//! The report of the overcommit experiment.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use super::{Case, More, Of, Overcommit, Replacement, Run, wanted};
use crate::Side;
use crate::experiment::{Json, Report, Target, Tell};
use crate::figures::{Mean, median};
use crate::plot::{Bar, Panel, bars};
use crate::program::walk::{Pattern, RATIO};
use crate::size::{PAGE, human};
use crate::table::Column::{self, Left, Right};
use crate::table::{number, or_dash, table, with_error};

/// One side of one case. Figures are medians of the runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OvercommitRow {
    /// The side.
    pub on: Side,
    /// What was run.
    #[serde(flatten)]
    pub case: Case,
    /// Accesses a second of the slowest thread, times the number of threads; each was verified. A
    /// thread all of whose part is resident does not make up for one that waits.
    pub ops_per_s: f64,
    /// Standard error of their mean; none for less than two runs.
    pub ops_error: Option<f64>,
    /// Accesses a second of all threads together.
    pub sum_per_s: f64,
    /// Seconds that the fill took.
    pub fill_s: f64,
    /// Standard error of their mean; none for less than two runs.
    pub fill_error: Option<f64>,
    /// RAM in bytes: of live the most that was charged at one time, of the kernel the cgroup's
    /// limit and zram's memory.
    pub ram_bytes: u64,
    /// The limit in bytes: `--memory-max`, or the cgroup's.
    pub limit_bytes: u64,
    /// RAM of what is stored, in bytes: at most of the store, or what zram takes.
    pub store_bytes: u64,
    /// What the host charges for the processes at the end, with zram, in bytes; none where there
    /// is no cgroup.
    pub held_bytes: Option<u64>,
    /// CPU time of the processes in the time that counts, in seconds; none without a cgroup.
    pub cpu_s: Option<f64>,
    /// Page faults of the program in the time that counts, as the system counts them.
    pub faults: u64,
    /// Pages stored in the whole run, with the fill.
    pub stored: u64,
    /// Pages read back in the whole run.
    pub read: u64,
    /// Accesses a second of each run, in their order.
    pub runs_ops_per_s: Vec<f64>,
    /// Runs that were killed for lack of memory, and repeated; those that looked for the limit
    /// are counted, too.
    pub killed: usize,
    /// Why the row does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// CPU seconds for each fault and for each access.
    #[serde(skip)]
    cpu_per_fault: Option<f64>,
    #[serde(skip)]
    cpu_per_op: Option<f64>,
}

impl OvercommitRow {
    pub(super) fn new(
        on: Side,
        case: Case,
        runs: &[Run],
        killed: usize,
        error: Option<String>,
    ) -> Self {
        let all = |of: fn(&Run) -> f64| -> Vec<f64> { runs.iter().map(of).collect() };
        let error_of = |all: &[f64]| Mean::of(all.iter().copied()).error;
        let middle = |of: fn(&Run) -> f64| median(&all(of)) as u64;
        let some = |of: fn(&Run) -> Option<f64>| -> Option<f64> {
            let all: Option<Vec<f64>> = runs.iter().map(of).collect();
            all.filter(|all| !all.is_empty()).map(|all| median(&all))
        };
        let (ops, fill) = (all(|r| r.ops_per_s), all(|r| r.fill_s));
        Self {
            on,
            case,
            ops_per_s: median(&ops),
            ops_error: error_of(&ops),
            sum_per_s: median(&all(|r| r.sum_per_s)),
            fill_s: median(&fill),
            fill_error: error_of(&fill),
            ram_bytes: middle(|r| r.ram as f64),
            limit_bytes: middle(|r| r.limit as f64),
            store_bytes: middle(|r| r.store as f64),
            held_bytes: some(|r| r.held.map(|h| h as f64)).map(|h| h as u64),
            cpu_s: some(|r| r.cpu_s),
            faults: middle(|r| r.faults as f64),
            stored: middle(|r| r.stored as f64),
            read: middle(|r| r.read as f64),
            runs_ops_per_s: ops,
            killed,
            error,
            cpu_per_fault: some(|r| Some(r.cpu_s? / r.faults.max(1) as f64)),
            cpu_per_op: some(|r| Some(r.cpu_s? / r.ops as f64)),
        }
    }
}

/// How the live side compares with the kernel in one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// What was run.
    #[serde(flatten)]
    pub case: Case,
    /// Accesses a second.
    pub ops: f64,
    /// Time of the fill.
    pub fill: f64,
    /// CPU time for each access.
    pub cpu_per_op: Option<f64>,
    /// CPU time for each fault, with the accesses around it. A fault may bring many pages, so that
    /// this says something only where all are as many: with `uniform`.
    pub cpu_per_fault: Option<f64>,
    /// RAM.
    pub ram: f64,
}

impl Report<Overcommit> {
    /// Live against kernel, for each case of which both rows count.
    pub fn ratios(&self) -> Vec<Ratio> {
        let live = (self.rows.iter()).filter(|r| r.on == Side::Live && r.error.is_none());
        live.filter_map(|live| {
            let kernel = self.row(Side::Kernel, live.case)?;
            let of = |cpu: fn(&OvercommitRow) -> Option<f64>| Some(cpu(live)? / cpu(kernel)?);
            Some(Ratio {
                case: live.case,
                ops: live.ops_per_s / kernel.ops_per_s,
                fill: live.fill_s / kernel.fill_s,
                cpu_per_op: of(|r| r.cpu_per_op),
                cpu_per_fault: of(|r| r.cpu_per_fault),
                ram: live.ram_bytes as f64 / kernel.ram_bytes as f64,
            })
        })
        .collect()
    }

    /// The row of a case, if it counts.
    pub(super) fn row(&self, on: Side, case: Case) -> Option<&OvercommitRow> {
        let mut rows = self.rows.iter();
        rows.find(|r| r.on == on && r.case == case && r.error.is_none())
    }
}

const COLUMNS: [Column<OvercommitRow>; 15] = [
    Left("pattern", |r| r.case.pattern.to_string()),
    Right("threads", |r| r.case.threads.to_string()),
    Right("record", |r| r.case.record.to_string()),
    Left("on", |r| r.on.to_string()),
    Right("ops/s", |r| with_error(r.ops_per_s, r.ops_error, 0)),
    Right("sum/s", |r| format!("{:.0}", r.sum_per_s)),
    Right("fill s", |r| with_error(r.fill_s, r.fill_error, 2)),
    Right("cpu s", |r| number(r.cpu_s, 2)),
    Right("faults", |r| r.faults.to_string()),
    Right("stored", |r| r.stored.to_string()),
    Right("read", |r| r.read.to_string()),
    Right("RAM MiB", |r| mib(r.ram_bytes)),
    // The kernel's limit and zram, or the limit that holds both.
    Right("limit + store", |r| {
        let (limit, store) = (mib(r.limit_bytes), mib(r.store_bytes));
        match r.on {
            Side::Kernel => format!("{limit}    + {store}"),
            _ => format!("{limit} with {store}"),
        }
    }),
    Right("held", |r| or_dash(r.held_bytes.map(mib))),
    Right("killed", |r| r.killed.to_string()),
];

const RATIOS: [Column<Ratio>; 8] = [
    Left("live / kernel", |r| r.case.pattern.to_string()),
    Right("threads", |r| r.case.threads.to_string()),
    Right("record", |r| r.case.record.to_string()),
    Right("ops/s", |r| format!("{:.2}", r.ops)),
    Right("fill", |r| format!("{:.2}", r.fill)),
    Right("cpu/op", |r| number(r.cpu_per_op, 2)),
    Right("cpu/flt", |r| number(r.cpu_per_fault, 2)),
    Right("RAM", |r| format!("{:.2}", r.ram)),
];

const REPLACEMENT: [Column<Replacement>; 9] = [
    Left("pattern", |r| r.pattern.to_string()),
    Right("record", |r| r.record.to_string()),
    Right("accesses", |r| r.accesses.to_string()),
    Right("resident MiB", |r| mib(r.resident_pages * PAGE as u64)),
    Right("waited", |r| format!("{:.3}", r.deckle)),
    Right("read", |r| format!("{:.3}", r.deckle_read)),
    Right("FIFO", |r| format!("{:.3}", r.fifo)),
    Right("LRU", |r| format!("{:.3}", r.lru)),
    Right("MIN", |r| format!("{:.3}", r.min)),
];

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// A line for each length of records, in it a panel for each number of threads, in that for each
/// pattern a bar of each side.
pub(super) fn plot(rows: &[OvercommitRow]) -> Option<String> {
    const SIDES: [(Side, &str); 2] = [(Side::Live, "#369"), (Side::Kernel, "#c93")];
    let rows: Vec<&OvercommitRow> = rows.iter().filter(|r| r.error.is_none()).collect();
    let panel = |record: usize, threads: usize| {
        let of = |r: &&&OvercommitRow| (r.case.record, r.case.threads) == (record, threads);
        let rows: Vec<&&OvercommitRow> = rows.iter().filter(of).collect();
        let most = rows.iter().map(|r| r.ops_per_s).fold(1.0, f64::max);
        let mut bars = Vec::new();
        for pattern in Pattern::ALL {
            let mut name = pattern.to_string();
            for (side, colour) in SIDES {
                let mut of = rows
                    .iter()
                    .filter(|r| (r.on, r.case.pattern) == (side, pattern));
                bars.extend(of.next().map(|r| Bar {
                    name: std::mem::take(&mut name),
                    value: format!("{:.1}", r.ops_per_s / 1000.0),
                    parts: vec![(r.ops_per_s / most, colour)],
                }));
            }
            // Room before the next pattern, if this one is there.
            if name.is_empty() {
                bars.push(Bar {
                    name,
                    value: String::new(),
                    parts: Vec::new(),
                });
            }
        }
        let title = format!("threads {threads}, records of {record} bytes");
        Panel { title, bars }
    };
    let of = |r: &&OvercommitRow| (r.case.record, r.case.threads);
    let all: BTreeSet<(usize, usize)> = rows.iter().map(of).collect();
    let records: BTreeSet<usize> = all.iter().map(|(record, _)| *record).collect();
    let line = |record| {
        let of = all.iter().filter(|(r, _)| *r == record);
        of.map(|(record, threads)| panel(*record, *threads))
            .collect()
    };
    let lines: Vec<Vec<Panel>> = records.into_iter().map(line).collect();
    let legend = SIDES.map(|(side, colour)| (side.name(), colour));
    (!rows.is_empty()).then(|| bars("Accesses a second, thousands", &legend, &lines))
}

impl Tell for Overcommit {
    const NAME: &'static str = "overcommit";
    const WANTED: &'static str = "wanted, records of a page";
    type Row = OvercommitRow;
    type More = More;
    type Of = Of;

    fn text(report: &Report<Self>) -> String {
        let set = report.options.set;
        let mut text = format!(
            "overcommit: a working set of {} ({RATIO}:1) in {} of RAM, every access verified, a \
             quarter writes; huge pages of the host: {}\n\n",
            human(set.size),
            human(set.memory()),
            report.more.thp.as_deref().unwrap_or("none"),
        );
        if !report.more.replacement.is_empty() {
            text.push_str(
                "on the model, for an access: those that waited for a page and pages read; beside \
                 it FIFO, LRU and\nMIN (which knows what comes) with as many pages\n",
            );
            table(&mut text, 0, &REPLACEMENT, &report.more.replacement, |_| {
                None
            });
            text.push('\n');
        }
        if report.rows.is_empty() {
            return text;
        }
        let failed = |r: &OvercommitRow| r.error.as_ref().map(|error| format!("FAILED: {error}"));
        table(&mut text, 0, &COLUMNS, &report.rows, failed);
        let ratios = report.ratios();
        if !ratios.is_empty() {
            let _ = writeln!(text);
            table(&mut text, 0, &RATIOS, &ratios, |_| None);
        }
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        json.with("size_bytes", &report.options.set.size)
            .with("memory_bytes", &report.options.set.memory())
            .with("thp", &report.more.thp)
            .with("rows", &report.rows)
            .with_some("replacement", &report.more.replacement)
            .with("ratios", &report.ratios())
            .with("targets", &report.targets())
    }

    fn targets(report: &Report<Self>) -> Vec<Target<Of>> {
        wanted::targets(report)
    }

    /// True if a row does not count.
    fn failed(report: &Report<Self>) -> bool {
        report.rows.iter().any(|row| row.error.is_some())
    }

    fn plot(report: &Report<Self>) -> Option<String> {
        plot(&report.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::More;
    use super::*;
    use crate::working_set::WorkingSet;

    const MIB: u64 = 1 << 20;

    fn case(pattern: Pattern, threads: usize) -> Case {
        Case {
            pattern,
            threads,
            record: 4096,
        }
    }

    /// A row of two runs with so many accesses a second, on average.
    fn row(on: Side, case: Case, ops: f64) -> OvercommitRow {
        let run = |ops| Run {
            ops_per_s: ops,
            ops: ops as u64,
            sum_per_s: ops,
            fill_s: 0.5,
            cpu_s: Some(2.0),
            faults: 1000,
            stored: 70,
            read: 60,
            limit: 20 * MIB,
            store: 12 * MIB,
            ram: 32 * MIB,
            held: Some(33 * MIB),
        };
        OvercommitRow::new(on, case, &[run(ops - 10.0), run(ops + 10.0)], 0, None)
    }

    fn report(rows: Vec<OvercommitRow>) -> Report<Overcommit> {
        let set = WorkingSet {
            size: 64 * MIB,
            ratio: 0.5,
            seconds: 1.0,
        };
        let options = Overcommit {
            set,
            patterns: Pattern::ALL.to_vec(),
            threads: Vec::new(),
            records: vec![4096],
            sides: vec![Side::Live, Side::Kernel],
            runs: 2,
        };
        let more = More {
            thp: Some("always".into()),
            replacement: Vec::new(),
        };
        Report {
            options,
            rows,
            more,
        }
    }

    #[test]
    fn r150_overcommit_report_has_the_promised_shape() {
        let case = case(Pattern::Loop, 3);
        let report = report(vec![
            row(Side::Live, case, 300.0),
            row(Side::Kernel, case, 200.0),
        ]);
        let figures = r#""pattern":"loop","threads":3,"record":4096,"#;
        let of = |on: &str, ops: u32, a: u32, b: u32| {
            format!(r#"{{"on":"{on}",{figures}"ops_per_s":{ops}.0,"ops_error":10.0,"#)
                + &format!(r#""sum_per_s":{ops}.0,"#)
                + r#""fill_s":0.5,"fill_error":0.0,"ram_bytes":33554432,"#
                + r#""limit_bytes":20971520,"store_bytes":12582912,"held_bytes":34603008,"#
                + r#""cpu_s":2.0,"faults":1000,"stored":70,"read":60,"#
                + &format!(r#""runs_ops_per_s":[{a}.0,{b}.0],"killed":0}}"#)
        };
        assert_eq!(
            report.to_json(),
            r#"{"schema":1,"experiment":"overcommit","size_bytes":67108864,"#.to_owned()
                + r#""memory_bytes":33554432,"thp":"always","rows":["#
                + &of("live", 300, 290, 310)
                + ","
                + &of("kernel", 200, 190, 210)
                + &format!(r#"],"ratios":[{{{figures}"ops":1.5,"fill":1.0,"#)
                + r#""cpu_per_op":0.6657397107897663,"cpu_per_fault":1.0,"ram":1.0}],"targets":[]}"#
        );
        let text = report.to_text();
        for says in ["300 +- 10", "20.0    + 12.0", "20.0 with 12.0", "1.50"] {
            assert!(text.contains(says), "{says} in\n{text}");
        }
        assert!(!report.failed());
    }

    #[test]
    fn r150_killed_runs_are_told_and_a_row_without_runs_has_no_ratio() {
        let case = case(Pattern::Uniform, 1);
        let mut report = report(vec![row(Side::Live, case, 300.0)]);
        let error = Some("killed 4 times".to_owned());
        report
            .rows
            .push(OvercommitRow::new(Side::Kernel, case, &[], 4, error));
        assert!(report.failed() && report.ratios().is_empty());
        let (json, text) = (report.to_json(), report.to_text());
        assert!(
            json.contains(r#""killed":4,"error":"killed 4 times""#),
            "{json}"
        );
        assert!(
            !json.contains("NaN") && json.contains(r#""cpu_s":null"#),
            "{json}"
        );
        assert!(text.contains("FAILED: killed 4 times"), "{text}");
        assert!(report.to_svg().is_ok());
    }

    #[test]
    fn r150_what_is_wanted_is_judged_where_both_sides_were_run() {
        let (one, two) = (case(Pattern::Uniform, 1), case(Pattern::Uniform, 2));
        let mut rows = vec![
            row(Side::Live, two, 210.0),
            row(Side::Kernel, two, 200.0),
            row(Side::Live, one, 100.0),
        ];
        let targets = report(rows.clone()).targets();
        let found: Vec<_> = targets.iter().map(|t| (t.what, t.holds)).collect();
        assert_eq!(
            found,
            [
                ("of the kernel's accesses", true),
                ("of its time to fill", false),
                ("of its CPU time a fault", true)
            ]
        );
        rows.push(row(Side::Kernel, one, 130.0));
        let report = report(rows);
        let targets = report.targets();
        let last = targets.last().unwrap();
        assert_eq!(
            (last.what, last.holds),
            ("of its own accesses with one", true)
        );
        let slow = targets.iter().find(|t| t.of.threads == 1).unwrap();
        assert!(!slow.holds, "{slow:?}");
        let text = report.to_text();
        assert!(text.contains("NO  uniform    threads 1"), "{text}");
    }

    #[test]
    fn r150_each_row_that_counts_has_a_bar() {
        let (one, two) = (case(Pattern::Zipf, 1), case(Pattern::Loop, 2));
        let report = report(vec![
            row(Side::Live, one, 12_000.0),
            row(Side::Kernel, one, 34_500.0),
            row(Side::Live, two, 56_000.0),
        ]);
        let svg = report.to_svg().unwrap();
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
        for says in [
            ">12.0<",
            ">34.5<",
            ">56.0<",
            "threads 2",
            ">zipf<",
            ">loop<",
        ] {
            assert!(svg.contains(says), "{says} in {svg}");
        }
        assert!(!svg.contains("NaN"), "{svg}");
        let none = Report {
            rows: Vec::new(),
            ..report
        };
        assert!(none.to_svg().is_err());
    }
}
