//! The rows as SVG: one panel for each workload, one bar for each row, on a logarithmic scale.

use std::fmt::Write;

use super::{AnonRow, Policy};
use crate::Side;
use crate::program::anon::Workload;

/// Height of a panel's plane, and the room above and below it, in pixels.
const HIGH: f64 = 200.0;
const ABOVE: f64 = 60.0;
const BELOW: f64 = 44.0;
const LEFT: f64 = 16.0;
/// A bar, with the room beside it.
const BAR: f64 = 18.0;

/// The picture of at least one row.
pub(super) fn svg(rows: &[AnonRow]) -> String {
    let speed = rows.iter().any(|r| r.ops_per_s.is_some());
    let value = |r: &AnonRow| match speed {
        true => r.ops_per_s,
        false => r.pages_per_fault,
    };
    let what = match speed {
        true => "Operations per second",
        false => "Pages for each fault",
    };
    let (mut panels, mut x) = (String::new(), LEFT);
    for workload in Workload::ALL {
        let bars: Vec<(&AnonRow, f64)> = (rows.iter())
            .filter(|r| r.workload == workload.name())
            .filter_map(|r| Some((r, value(r).filter(|v| *v > 0.0)?)))
            .collect();
        if !bars.is_empty() {
            panel(&mut panels, x, workload, &bars);
            x += bars.len() as f64 * BAR + 60.0;
        }
    }
    let (width, height) = (x.max(520.0), ABOVE + HIGH + BELOW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{what}, logarithmic; in each panel the \
         smallest is 1</text>\n"
    );
    for (n, side) in [Side::Live, Side::Kernel, Side::Model]
        .into_iter()
        .enumerate()
    {
        let x = LEFT + 80.0 * n as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"26\" width=\"10\" height=\"10\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"35\">{side}</text>",
            colour(side),
            x + 14.0
        );
    }
    svg + &panels + "</svg>\n"
}

const fn colour(side: Side) -> &'static str {
    match side {
        Side::Live => "#0a6",
        Side::Kernel => "#555",
        Side::Model => "#38c",
    }
}

fn panel(svg: &mut String, left: f64, workload: Workload, bars: &[(&AnonRow, f64)]) {
    let least = bars.iter().map(|b| b.1).fold(f64::INFINITY, f64::min);
    let most = bars.iter().map(|b| b.1).fold(0.0, f64::max);
    // A bar of the smallest value is still seen.
    let scale = (most / least).ln().max(0.7);
    let bottom = ABOVE + HIGH;
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
        bottom + 36.0,
        workload.name()
    );
    for (n, (row, value)) in bars.iter().enumerate() {
        let high = 8.0 + (HIGH - 24.0) * (value / least).ln() / scale;
        let x = left + n as f64 * BAR;
        let name = match row.policy {
            Policy::Base => "4k",
            Policy::K64 => "64k",
            Policy::Adaptive => "ad",
            Policy::Pmd => "2M",
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"{}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"8\">{:.1}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"8\">{name}</text>",
            bottom - high,
            BAR - 3.0,
            colour(row.on),
            bottom - high - 3.0,
            value / least,
            bottom + 12.0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: Workload, policy: Policy, ops_per_s: Option<f64>) -> AnonRow {
        AnonRow {
            on: Side::Live,
            workload: workload.name(),
            policy,
            ops_per_s,
            runs_ops_per_s: Vec::new(),
            faults: 1,
            pages_per_fault: Some(16.0),
            peak_bytes: 4096,
            amplification: None,
        }
    }

    #[test]
    fn r150_the_picture_has_a_bar_for_each_row_and_no_empty_panel() {
        let rows = [
            row(Workload::Fill, Policy::Base, Some(10.0)),
            row(Workload::Fill, Policy::Pmd, Some(80.0)),
            row(Workload::Sparse, Policy::Base, None),
        ];
        let picture = svg(&rows);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(
            picture.contains("Operations") && picture.contains(">8.0<"),
            "{picture}"
        );
        assert!(
            !picture.contains("sparse") && !picture.contains("NaN"),
            "{picture}"
        );
        let faults = svg(&rows[2..]);
        assert!(faults.contains("Pages for each") && faults.contains("sparse"));
    }
}
