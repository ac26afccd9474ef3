//! The rows as SVG: for each program and side a panel, for each setting a bar of settled memory.

use std::fmt::Write;

use super::{Setting, UnderusedRow};
use crate::Side;
use crate::program::underused::Program;

/// Height of a panel's plane, and the room above and below it, in pixels.
const HIGH: f64 = 160.0;
const ABOVE: f64 = 40.0;
const BELOW: f64 = 70.0;
const LEFT: f64 = 16.0;
/// A bar, with the room beside it.
const BAR: f64 = 18.0;

/// The picture of at least one row.
pub(super) fn svg(rows: &[UnderusedRow]) -> String {
    let (mut panels, mut wide, mut top) = (String::new(), 0.0_f64, ABOVE);
    for on in [Side::Live, Side::Kernel, Side::Model] {
        let mut x = LEFT;
        for program in Program::ALL.map(Program::name) {
            let mut bars: Vec<&UnderusedRow> = (rows.iter())
                .filter(|r| r.on == on && r.program == program)
                .collect();
            bars.sort_by_key(|r| r.setting);
            if !bars.is_empty() {
                panel(&mut panels, x, top, &bars);
                x += bars.len() as f64 * BAR + 40.0;
            }
        }
        if x > LEFT {
            wide = wide.max(x);
            top += HIGH + BELOW;
        }
    }
    let wide = wide.max(520.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{top}\" \
         viewBox=\"0 0 {wide} {top}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">Memory after pressure, MiB; dark: in huge \
         pages</text>\n{panels}</svg>\n"
    )
}

fn panel(svg: &mut String, left: f64, top: f64, bars: &[&UnderusedRow]) {
    let most = bars
        .iter()
        .map(|r| r.settled_bytes)
        .max()
        .unwrap_or(0)
        .max(1) as f64;
    let bottom = top + HIGH;
    let (program, on) = bars.first().map_or(("", Side::Live), |r| (r.program, r.on));
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{:.1}\" font-weight=\"bold\">{program} on {on}</text>",
        bottom + 28.0
    );
    for (n, row) in bars.iter().enumerate() {
        let x = left + n as f64 * BAR;
        let name = match row.setting {
            Setting::Madvise => "adv".into(),
            Setting::Always => "alw".into(),
            Setting::Shrink(n) => n.to_string(),
            Setting::Deckle => "dkl".into(),
        };
        let high = |bytes: u64| (HIGH - 16.0) * bytes as f64 / most;
        for (bytes, colour) in [
            (row.settled_bytes, "#9cf"),
            (row.huge_bytes.min(row.settled_bytes), "#369"),
        ] {
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                 fill=\"{colour}\"/>",
                bottom - high(bytes),
                BAR - 3.0,
                high(bytes),
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"8\">{}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"8\">{name}</text>",
            bottom - high(row.settled_bytes) - 3.0,
            row.settled_bytes >> 20,
            bottom + 12.0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{META, Run, UnderusedReport};
    use super::*;

    #[test]
    fn r138_each_setting_has_a_bar() {
        let run = |mib: u64| Run {
            time_s: None,
            peak: mib << 20,
            settled: mib << 20,
            huge: 0,
            splits: 0,
            underused_splits: 0,
            retouches: None,
        };
        let mut report = UnderusedReport::default();
        let (on, program) = (Side::Model, Program::Sparse);
        report.add(on, program, Setting::Madvise, 0, &[run(20)]);
        report.add(on, program, META, 0, &[run(77)]);
        let picture = report.to_svg().unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(
            picture.contains("sparse on model") && picture.contains(">77<"),
            "{picture}"
        );
        assert!(
            picture.contains(">409<") && !picture.contains("NaN"),
            "{picture}"
        );
        assert!(UnderusedReport::default().to_svg().is_err());
    }
}
