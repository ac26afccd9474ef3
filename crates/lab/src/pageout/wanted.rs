//! What is wanted of the live side, and whether the rows of a report show it. The bounds are for
//! `--size 4G`: what does not grow with the size weighs more in a smaller one.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Case, PageoutReport, PageoutRow};
use crate::{Side, wanted};

/// Most of the kernel's CPU time that the live side may take.
const CPU: f64 = 1.0;

/// Most of the kernel's wall time that the live side may take.
const fn time(case: Case) -> f64 {
    match case {
        Case::Best => 0.4,
        Case::Worst => 0.25,
        Case::Middle => 0.3,
        Case::Text => 0.6,
    }
}

/// How many times the floor's seconds the live side may take, where that is bounded.
const fn floor(case: Case) -> Option<f64> {
    match case {
        Case::Best => Some(1.6),
        Case::Worst | Case::Middle | Case::Text => None,
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
    /// What is wanted and can be told from these rows: beside the kernel the cases that have both
    /// sides, beside the floor those that have the live one.
    pub fn targets(&self) -> Vec<Target> {
        let counts = |case, sides: &[Side]| {
            let of = |r: &&PageoutRow| r.case == case && sides.contains(&r.on);
            self.rows.iter().filter(of).all(|r| r.error.is_none())
        };
        let target = |case, sides: &[Side], what, want, found| Target {
            case,
            what,
            want,
            found,
            // Of what could not be measured nothing holds.
            holds: counts(case, sides) && found <= want,
        };
        let (ratios, floors) = (self.ratios(), self.live_to_floor());
        let of_case = |case| {
            let both = [Side::Live, Side::Kernel];
            let of_kernel = ratios.get(&case).map(|r| {
                let (wall, cpu) = (r.live_to_kernel, r.cpu_live_to_kernel);
                [
                    target(case, &both, "of the kernel's time", time(case), wall),
                    target(case, &both, "of its CPU time", CPU, cpu),
                ]
            });
            let of_floor = floor(case).zip(floors.get(&case));
            let of_floor = of_floor
                .map(|(want, found)| target(case, &[Side::Live], "of the floor", want, *found));
            of_kernel.into_iter().flatten().chain(of_floor)
        };
        Case::ALL.into_iter().flat_map(of_case).collect()
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
            let of = format!("{:<6} {:<21}", t.case.name(), t.what);
            (t.holds, format!("{of} at most {:.2}", t.want), t.found)
        };
        let all = self.targets().into_iter().map(line);
        wanted::write(text, "wanted of live, at 4G", all);
    }
}

#[cfg(test)]
mod tests {
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
            row(Side::Live, Case::Middle, 3.0, 9.0),
            row(Side::Kernel, Case::Middle, 10.0, 10.0),
            row(Side::Live, Case::Text, 6.0, 1.0),
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
            let of = report.targets().into_iter().filter(|t| t.case == case);
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
        let mut report = PageoutReport::new(2 << 20);
        report.rows = vec![
            row(Side::Live, Case::Best, 3.2, 1.0),
            row(Side::Live, Case::Worst, 9.0, 1.0),
            row(Side::Model, Case::Best, 900.0, 900.0),
        ];
        report.floor = vec![(Case::Best, 2.0), (Case::Worst, 2.0)];
        let [best] = report.targets()[..] else {
            panic!("{:?}", report.targets());
        };
        assert_eq!((best.case, best.want), (Case::Best, 1.6));
        assert_eq!((best.found, best.holds), (1.6, true));
        report.rows[0].error = Some("lost a byte".into());
        assert!(!report.targets()[0].holds);
    }
}
