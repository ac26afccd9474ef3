//! Pictures as SVG: bars and curves, in panels.

use std::fmt::{Display, Write};

/// Height of a panel's plane, and the room above and below it, in pixels.
const HIGH: f64 = 180.0;
const ABOVE: f64 = 44.0;
const BELOW: f64 = 60.0;
/// Room beside the first panel, and between two of them.
const LEFT: f64 = 16.0;
const BETWEEN: f64 = 40.0;
/// A bar, with the room beside it.
const BAR: f64 = 24.0;
/// Width of a panel of curves, and the room for what stands beside its axis.
const WIDE: f64 = 300.0;
const AXIS: f64 = 36.0;

/// One bar.
pub(crate) struct Bar {
    /// What stands below and above it.
    pub name: String,
    pub value: String,
    /// Height, from 0 to 1, and colour of each part, the highest first; none leaves room.
    pub parts: Vec<(f64, &'static str)>,
}

/// Bars side by side.
pub(crate) struct Panel {
    pub title: String,
    pub bars: Vec<Bar>,
}

/// Curves in one plane, from 0 to 100 percent.
pub(crate) struct Curves {
    pub title: String,
    /// What stands at the end of the axis.
    pub end: String,
    pub lines: Vec<Line>,
}

/// A curve.
pub(crate) struct Line {
    pub name: &'static str,
    pub colour: &'static str,
    /// Both from 0 to 1.
    pub points: Vec<(f64, f64)>,
}

#[derive(Default)]
struct Svg {
    body: String,
    wide: f64,
}

impl Svg {
    fn text(&mut self, x: f64, y: f64, style: &str, text: impl Display) {
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{style}>{text}</text>"
        );
    }

    fn rect(&mut self, x: f64, y: f64, wide: f64, high: f64, colour: &str) {
        let size = format!("width=\"{wide:.1}\" height=\"{high:.1}\"");
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" {size} fill=\"{colour}\"/>"
        );
    }

    fn path(&mut self, path: &str, colour: &str) {
        let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"");
        let _ = writeln!(self.body, "<path d=\"{path}\" {style}/>");
    }

    fn end(self, title: &str, high: f64) -> String {
        let (wide, body) = (self.wide.max(520.0), self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" \
             viewBox=\"0 0 {wide} {high}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n{body}</svg>\n"
        )
    }
}

/// Lines of panels of bars, below a title and a legend of names and colours.
pub(crate) fn bars(title: &str, legend: &[(&str, &str)], lines: &[Vec<Panel>]) -> String {
    let mut svg = Svg::default();
    for (n, (name, colour)) in legend.iter().enumerate() {
        let x = LEFT + 80.0 * n as f64;
        svg.rect(x, 26.0, 10.0, 10.0, colour);
        svg.text(x + 14.0, 35.0, "", name);
    }
    let mut top = ABOVE;
    for line in lines {
        let (mut x, bottom) = (LEFT, top + HIGH);
        for panel in line {
            for (n, bar) in panel.bars.iter().enumerate() {
                let (x, high) = (x + n as f64 * BAR, |part: f64| (HIGH - 16.0) * part);
                for (part, colour) in &bar.parts {
                    svg.rect(x, bottom - high(*part), BAR - 3.0, high(*part), colour);
                }
                let highest = bar.parts.first().map_or(0.0, |(part, _)| high(*part));
                svg.text(x, bottom - highest - 3.0, " font-size=\"8\"", &bar.value);
                svg.text(x, bottom + 12.0, " font-size=\"9\"", &bar.name);
            }
            svg.text(x, bottom + 30.0, " font-weight=\"bold\"", &panel.title);
            let words = 7.0 * panel.title.len() as f64;
            x += words.max(panel.bars.len() as f64 * BAR) + BETWEEN;
        }
        svg.wide = svg.wide.max(x);
        top = bottom + BELOW;
    }
    svg.end(title, top)
}

/// Panels of curves beside each other.
pub(crate) fn curves(title: &str, panels: &[Curves]) -> String {
    let mut svg = Svg::default();
    let (mut left, bottom) = (LEFT + AXIS, ABOVE + HIGH);
    for panel in panels {
        for percent in [0, 20, 40, 60, 80, 100] {
            let y = bottom - HIGH * f64::from(percent) / 100.0;
            svg.path(&format!("M{left} {y:.1}h{WIDE}"), "#ddd");
            svg.text(left - 6.0, y + 4.0, " text-anchor=\"end\"", percent);
        }
        svg.text(left, ABOVE - 8.0, "", &panel.title);
        svg.text(left, bottom + 16.0, "", 0);
        svg.text(
            left + WIDE,
            bottom + 16.0,
            " text-anchor=\"end\"",
            &panel.end,
        );
        for (n, line) in panel.lines.iter().enumerate() {
            let mut path = String::new();
            for (i, (x, y)) in line.points.iter().enumerate() {
                let step = if i == 0 { 'M' } else { 'L' };
                let (x, y) = (left + WIDE * x, bottom - HIGH * y);
                let _ = write!(path, "{step}{x:.1} {y:.1}");
            }
            svg.path(&path, line.colour);
            let (x, y) = (left + 130.0 * n as f64, bottom + 36.0);
            svg.path(&format!("M{x} {:.1}h20", y - 4.0), line.colour);
            svg.text(x + 26.0, y, "", line.name);
        }
        left += WIDE + BETWEEN + AXIS;
        svg.wide = left;
    }
    svg.end(title, bottom + BELOW)
}
