//! The picture: panels below each other over one axis of time.

use std::fmt::{Display, Write};

use super::series::{Panel, Series, panels};
use super::{escaped, time};
use crate::record::{Mark, Record};

/// Width of the planes and room beside them, in pixels.
pub(super) const WIDE: f64 = 840.0;
pub(super) const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
/// Height of a plane; of the first one, and room above and below each.
const HIGH: f64 = 96.0;
const FIRST: f64 = 220.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 26.0;
/// Marks that are drawn.
const MARKS: usize = 400;

struct Svg(String);

impl Svg {
    fn line(&mut self, text: impl Display) {
        let _ = writeln!(self.0, "{text}");
    }

    fn text(&mut self, x: f64, y: f64, style: &str, text: &str) {
        let text = escaped(text);
        self.line(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{style}>{text}</text>"
        ));
    }
}

/// A plane: where its lower left corner is, and what its height stands for.
struct Plane {
    bottom: f64,
    high: f64,
    most: f64,
    end: f64,
}

impl Plane {
    fn x(&self, t: u64) -> f64 {
        LEFT + WIDE * (t as f64 / self.end).min(1.0)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.high * (value / self.most).clamp(0.0, 1.0)
    }

    fn path(&self, times: &[u64], values: &[f64]) -> String {
        let mut path = String::new();
        for (i, (t, value)) in times.iter().zip(values).enumerate() {
            let step = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", self.x(*t), self.y(*value));
        }
        path
    }
}

/// The picture.
pub(super) fn svg(record: &Record) -> String {
    let (times, panels) = panels(record);
    let last = record.marks.last().map_or(0, |mark| mark.t_ms);
    let end = times.last().copied().unwrap_or(0).max(last).max(1) as f64;
    let mut svg = Svg(String::new());
    let mut top = 0.0;
    for (n, panel) in panels.iter().enumerate() {
        let high = if n == 0 { FIRST } else { HIGH };
        let plane = Plane {
            bottom: top + ABOVE + high,
            high,
            most: most(panel, times.len()),
            end,
        };
        draw(&mut svg, panel, &plane, &times);
        if n == 0 {
            marks(&mut svg, &plane, &record.marks);
        }
        top = plane.bottom + BELOW;
    }
    let wide = LEFT + WIDE + RIGHT;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" id=\"chart\" width=\"{wide}\" height=\"{top}\" \
         viewBox=\"0 0 {wide} {top}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
        svg.0
    )
}

/// What the height of a panel stands for: a little more than its largest number.
fn most(panel: &Panel, points: usize) -> f64 {
    let stacked = (0..points).map(|i| panel.areas.iter().map(|s| s.values[i]).sum::<f64>());
    let lines = panel.lines.iter().flat_map(|s| s.values.iter().copied());
    let most = stacked.chain(lines).fold(0.0, f64::max);
    // A limit far above what is used would leave nothing to be seen.
    let limits = panel.limit.iter().flat_map(|(_, limits)| limits);
    let near = limits.copied().filter(|limit| *limit <= most * 4.0);
    let most = near.fold(most, f64::max);
    if most > 0.0 { most * 1.05 } else { 1.0 }
}

