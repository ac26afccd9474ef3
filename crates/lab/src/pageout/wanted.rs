//! What is wanted of the live side, and whether the rows of a report show it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Case, PageoutReport};
use crate::{Side, wanted};

/// Most of the kernel's CPU time that the live side may take.
const CPU: f64 = 1.0;

/// Most of the kernel's wall time that the live side may take.
const fn time(case: Case) -> f64 {
    match case {
        Case::Best => 0.4,
        Case::Worst => 0.25,
        Case::Text => 0.7,
    }
}

/// Something that is wanted of the live side in one case.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Target {
    /// The case.
    pub case: Case,
    /// What.
    pub what: &'static str,
    /// At most so much.
    pub want: f64,
    /// What was measured.
    pub found: f64,
    /// Whether it is so, and both rows count.
    pub holds: bool,
}

impl PageoutReport {
    /// What is wanted and can be told from these rows: the cases that have both sides.
    pub fn targets(&self) -> Vec<Target> {
        let mut all = Vec::new();
        for (case, ratio) in self.ratios() {
            let counts = |r: &&super::PageoutRow| r.case == case && r.on != Side::Model;
            let counts = self.rows.iter().filter(counts).all(|r| r.error.is_none());
            for (what, want, found) in [
                ("of the kernel's time", time(case), ratio.live_to_kernel),
                ("of its CPU time", CPU, ratio.cpu_live_to_kernel),
            ] {
                all.push(Target {
                    case,
                    what,
                    want,
                    found,
                    // Of what could not be measured nothing holds.
                    holds: counts && found <= want,
                });
            }
        }
        all
    }

    /// For each case how many times the floor's seconds the live side takes.
    pub fn live_to_floor(&self) -> BTreeMap<Case, f64> {
        let live = |case| {
            let mut rows = self.rows.iter();
            rows.find(|r| r.on == Side::Live && r.case == case)
        };
        let of = |&(case, floor): &(Case, f64)| Some((case, live(case)?.median_s / floor));
        self.floor.iter().filter_map(of).collect()
    }

    pub(super) fn wanted_text(&self, text: &mut String) {
        let line = |t: Target| {
            let of = format!("{:<5} {:<21}", t.case.name(), t.what);
            (t.holds, format!("{of} at most {:.2}", t.want), t.found)
        };
        let all = self.targets().into_iter().map(line);
        wanted::write(text, "wanted, live against the kernel", all);
    }
}

#[cfg(test)]
mod tests {
    use super::super::PageoutRow;
    use super::super::measure::Measured;
    use super::*;

    fn row(on: Side, case: Case, wall_s: f64, cpu_s: f64) -> PageoutRow {
        let measured = Measured {
            wall_s: vec![wall_s],
            cpu_s: vec![cpu_s],
            discarded: 0,
        };
        PageoutRow::new(on, case, measured, 0, 0, 0, None)
    }

    fn report() -> PageoutReport {
        let mut report = PageoutReport::new(2 << 20);
        report.rows = vec![
            row(Side::Live, Case::Best, 4.0, 10.5),
            row(Side::Kernel, Case::Best, 10.0, 10.0),
            row(Side::Live, Case::Worst, 2.6, 10.0),
            row(Side::Kernel, Case::Worst, 10.0, 10.0),
            row(Side::Model, Case::Worst, 900.0, 900.0),
            row(Side::Live, Case::Text, 7.0, 1.0),
        ];
        report.floor = vec![(Case::Best, 2.0), (Case::Worst, 1.3)];
        report
    }

    #[test]
    fn r99_r115_what_is_wanted_is_judged_case_by_case() {
        let report = report();
        let got: Vec<_> = report
            .targets()
            .into_iter()
            .map(|t| (t.case, t.want, t.found, t.holds))
            .collect();
        // No word on text: the kernel has not run it.
        assert_eq!(
            got,
            [
                (Case::Best, 0.4, 0.4, true),
                (Case::Best, 1.0, 1.05, false),
                (Case::Worst, 0.25, 0.26, false),
                (Case::Worst, 1.0, 1.0, true),
            ]
        );
        let floors: Vec<_> = report.live_to_floor().into_iter().collect();
        assert_eq!(floors, [(Case::Best, 2.0), (Case::Worst, 2.0)]);
        let text = report.to_text();
        let yes = "  yes best  of the kernel's time  at most 0.40: 0.400\n";
        assert!(text.contains(yes), "{text}");
        assert!(text.contains("  NO  worst of the kernel's time  at most 0.25: 0.260\n"));
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
            let of = report.targets().into_iter().filter(|t| t.case == case);
            of.map(|t| t.holds).collect::<Vec<_>>()
        };
        assert_eq!(holds(Case::Best), [false, false]);
        assert_eq!(holds(Case::Worst), [false, true], "the others stand");
        report.rows[0].median_s = f64::NAN;
        report.rows[0].error = None;
        assert!(!report.targets()[0].holds, "nor does what was not measured");
    }
}
