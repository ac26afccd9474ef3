//! The report of the anon-folio experiment, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::{Counts, Policy, plot};
use crate::program::anon::{Figures, Workload};
use crate::size;
use crate::{LabError, Side, wanted};

/// What the series reported in 2023, folios of 64 KiB against base pages (Ampere Altra): which
/// of our workloads it belongs to, what it is of, and by how many percent it went up.
const PUBLISHED: [(Workload, &str, f64); 5] = [
    (Workload::PageFault1, "page_fault1, ops/s", 410.5),
    (Workload::Malloc1, "malloc1, ops/s", -47.1),
    (Workload::TlbFlush, "tlb_flush1, ops/s", 5.7),
    (Workload::TlbFlush, "tlb_flush2, ops/s", 20.8),
    // 8 jobs: 373.0 s before, 342.8 s after, as runs in a time.
    (Workload::Compile, "kernel build with 8 jobs, builds/s", 8.8),
];

/// One policy of one workload on one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AnonRow {
    /// The side.
    pub on: Side,
    /// The workload's name.
    pub workload: &'static str,
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

/// Something that is wanted of the policies.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Target {
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
pub struct AnonReport {
    /// One row for each side, workload and policy.
    pub rows: Vec<AnonRow>,
}

#[derive(Serialize)]
struct Published {
    workload: &'static str,
    what: &'static str,
    change_pct: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    experiment: &'static str,
    rows: &'a [AnonRow],
    targets: Vec<Target>,
    published: Vec<Published>,
}

impl AnonReport {
    /// Adds a row of a side that runs programs.
    pub(super) fn add(
        &mut self,
        on: Side,
        workload: Workload,
        policy: Policy,
        runs: Vec<Figures>,
        peak: Option<u64>,
    ) {
        let rate = |f: &Figures| f.ops as f64 / f.seconds;
        let rates = runs.iter().map(rate).collect();
        let mut runs = runs;
        runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let Some(middle) = runs.get(runs.len() / 2) else {
            return;
        };
        let each = |a: u64, b: u64| (a > 0 && b > 0).then(|| a as f64 / b as f64);
        self.rows.push(AnonRow {
            on,
            workload: workload.name(),
            policy,
            ops_per_s: Some(rate(middle)),
            runs_ops_per_s: rates,
            faults: middle.faults,
            pages_per_fault: each(middle.pages, middle.faults),
            peak_bytes: peak.unwrap_or(middle.used),
            amplification: each(middle.used, middle.touched),
        });
    }

    /// Adds a row of the model.
    pub(super) fn add_model(&mut self, workload: Workload, policy: Policy, of: Counts) {
        self.rows.push(AnonRow {
            on: Side::Model,
            workload: workload.name(),
            policy,
            ops_per_s: None,
            runs_ops_per_s: Vec::new(),
            faults: of.faults,
            pages_per_fault: Some(of.pages as f64 / of.faults.max(1) as f64),
            peak_bytes: of.peak_bytes,
            amplification: Some(of.peak_bytes as f64 / of.touched_bytes.max(1) as f64),
        });
    }

    /// Fills in what takes two rows to tell.
    pub(super) fn finish(&mut self) {
        for i in 0..self.rows.len() {
            let row = &self.rows[i];
            if row.pages_per_fault.is_none()
                && let Some(base) = self.row(row.on, row.workload, Policy::Base)
            {
                let pages = base.faults as f64 / row.faults.max(1) as f64;
                self.rows[i].pages_per_fault = Some(pages);
            }
        }
    }

    fn row(&self, on: Side, workload: &str, policy: Policy) -> Option<&AnonRow> {
        let mut rows = self.rows.iter();
        rows.find(|r| (r.on, r.workload, r.policy) == (on, workload, policy))
    }

    /// What is wanted of the policies and can be told from these rows.
    pub fn targets(&self) -> Vec<Target> {
        use Policy::{Adaptive, Base, K64, Pmd};
        use Side::{Kernel, Live, Model};
        use Workload::{Compile, Fill, Malloc1, PageFault1, Sparse};
        let mut all = Vec::new();
        let mut add = |what, at_least, want, found: Option<f64>| {
            let found = found.filter(|found| found.is_finite());
            all.extend(found.map(|found| Target {
                what,
                at_least,
                want,
                found,
                holds: wanted::holds(at_least, want, found),
            }));
        };
        let row = |on, w: Workload, p| self.row(on, w.name(), p);
        let of = |(a, b): (Option<&AnonRow>, Option<&AnonRow>), f: fn(&AnonRow) -> f64| {
            Some(f(a?) / f(b?))
        };
        let speed = |r: &AnonRow| r.ops_per_s.unwrap_or(f64::NAN);
        let peak = |r: &AnonRow| r.peak_bytes as f64;
        let faults = |r: &AnonRow| r.faults as f64;
        for on in [Live, Model] {
            let pair = |w, a, b| (row(on, w, a), row(on, w, b));
            let less = of(pair(Fill, Base, K64), faults).map(|x| (x / 16.0 - 1.0).abs());
            add(
                "fill, 64k: how far from 1/16 of the faults of base pages",
                false,
                0.01,
                less,
            );
            let less = of(pair(Fill, Base, Adaptive), faults);
            add(
                "fill, adaptive: faults of base pages for each fault",
                true,
                400.0,
                less,
            );
            let more = row(on, Sparse, Adaptive).and_then(|r| r.amplification);
            add("sparse, adaptive: amplification", false, 2.0, more);
            let more = of(pair(Compile, Adaptive, Base), peak);
            add(
                "compile, adaptive: memory, of that of base pages",
                false,
                1.02,
                more,
            );
        }
        let each = row(Model, Compile, Adaptive).and_then(|r| r.pages_per_fault);
        add(
            "compile, adaptive on the model: pages for each fault",
            true,
            3.0,
            each,
        );
        let live = |w, p| row(Live, w, p);
        let kernel = |w, p| row(Kernel, w, p);
        let fast = of(
            (live(PageFault1, Adaptive), kernel(PageFault1, Base)),
            speed,
        );
        add("page_fault1, live adaptive / kernel base", true, 1.3, fast);
        let fast = of((live(PageFault1, Adaptive), kernel(PageFault1, Pmd)), speed);
        add("page_fault1, live adaptive / kernel pmd", true, 0.8, fast);
        let fast = of((live(Malloc1, Adaptive), live(Malloc1, Base)), speed);
        add("malloc1, live adaptive / live base", true, 0.95, fast);
        all
    }

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> String {
        let published = PUBLISHED.map(|(workload, what, change_pct)| Published {
            workload: workload.name(),
            what,
            change_pct,
        });
        let json = Json {
            schema: 1,
            experiment: "anon-folio",
            rows: &self.rows,
            targets: self.targets(),
            published: published.into(),
        };
        serde_json::to_string(&json).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }

