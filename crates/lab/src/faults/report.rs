//! The report of the experiment on faults, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::FaultsOptions;
use crate::program::walk::faults::Told;
use crate::program::walk::faults::clock::Part;
use crate::program::walk::{Pattern, RATIO};
use crate::size::human;

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
    pub pattern: &'static str,
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

/// Stages in the order of the table, with what they belong to.
const STAGES: [(Part, &str, &str); Part::ALL.len()] = [
    (Part::Message, "read the message", FAULT),
    (Part::Aside, "wait while pages are unmapped", FAULT),
    (Part::LookUp, "look up (core)", FAULT),
    (Part::Late, "look up, wait for room (worker)", FAULT),
    (Part::ReadBack, "read back", FAULT),
    (Part::Look, "discarded meanwhile?", FAULT),
    (Part::Install, "install and wake", FAULT),
    (Part::Forget, "free the slot", FAULT),
    (Part::Pick, "pick (core)", PAGE),
    (Part::Unmap, "unmap", PAGE),
    (Part::Scan, "look for zeros", PAGE),
    (Part::Compress, "compress", PAGE),
    (Part::Keep, "store", PAGE),
    (Part::Free, "free the page", PAGE),
];

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
        for (part, stage, of) in STAGES {
            let sum = told.part(part);
            rest = rest.saturating_sub(sum.cpu);
            let number = if of == FAULT {
                told.faults
            } else {
                told.evicted
            };
            stages.push(StageRow {
                stage,
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
            pattern: pattern.name(),
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

    fn text(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{}, threads {}: {:.0} accesses a second ({:.0} while timed), {:.2} faults an \
             access, each reads {:.2} pages and has {:.2} evicted",
            self.pattern,
            self.threads,
            self.ops_per_s,
            self.ops_per_s_timed,
            self.faults_per_op,
            self.read_per_fault,
            self.evicted_per_fault,
        );
        let _ = writeln!(
            text,
            "a fault takes {:.1} us: delivery {:.1}, service {:.1}, installing and waking {:.1} \
             (median {:.1}, 99 % {:.1}), and {:.1} us of CPU time with its evictions",
            self.delivery_us + self.service_us + self.wake_us,
            self.delivery_us,
            self.service_us,
            self.wake_us,
            self.median_us,
            self.p99_us,
            self.cpu_us_per_fault,
        );
        text.push_str(
            "  stage                            for each         us     CPU  waiting  \
             of all CPU   calls\n",
        );
        for s in &self.stages {
            let number = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.2}"));
            let _ = writeln!(
                text,
                "  {:31}  {:12} {:>6}  {:6.2}  {:>7}  {:8.1} %  {:>6}",
                s.stage,
                s.of,
                number(s.us),
                s.cpu_us,
                number(s.us.map(|us| (us - s.cpu_us).max(0.0))),
                100.0 * s.cpu_share,
                s.calls.map_or("-".into(), |n| n.to_string()),
            );
        }
    }
}

/// All rows.
#[derive(Clone, Debug)]
pub struct FaultsReport {
    /// Bytes of the working set.
    pub size_bytes: u64,
    /// RAM that the pager may use, in bytes.
    pub memory_bytes: u64,
    /// One row for each pattern and number of threads.
    pub rows: Vec<FaultsRow>,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    experiment: &'static str,
    size_bytes: u64,
    memory_bytes: u64,
    rows: &'a [FaultsRow],
}

impl FaultsReport {
    pub(super) fn new(options: &FaultsOptions) -> Self {
        Self {
            size_bytes: options.size,
            memory_bytes: options.memory(),
            rows: Vec::new(),
        }
    }

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        let json = Json {
            schema: 1,
            experiment: "faults",
            size_bytes: self.size_bytes,
            memory_bytes: self.memory_bytes,
            rows: &self.rows,
        };
        serde_json::to_string(&json).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }

    /// The report as tables.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "faults: a working set of {} ({RATIO}:1) in {} of RAM, every access verified, a \
             quarter writes\n",
            human(self.size_bytes),
            human(self.memory_bytes),
        );
        self.rows.iter().for_each(|row| row.text(&mut text));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for part in Part::ALL {
            assert_eq!(STAGES.iter().filter(|s| s.0 == part).count(), 1, "{part:?}");
        }
    }

    #[test]
    fn r150_the_table_of_faults_has_every_stage() {
        let report = FaultsReport {
            size_bytes: 64 << 20,
            memory_bytes: 32 << 20,
            rows: vec![FaultsRow::new(Pattern::Zipf, 2, 50.0, 40.0, &told())],
        };
        let text = report.to_text();
        for (_, stage, _) in STAGES {
            assert!(text.contains(stage), "{stage}: {text}");
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
