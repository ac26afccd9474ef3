//! The report of the overcommit experiment, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::{Case, OvercommitOptions, Replacement, Run, Target, plot};
use crate::figures::{Mean, median};
use crate::host::thp;
use crate::program::walk::RATIO;
use crate::size::{PAGE, human};
use crate::{LabError, Side};

/// One side of one case. Figures are medians of the runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OvercommitRow {
    /// The side.
    pub on: Side,
    /// In which order records were accessed.
    pub pattern: &'static str,
    /// By how many threads.
    pub threads: usize,
    /// Bytes of a record.
    pub record: usize,
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
    /// What was run.
    #[serde(skip)]
    pub(super) case: Case,
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
            pattern: case.pattern.name(),
            threads: case.threads,
            record: case.record,
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
            case,
        }
    }
}

/// How the live side compares with the kernel in one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// In which order records were accessed.
    pub pattern: &'static str,
    /// By how many threads.
    pub threads: usize,
    /// Bytes of a record.
    pub record: usize,
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

/// All rows.
#[derive(Clone, Debug)]
pub struct OvercommitReport {
    /// Bytes of the working set.
    pub size_bytes: u64,
    /// RAM that each side may use, in bytes.
    pub memory_bytes: u64,
    /// `enabled` of the host's transparent huge pages, which the experiment leaves alone.
    pub thp: Option<String>,
    /// One row for each case and side that has a speed.
    pub rows: Vec<OvercommitRow>,
    /// What was read back on the model, for each pattern and record.
    pub replacement: Vec<Replacement>,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    experiment: &'static str,
    size_bytes: u64,
    memory_bytes: u64,
    thp: Option<&'a str>,
    rows: &'a [OvercommitRow],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    replacement: &'a [Replacement],
    ratios: Vec<Ratio>,
    targets: Vec<Target>,
}

impl OvercommitReport {
    pub(super) fn new(options: &OvercommitOptions<'_>) -> Self {
        Self {
            size_bytes: options.size,
            memory_bytes: options.memory(),
            thp: thp::enabled(),
            rows: Vec::new(),
            replacement: Vec::new(),
        }
    }

