//! The report of the experiment on faults.

use std::fmt::Write;

use serde::Serialize;

use super::Faults;
use crate::experiment::{All, Json, Report, Tell};
use crate::program::walk::faults::Told;
use crate::program::walk::faults::clock::Part;
use crate::program::walk::{Pattern, RATIO};
use crate::size::human;
use crate::table::Column::{self, Left, Right};
use crate::table::{number, or_dash, table};

/// What a stage costs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageRow {
    /// Its name.
    pub stage: &'static str,
    /// What `us` and `cpu_us` are for: a fault, or a page that is evicted.
    pub of: &'static str,
    /// How often it was begun; none of what is only counted as CPU time.
    pub calls: Option<u64>,
    /// Microseconds for each fault or page; none where somebody waits for work.
    pub us: Option<f64>,
    /// ... of CPU time. The rest is waiting, for a CPU too.
    pub cpu_us: f64,
    /// Part of all CPU time of the process.
    pub cpu_share: f64,
}

/// One pattern with one number of threads.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FaultsRow {
    /// In which order records were accessed.
    pub pattern: Pattern,
    /// By how many threads.
    pub threads: usize,
    /// Accesses a second while nothing was timed; the median of the runs.
    pub ops_per_s: f64,
    /// ... of the run that was timed.
    pub ops_per_s_timed: f64,
    /// Faults for each access.
    pub faults_per_op: f64,
    /// Pages evicted for each fault.
    pub evicted_per_fault: f64,
    /// Pages read back for each fault.
    pub read_per_fault: f64,
    /// Microseconds of a fault, on average: until somebody serves it.
    pub delivery_us: f64,
    /// Until the page is installed: look-up, reading back, waiting for room.
    pub service_us: f64,
    /// Until the thread goes on: installing and waking.
    pub wake_us: f64,
    /// Microseconds of the fault in the middle.
    pub median_us: f64,
    /// 1 % take longer.
    pub p99_us: f64,
    /// CPU time of all for each fault, in microseconds, without that of the accesses themselves.
    pub cpu_us_per_fault: f64,
    /// All stages.
    pub stages: Vec<StageRow>,
}

const FAULT: &str = "fault";
const PAGE: &str = "evicted page";

fn us(ns: f64, of: u64) -> f64 {
    ns / 1000.0 / of.max(1) as f64
}

impl FaultsRow {
    pub(super) fn new(
        pattern: Pattern,
        threads: usize,
        ops_per_s: f64,
        ops_per_s_timed: f64,
        told: &Told,
    ) -> Self {
        let share = |cpu: u64| cpu as f64 / told.cpu.max(1) as f64;
        let program = |stage, cpu: u64, of| StageRow {
            stage,
            of,
            calls: None,
            us: None,
            cpu_us: us(cpu as f64, told.faults),
            cpu_share: share(cpu),
        };
        let mut stages = vec![program("the program's side", told.cpu_in_faults, FAULT)];
        let mut rest =
            (told.cpu).saturating_sub(told.cpu_in_faults + told.cpu_beside + told.clocks);
        for part in Part::ALL {
            let of = if part < Part::Pick { FAULT } else { PAGE };
            let sum = told.part(part);
            rest = rest.saturating_sub(sum.cpu);
            let number = if of == FAULT {
                told.faults
            } else {
                told.evicted
            };
            stages.push(StageRow {
                stage: part.name(),
                of,
                calls: Some(sum.calls),
                us: (part != Part::Message).then(|| us(sum.wall as f64, number)),
                cpu_us: us(sum.cpu as f64, number),
                cpu_share: share(sum.cpu),
            });
        }
        stages.push(program("in no stage", rest, FAULT));
        let per_fault = |n: u64| n as f64 / told.faults.max(1) as f64;
        let [delivery_us, service_us, wake_us] = told.latency.map(|ns| ns / 1000.0);
        Self {
            pattern,
            threads,
            ops_per_s,
            ops_per_s_timed,
            faults_per_op: told.faults as f64 / told.ops.max(1) as f64,
            evicted_per_fault: per_fault(told.evicted),
            read_per_fault: per_fault(told.read),
            delivery_us,
            service_us,
            wake_us,
            median_us: us(told.median as f64, 1),
            p99_us: us(told.p99 as f64, 1),
            cpu_us_per_fault: us(
                told.cpu.saturating_sub(told.cpu_beside + told.clocks) as f64,
                told.faults,
            ),
            stages,
        }
    }
}