    /// The report as tables.
    pub fn to_text(&self) -> String {
        let mut text = String::from(
            "anon-folio: anonymous memory in folios of one page (base), up to 64 KiB, adaptive, \
             and 2 MiB (pmd)\n",
        );
        for workload in Workload::ALL {
            let rows: Vec<&AnonRow> = (self.rows.iter())
                .filter(|r| r.workload == workload.name())
                .collect();
            if rows.is_empty() {
                continue;
            }
            let _ = writeln!(
                text,
                "\n{:<12} {:<7} {:>12} {:>9} {:>9} {:>12} {:>10} {:>7}",
                workload.name(),
                "on",
                "ops/s",
                "of base",
                "faults",
                "pages/fault",
                "memory",
                "amplif."
            );
            for r in rows {
                let base = self.row(r.on, r.workload, Policy::Base);
                let of_base = base.and_then(|b| Some(r.ops_per_s? / b.ops_per_s?));
                let _ = writeln!(
                    text,
                    "  {:<10} {:<7} {:>12} {:>9} {:>9} {:>12} {:>10} {:>7}",
                    r.policy.name(),
                    r.on,
                    number(r.ops_per_s, if r.ops_per_s < Some(100.0) { 2 } else { 0 }),
                    number(of_base, 2),
                    r.faults,
                    number(r.pages_per_fault, 1),
                    size::human(r.peak_bytes),
                    number(r.amplification, 2),
                );
            }
            for (_, what, change) in PUBLISHED.iter().filter(|(w, _, _)| *w == workload) {
                let ours: String = [Side::Live, Side::Kernel]
                    .into_iter()
                    .filter_map(|on| Some((on, self.change(on, workload)?)))
                    .map(|(on, change)| format!(", here {on} {change:+.1} %"))
                    .collect();
                let _ = writeln!(
                    text,
                    "  64 KiB against base, published: {what} {change:+.1} %{ours}"
                );
            }
        }
        if self.rows.iter().any(|r| r.on == Side::Model) {
            text.push_str(
                "\nmodel: no speed; fork there is with the child's memory, and compile is a \
                 pattern (see docs/fault-order.md)\n",
            );
        }
        let line = |t: Target| {
            let bound = wanted::bound(t.at_least);
            (
                t.holds,
                format!("{:<62} {bound} {:>6}", t.what, t.want),
                t.found,
            )
        };
        wanted::write(&mut text, "wanted", self.targets().into_iter().map(line));
        text
    }

    /// By how many percent 64 KiB is faster than base pages.
    fn change(&self, on: Side, workload: Workload) -> Option<f64> {
        let of = |policy| self.row(on, workload.name(), policy)?.ops_per_s;
        Some((of(Policy::K64)? / of(Policy::Base)? - 1.0) * 100.0)
    }

    /// A picture: speed where a side has one, else pages for each fault.
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

/// A number, or a dash.
fn number(n: Option<f64>, digits: usize) -> String {
    n.map_or("-".into(), |n| format!("{n:.digits$}"))
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

    fn report() -> AnonReport {
        let mut report = AnonReport::default();
        let w = Workload::Fill;
        let runs = vec![figures(64, 64), figures(32, 32), figures(640, 640)];
        report.add(Side::Live, w, Policy::Base, runs, None);
        report.add(Side::Live, w, Policy::K64, vec![figures(64, 4)], Some(4096));
        report.finish();
        report
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
        let mut report = AnonReport::default();
        let unknown = |faults| Figures {
            pages: 0,
            used: 0,
            touched: 0,
            ..figures(1, faults)
        };
        let w = Workload::Compile;
        report.add(Side::Kernel, w, Policy::Base, vec![unknown(900)], Some(1));
        report.add(Side::Kernel, w, Policy::Pmd, vec![unknown(300)], Some(1));
        report.finish();
        assert_eq!(report.rows[1].pages_per_fault, Some(3.0));
        assert_eq!(report.rows[1].amplification, None);
    }
}
