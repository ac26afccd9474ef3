//! The report of the pageout experiment, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::Case;
use super::measure::Measured;
use super::wanted::Target;
use crate::Side;
use crate::figures::median;
use crate::model::ModelPageout;
use crate::size;

/// What the model's times are of.
const SIMULATION: &str = "simulation";

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
        zero_pages: u64,
        stored_pages: u64,
        stored_bytes: u64,
        error: Option<String>,
    ) -> Self {
        Self {
            on,
            case,
            median_s: median(&measured.wall_s),
            runs_s: measured.wall_s,
            cpu_s: median(&measured.cpu_s),
            zero_pages,
            stored_pages,
            stored_bytes,
            discarded: measured.discarded,
            times_of: (on == Side::Model).then_some(SIMULATION),
            error,
        }
    }

    /// The model's row; none without a run.
    pub(super) fn of_model(case: Case, runs: &[ModelPageout]) -> Option<Self> {
        let last = runs.last()?;
        let measured = Measured {
            wall_s: runs.iter().map(|run| run.wall_s).collect(),
            cpu_s: runs.iter().map(|run| run.cpu_s).collect(),
            discarded: 0,
        };
        let ModelPageout {
            zero_pages,
            stored_pages,
            stored_bytes,
            ..
        } = *last;
        Some(Self::new(
            Side::Model,
            case,
            measured,
            zero_pages,
            stored_pages,
            stored_bytes,
            None,
        ))
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

/// All rows.
#[derive(Clone, Debug)]
pub struct PageoutReport {
    /// Size of the mapping in bytes.
    pub size_bytes: usize,
    /// One row for each case and side.
    pub rows: Vec<PageoutRow>,
    /// For each case, the seconds that zeroing and scanning alone take with all CPUs.
    pub floor: Vec<(Case, f64)>,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    experiment: &'static str,
    size_bytes: usize,
    rows: &'a [PageoutRow],
    ratios: BTreeMap<Case, Ratio>,
    floor_s: BTreeMap<Case, f64>,
    live_to_floor: BTreeMap<Case, f64>,
    wanted: Vec<Target>,
}

impl PageoutReport {
    pub(super) fn new(size_bytes: usize) -> Self {
        Self {
            size_bytes,
            rows: Vec::new(),
            floor: Vec::new(),
        }
    }

    /// True if a row does not count.
    pub fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.error.is_some())
    }

    /// Live against kernel, for each case that has both.
    pub fn ratios(&self) -> BTreeMap<Case, Ratio> {
        let find = |on, case| {
            self.rows
                .iter()
                .find(|row| row.on == on && row.case == case)
        };
        Case::ALL
            .into_iter()
            .filter_map(|case| {
                let (live, kernel) = (find(Side::Live, case)?, find(Side::Kernel, case)?);
                let ratio = Ratio {
                    live_to_kernel: live.median_s / kernel.median_s,
                    cpu_live_to_kernel: live.cpu_s / kernel.cpu_s,
                };
                Some((case, ratio))
            })
            .collect()
    }

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        let json = Json {
            schema: 1,
            experiment: "pageout",
            size_bytes: self.size_bytes,
            rows: &self.rows,
            ratios: self.ratios(),
            floor_s: self.floor.iter().copied().collect(),
            live_to_floor: self.live_to_floor(),
            wanted: self.targets(),
        };
        serde_json::to_string(&json).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }

    /// The report as a table.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "pageout: {} in huge pages, MADV_PAGEOUT, unmap; best: 1 page of 512 holds a byte, \
             worst: the last byte of each, middle: a byte in the middle half of each, \
             text: lz4 2.5:1\n\n",
            size::human(self.size_bytes as u64)
        );
        text.push_str(
            "case    on        median s     cpu s  zero pages  stored pages      stored  runs s\n",
        );
        for row in &self.rows {
            let runs: Vec<String> = row.runs_s.iter().map(|s| format!("{s:.3}")).collect();
            let _ = write!(
                text,
                "{:6}  {:8}  {:8.3}  {:8.3}  {:10}  {:12}  {:>10}  {}",
                row.case.name(),
                row.on,
                row.median_s,
                row.cpu_s,
                row.zero_pages,
                row.stored_pages,
                size::human(row.stored_bytes),
                runs.join(" "),
            );
            if let Some(what) = row.times_of {
                let _ = write!(text, "  (times of the {what}, in no ratio)");
            }
            if row.discarded > 0 {
                let _ = write!(text, "  ({} cold runs repeated)", row.discarded);
            }
            text.push('\n');
            if let Some(error) = &row.error {
                let _ = writeln!(text, "        FAILED: {error}");
            }
        }
        text.push('\n');
        for (case, ratio) in self.ratios() {
            let _ = writeln!(
                text,
                "{:6}  live / kernel: {:.2} of the time, {:.2} of the CPU time",
                case.name(),
                ratio.live_to_kernel,
                ratio.cpu_live_to_kernel
            );
        }
        let live = self.live_to_floor();
        for (case, seconds) in &self.floor {
            let _ = write!(
                text,
                "{:6}  floor: {seconds:.3} s to zero and scan it once with all CPUs",
                case.name()
            );
            let _ = match live.get(case) {
                Some(times) => writeln!(text, "; live takes {times:.2} times as long"),
                None => writeln!(text),
            };
        }
        self.wanted_text(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(on: Side, wall_s: &[f64]) -> PageoutRow {
        let measured = Measured {
            wall_s: wall_s.into(),
            cpu_s: vec![2.0],
            discarded: 0,
        };
        PageoutRow::new(on, Case::Best, measured, 511, 1, 20, None)
    }

    #[test]
    fn r115_report_has_the_promised_shape() {
        let mut report = PageoutReport::new(2 << 20);
        report.rows = vec![row(Side::Live, &[2.0, 0.5, 1.0]), row(Side::Kernel, &[4.0])];
        report.floor = vec![(Case::Best, 0.25)];
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
        assert!(
            report.to_text().contains("live / kernel: 0.25"),
            "{}",
            report.to_text()
        );
    }

    #[test]
    fn r115_a_failed_row_is_told_in_both_forms() {
        let mut report = PageoutReport::new(2 << 20);
        report.rows = vec![row(Side::Live, &[1.0, 2.0])];
        report.rows[0].error = Some("lost a byte".into());
        assert!(report.failed());
        assert!(report.to_json().contains(r#""error":"lost a byte""#));
        assert!(report.to_text().contains("FAILED: lost a byte"));
        assert!(report.ratios().is_empty());
        assert_eq!(report.rows[0].median_s, 1.5);
    }
}
