//! The rows as SVG: a panel for each number of threads and each length of records, in it for each
//! pattern a bar of each side.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::OvercommitRow;
use crate::Side;
use crate::program::walk::Pattern;

/// Height of a panel's plane, and the room above and below it, in pixels.
const HIGH: f64 = 160.0;
const ABOVE: f64 = 44.0;
const BELOW: f64 = 60.0;
const LEFT: f64 = 16.0;
/// A bar, and the two of a pattern with the room beside them.
const BAR: f64 = 30.0;
const PAIR: f64 = 2.0 * BAR + 16.0;
const SIDES: [(Side, &str); 2] = [(Side::Live, "#369"), (Side::Kernel, "#c93")];

/// The picture of at least one row.
pub(super) fn svg(rows: &[&OvercommitRow]) -> String {
    let panels: BTreeSet<(usize, usize)> = rows.iter().map(|r| (r.record, r.threads)).collect();
    let mut drawn = String::new();
    let (mut x, mut top, mut wide) = (LEFT, ABOVE, 520.0_f64);
    let mut last = None;
    for (record, threads) in panels {
        // A line for each length of records.
        if last.is_some_and(|last| last != record) {
            (x, top) = (LEFT, top + HIGH + BELOW);
        }
        last = Some(record);
        let of = |r: &&&OvercommitRow| (r.record, r.threads) == (record, threads);
        let rows: Vec<&OvercommitRow> = rows.iter().filter(of).copied().collect();
        x = panel(&mut drawn, x, top, &rows);
        wide = wide.max(x);
    }
    let high = top + HIGH + BELOW;
    let mut legend = String::new();
    for (n, (side, colour)) in SIDES.iter().enumerate() {
        let x = 300.0 + n as f64 * 80.0;
        let _ = write!(
            legend,
            "<rect x=\"{x}\" y=\"9\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"18\">{side}</text>",
            x + 14.0
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" \
         viewBox=\"0 0 {wide} {high}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">Accesses a second, thousands</text>\
         {legend}\n{drawn}</svg>\n"
    )
}

/// Draws one, and returns where the next begins.
fn panel(svg: &mut String, left: f64, top: f64, rows: &[&OvercommitRow]) -> f64 {
    let most = (rows.iter().map(|r| r.ops_per_s)).fold(1.0, f64::max);
    let bottom = top + HIGH;
    let mut x = left;
    for name in Pattern::ALL.map(Pattern::name) {
        let pair: Vec<_> = rows.iter().filter(|r| r.pattern == name).collect();
        if pair.is_empty() {
            continue;
        }
        for (n, (side, colour)) in SIDES.iter().enumerate() {
            let Some(row) = pair.iter().find(|r| r.on == *side) else {
                continue;
            };
            let (x, high) = (x + n as f64 * BAR, (HIGH - 16.0) * row.ops_per_s / most);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" \
                 fill=\"{colour}\"/><text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"9\">{:.1}</text>",
                bottom - high,
                BAR - 3.0,
                bottom - high - 3.0,
                row.ops_per_s / 1000.0,
            );
        }
        let y = bottom + 13.0;
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>");
        x += PAIR;
    }
    if let Some(row) = rows.first() {
        let _ = writeln!(
            svg,
            "<text x=\"{left:.1}\" y=\"{:.1}\" font-weight=\"bold\">threads {}, records of {} \
             bytes</text>",
            bottom + 30.0,
            row.threads,
            row.record
        );
    }
    x.max(left + 190.0) + 24.0
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{case, report, row};
    use super::*;

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
        let none = super::super::OvercommitReport {
            rows: Vec::new(),
            ..report
        };
        assert!(none.to_svg().is_err());
    }
}
