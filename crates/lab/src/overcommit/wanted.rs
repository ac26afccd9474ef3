//! What is wanted of the live side, and whether the rows of a report show it.

use serde::Serialize;

use super::{Case, OvercommitReport};
use crate::program::walk::Pattern;
use crate::size::PAGE;
use crate::{Side, wanted};

/// Pattern, and how many times the kernel's accesses a second are wanted with two threads and with
/// one.
const SPEED: [(Pattern, f64, f64); 3] = [
    (Pattern::Uniform, 1.0, 0.9),
    (Pattern::Zipf, 0.9, 0.8),
    (Pattern::Sequential, 1.8, 1.6),
];
/// The most of the kernel's time that the fill may take, with two threads.
const FILL: f64 = 0.65;
/// The most of the kernel's CPU time for each fault, the eviction that makes room for it included.
const CPU: f64 = 1.2;
/// How many times the speed of one thread two must have, where the kernel's have as much.
const SCALE: f64 = 1.5;

/// Something that is wanted of the live side with records of a page.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Target {
    /// In which order records are accessed.
    pub pattern: &'static str,
    /// By how many threads.
    pub threads: usize,
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

impl OvercommitReport {
    /// What is wanted and can be told from these rows.
    pub fn targets(&self) -> Vec<Target> {
        let ratios = self.ratios();
        let mut all = Vec::new();
        for (pattern, two, one) in SPEED {
            let name = pattern.name();
            let mut add = |threads, what, at_least, want, found: f64| {
                all.push(Target {
                    pattern: name,
                    threads,
                    what,
                    at_least,
                    want,
                    found,
                    holds: wanted::holds(at_least, want, found),
                });
            };
            for (threads, want) in [(2, two), (1, one)] {
                let is_it =
                    |r: &&super::Ratio| (r.pattern, r.threads, r.record) == (name, threads, PAGE);
                let Some(ratio) = ratios.iter().find(is_it) else {
                    continue;
                };
                add(threads, "of the kernel's accesses", true, want, ratio.ops);
                if threads == 2 {
                    add(threads, "of its time to fill", false, FILL, ratio.fill);
                    // Elsewhere a fault brings more pages here than there.
                    if let Some(cpu) = ratio.cpu_per_fault
                        && pattern == Pattern::Uniform
                    {
                        add(threads, "of its CPU time a fault", false, CPU, cpu);
                    }
                }
            }
            let scale = |on| {
                let ops = |threads| {
                    let case = Case {
                        pattern,
                        threads,
                        record: PAGE,
                    };
                    self.row(on, case).map(|row| row.ops_per_s)
                };
                Some(ops(2)? / ops(1)?)
            };
            if let (Some(live), Some(kernel)) = (scale(Side::Live), scale(Side::Kernel))
                && kernel >= SCALE
            {
                add(2, "of its own accesses with one", true, SCALE, live);
            }
        }
        all
    }

    pub(super) fn wanted_text(&self, text: &mut String) {
        let line = |t: Target| {
            let of = format!("{:<10} threads {} {:<28}", t.pattern, t.threads, t.what);
            let what = format!("{of} {} {:.2}", wanted::bound(t.at_least), t.want);
            (t.holds, what, t.found)
        };
        let all = self.targets().into_iter().map(line);
        wanted::write(text, "wanted, records of a page", all);
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{case, report, row};
    use super::*;

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
        let slow = targets.iter().find(|t| t.threads == 1).unwrap();
        assert!(!slow.holds, "{slow:?}");
        let text = report.to_text();
        assert!(text.contains("NO  uniform    threads 1"), "{text}");
    }
}