    /// True if a row does not count.
    pub fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.error.is_some())
    }

    /// Live against kernel, for each case of which both rows count.
    pub fn ratios(&self) -> Vec<Ratio> {
        let live = (self.rows.iter()).filter(|r| r.on == Side::Live && r.error.is_none());
        live.filter_map(|live| {
            let kernel = self.row(Side::Kernel, live.case)?;
            let of = |cpu: fn(&OvercommitRow) -> Option<f64>| Some(cpu(live)? / cpu(kernel)?);
            Some(Ratio {
                pattern: live.pattern,
                threads: live.threads,
                record: live.record,
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

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        let json = Json {
            schema: 1,
            experiment: "overcommit",
            size_bytes: self.size_bytes,
            memory_bytes: self.memory_bytes,
            thp: self.thp.as_deref(),
            rows: &self.rows,
            replacement: &self.replacement,
            ratios: self.ratios(),
            targets: self.targets(),
        };
        serde_json::to_string(&json).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }

    /// The picture: accesses a second of both sides, case by case.
    ///
    /// # Errors
    /// Without a row that counts.
    pub fn to_svg(&self) -> Result<String, LabError> {
        let rows: Vec<&OvercommitRow> = self.rows.iter().filter(|r| r.error.is_none()).collect();
        match rows.is_empty() {
            true => Err(LabError::Option("--plot: no row to draw".into())),
            false => Ok(plot::svg(&rows)),
        }
    }

    fn replacement_text(&self, text: &mut String) {
        for (i, r) in self.replacement.iter().enumerate() {
            if i == 0 {
                text.push_str(
                    "on the model, for an access: those that waited for a page and pages read; \
                     beside it FIFO, LRU and\nMIN (which knows what comes) with as many pages\n\
                     pattern     record  accesses  resident MiB  waited    read    FIFO  \
                     \x20  LRU     MIN\n",
                );
            }
            let _ = writeln!(
                text,
                "{:10}  {:6}  {:8}  {:>12}  {:6.3}  {:6.3}  {:6.3}  {:6.3}  {:6.3}",
                r.pattern,
                r.record,
                r.accesses,
                mib(r.resident_pages * PAGE as u64),
                r.deckle,
                r.deckle_read,
                r.fifo,
                r.lru,
                r.min
            );
        }
        if !self.replacement.is_empty() {
            text.push('\n');
        }
    }

    /// The report as a table.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "overcommit: a working set of {} ({RATIO}:1) in {} of RAM, every access verified, a \
             quarter writes; huge pages of the host: {}\n\n",
            human(self.size_bytes),
            human(self.memory_bytes),
            self.thp.as_deref().unwrap_or("none"),
        );
        self.replacement_text(&mut text);
        if self.rows.is_empty() {
            return text;
        }
        let head = "pattern     threads  record  on                  ops/s       sum/s  \
                    \x20     fill s  cpu s  faults  stored    read  RAM MiB  \
                    \x20  limit + store   held  killed\n";
        text.push_str(head);
        for row in &self.rows {
            let with = |value: f64, error: Option<f64>, digits| {
                let error = error.map_or(String::new(), |e| format!(" +- {e:.digits$}"));
                format!("{value:.digits$}{error}")
            };
            let _ = write!(
                text,
                "{:10}  {:7}  {:6}  {:6}  {:>17}  {:>10.0}  {:>12}  {:>5}  {:>6}  {:>6}  \
                 {:>6}  {:>7}  {:>16}  {:>5}  {:>6}",
                row.pattern,
                row.threads,
                row.record,
                row.on,
                with(row.ops_per_s, row.ops_error, 0),
                row.sum_per_s,
                with(row.fill_s, row.fill_error, 2),
                row.cpu_s.map_or("-".into(), |s| format!("{s:.2}")),
                row.faults,
                row.stored,
                row.read,
                mib(row.ram_bytes),
                ram_of(row),
                row.held_bytes.map_or("-".into(), mib),
                row.killed,
            );
            text.push('\n');
            if let Some(error) = &row.error {
                let _ = writeln!(text, "            FAILED: {error}");
            }
        }
        for (i, r) in self.ratios().iter().enumerate() {
            if i == 0 {
                text.push_str(
                    "\nlive / kernel    threads  record   ops/s  fill  cpu/op  cpu/flt   RAM\n",
                );
            }
            let cpu = |of: Option<f64>| of.map_or("-".into(), |c| format!("{c:.2}"));
            let (op, fault) = (cpu(r.cpu_per_op), cpu(r.cpu_per_fault));
            let _ = writeln!(
                text,
                "{:15}  {:7}  {:6}  {:6.2}  {:4.2}  {op:>6}  {fault:>7}  {:4.2}",
                r.pattern, r.threads, r.record, r.ops, r.fill, r.ram
            );
        }
        self.wanted_text(&mut text);
        text
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// What RAM is made of: the kernel's limit and zram, or the limit that holds both.
fn ram_of(row: &OvercommitRow) -> String {
    let (limit, store) = (mib(row.limit_bytes), mib(row.store_bytes));
    match row.on {
        Side::Kernel => format!("{limit}    + {store}"),
        _ => format!("{limit} with {store}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::program::walk::Pattern;

    const MIB: u64 = 1 << 20;

    pub fn case(pattern: Pattern, threads: usize) -> Case {
        Case {
            pattern,
            threads,
            record: 4096,
        }
    }

    /// A row of two runs with so many accesses a second, on average.
    pub fn row(on: Side, case: Case, ops: f64) -> OvercommitRow {
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

    pub fn report(rows: Vec<OvercommitRow>) -> OvercommitReport {
        OvercommitReport {
            size_bytes: 64 * MIB,
            memory_bytes: 32 * MIB,
            thp: Some("always".into()),
            rows,
            replacement: Vec::new(),
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
}