fn draw(svg: &mut Svg, panel: &Panel, plane: &Plane, times: &[u64]) {
    let (top, bottom) = (plane.bottom - plane.high, plane.bottom);
    svg.text(
        LEFT,
        top - 18.0,
        " font-size=\"13\" font-weight=\"bold\"",
        panel.title,
    );
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let y = bottom - plane.high * part;
        svg.line(format_args!(
            "<path d=\"M{LEFT} {y:.1}h{WIDE}\" stroke=\"#e4e4e4\"/>"
        ));
        let shown = panel.unit.show(plane.most * part);
        svg.text(
            LEFT - 6.0,
            y + 4.0,
            " text-anchor=\"end\" fill=\"#555\"",
            &shown,
        );
        let at = time((plane.end * part) as u64);
        let x = LEFT + WIDE * part;
        svg.text(
            x,
            bottom + 14.0,
            " text-anchor=\"middle\" fill=\"#555\"",
            &at,
        );
    }
    let mut below = vec![0.0; times.len()];
    for area in &panel.areas {
        let above: Vec<f64> = below.iter().zip(&area.values).map(|(b, v)| b + v).collect();
        let back: Vec<f64> = below.iter().rev().copied().collect();
        let back_times: Vec<u64> = times.iter().rev().copied().collect();
        let (upper, lower) = (plane.path(times, &above), plane.path(&back_times, &back));
        let shape = format!("{upper}{}Z", lower.replacen('M', "L", 1));
        svg.line(format_args!(
            "<path d=\"{shape}\" fill=\"{}\"/>",
            area.colour
        ));
        below = above;
    }
    for line in &panel.lines {
        let (path, colour) = (plane.path(times, &line.values), line.colour);
        svg.line(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        ));
    }
    limit(svg, panel, plane, times);
    legend(svg, panel, top - 18.0);
}

/// The limit, from each change to the next; what is above the plane is left out.
fn limit(svg: &mut Svg, panel: &Panel, plane: &Plane, times: &[u64]) {
    let Some((name, limits)) = &panel.limit else {
        return;
    };
    let (mut at, mut begin) = (0, LEFT);
    for same in limits.chunk_by(|a, b| a == b) {
        at += same.len();
        let end = times.get(at).map_or(LEFT + WIDE, |t| plane.x(*t));
        let limit = same[0];
        if limit > 0.0 && limit <= plane.most {
            let (y, wide) = (plane.y(limit), end - begin);
            svg.line(format_args!(
                "<path d=\"M{begin:.1} {y:.1}h{wide:.1}\" fill=\"none\" stroke=\"#c0392b\" \
                 stroke-dasharray=\"6 3\"/>"
            ));
            let shown = format!("{name} {}", panel.unit.show(limit));
            let style = " text-anchor=\"end\" fill=\"#c0392b\"";
            // Where it holds but for a moment there is no room for a word.
            if wide > 6.2 * shown.len() as f64 || at == limits.len() {
                svg.text(end - 4.0, y - 4.0, style, &shown);
            }
        }
        begin = end;
    }
}

fn legend(svg: &mut Svg, panel: &Panel, y: f64) {
    let mut x = LEFT + 150.0;
    let all = panel.areas.iter().chain(&panel.lines);
    for Series { name, colour, .. } in all {
        svg.line(format_args!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
            y - 9.0
        ));
        svg.text(x + 14.0, y, "", name);
        x += 34.0 + 6.2 * name.len() as f64;
    }
}

/// Ticks above the first plane, down to its bottom of kills and of what a user did; what happened
/// is in their titles.
fn marks(svg: &mut Svg, plane: &Plane, marks: &[Mark]) {
    let top = plane.bottom - plane.high;
    let is_rare = |mark: &&Mark| ["kill", "set", "reclaim"].contains(&mark.sort.as_str());
    let rare = marks.iter().filter(is_rare);
    let others = marks.iter().filter(|mark| !is_rare(mark));
    for mark in rare.chain(others).take(MARKS) {
        let (colour, down) = match mark.sort.as_str() {
            "kill" => ("#c0392b", plane.high),
            "set" => ("#8a4f9e", plane.high),
            "reclaim" => ("#0f8a8a", plane.high),
            "start" => ("#2e7d4f", 0.0),
            _ => ("#777777", 0.0),
        };
        let (x, down) = (plane.x(mark.t_ms), down + 6.0);
        let title = escaped(&format!("{} {} {}", time(mark.t_ms), mark.sort, mark.what));
        svg.line(format_args!(
            "<path d=\"M{x:.1} {:.1}v{down:.1}\" stroke=\"{colour}\" stroke-width=\"2\">\
             <title>{title}</title></path>",
            top - 6.0
        ));
    }
}