const COLUMNS: [Column<StageRow>; 7] = [
    Left("stage", |s| s.stage.into()),
    Left("for each", |s| s.of.into()),
    Right("us", |s| number(s.us, 2)),
    Right("CPU", |s| format!("{:.2}", s.cpu_us)),
    Right("waiting", |s| {
        number(s.us.map(|us| (us - s.cpu_us).max(0.0)), 2)
    }),
    Right("of all CPU", |s| format!("{:.1} %", 100.0 * s.cpu_share)),
    Right("calls", |s| or_dash(s.calls)),
];

impl Tell for Faults {
    const NAME: &'static str = "faults";
    type Row = FaultsRow;
    type More = ();
    type Of = All;

    fn text(report: &Report<Self>) -> String {
        let set = report.options.set;
        let mut text = format!(
            "faults: a working set of {} ({RATIO}:1) in {} of RAM, every access verified, a \
             quarter writes\n",
            human(set.size),
            human(set.memory()),
        );
        for r in &report.rows {
            let _ = writeln!(
                text,
                "\n{}, threads {}: {:.0} accesses a second ({:.0} while timed), {:.2} faults an \
                 access, each reads {:.2} pages and has {:.2} evicted",
                r.pattern,
                r.threads,
                r.ops_per_s,
                r.ops_per_s_timed,
                r.faults_per_op,
                r.read_per_fault,
                r.evicted_per_fault,
            );
            let _ = writeln!(
                text,
                "a fault takes {:.1} us: delivery {:.1}, service {:.1}, installing and waking \
                 {:.1} (median {:.1}, 99 % {:.1}), and {:.1} us of CPU time with its evictions",
                r.delivery_us + r.service_us + r.wake_us,
                r.delivery_us,
                r.service_us,
                r.wake_us,
                r.median_us,
                r.p99_us,
                r.cpu_us_per_fault,
            );
            table(&mut text, 2, &COLUMNS, &r.stages, |_| None);
        }
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        json.with("size_bytes", &report.options.set.size)
            .with("memory_bytes", &report.options.set.memory())
            .with("rows", &report.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::working_set::WorkingSet;

    fn told() -> Told {
        let mut parts = vec![[0; 3]; Part::ALL.len()];
        parts[Part::Install as usize] = [10, 90_000, 50_000];
        parts[Part::Compress as usize] = [20, 80_000, 80_000];
        Told {
            ops: 40,
            seconds: 1.0,
            cpu: 400_000,
            cpu_in_faults: 40_000,
            cpu_beside: 130_000,
            faults: 10,
            latency: [5_000.0, 4_000.0, 3_000.0],
            median: 11_000,
            p99: 30_000,
            read: 10,
            evicted: 20,
            clocks: 0,
            parts,
        }
    }

    #[test]
    fn r150_stages_are_for_each_fault_or_page_and_all_cpu_time_is_told() {
        let row = FaultsRow::new(Pattern::Uniform, 1, 50.0, 40.0, &told());
        let stage = |name: &str| row.stages.iter().find(|s| s.stage == name).unwrap();
        let install = stage("install and wake");
        assert_eq!((install.us, install.cpu_us), (Some(9.0), 5.0));
        let compress = stage("compress");
        assert_eq!((compress.us, compress.cpu_us), (Some(4.0), 4.0));
        assert_eq!(compress.of, PAGE);
        assert_eq!(stage("the program's side").cpu_us, 4.0);
        assert_eq!(stage("in no stage").cpu_us, 10.0);
        assert_eq!(row.cpu_us_per_fault, 27.0);
        let shares: f64 = row.stages.iter().map(|s| s.cpu_share).sum();
        // What the accesses themselves take is in no row.
        assert!((shares - 270.0 / 400.0).abs() < 1e-9, "{shares}");
        assert_eq!((row.faults_per_op, row.evicted_per_fault), (0.25, 2.0));
    }

    #[test]
    fn r150_the_table_of_faults_has_every_stage() {
        let set = WorkingSet {
            size: 64 << 20,
            ratio: 0.5,
            seconds: 1.0,
        };
        let options = Faults {
            set,
            patterns: vec![Pattern::Zipf],
            threads: vec![2],
            runs: 1,
        };
        let report = Report {
            options,
            rows: vec![FaultsRow::new(Pattern::Zipf, 2, 50.0, 40.0, &told())],
            more: (),
        };
        let text = report.to_text();
        for part in Part::ALL {
            assert!(text.contains(part.name()), "{part:?}: {text}");
        }
        assert!(
            text.contains("a fault takes 12.0 us: delivery 5.0"),
            "{text}"
        );
        assert!(text.lines().all(|l| l.len() <= 160), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["rows"][0]["stages"][6]["us"], 0.0);
        assert_eq!(json["experiment"], "faults");
    }
}
