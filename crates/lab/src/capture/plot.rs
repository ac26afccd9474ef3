//! Success over time as SVG: one panel for each rate, one line with capture and one without.

use std::fmt::Write;

use super::stream::Outcome;

/// Points of a line.
const POINTS: usize = 200;
/// Size of a panel's plane, and the room around it, in pixels.
const WIDE: f64 = 300.0;
const HIGH: f64 = 240.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 44.0;
const BELOW: f64 = 52.0;

/// Mean success over time of one variant at one rate.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Curve {
    rate: f64,
    capture: bool,
    /// Steps at the end of the longest run.
    end: u64,
    /// Percent at `POINTS` equal parts of the time until `end`.
    at: Vec<f64>,
}

impl Curve {
    /// The mean over runs; a run that has ended keeps what it had.
    pub fn new(rate: f64, capture: bool, runs: &[&Outcome]) -> Self {
        let last = |o: &&Outcome| o.progress.last().map_or(0, |(step, _)| *step);
        let end = runs.iter().map(last).max().unwrap_or(0);
        let at = (0..=POINTS as u64)
            .map(|i| {
                let time = end * i / POINTS as u64;
                let of = |o: &&Outcome| {
                    let n = o.progress.partition_point(|(step, _)| *step <= time);
                    n.checked_sub(1).map_or(0.0, |i| o.progress[i].1)
                };
                runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64
            })
            .collect();
        Self {
            rate,
            capture,
            end,
            at,
        }
    }
}

/// The picture.
pub(super) fn svg(curves: &[Curve]) -> String {
    let mut rates: Vec<f64> = curves.iter().map(|c| c.rate).collect();
    rates.dedup();
    let panel = LEFT + WIDE + 16.0;
    let (width, height) = (panel * rates.len() as f64, TOP + HIGH + BELOW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"14\">Memory obtained as large blocks over time, \
         in percent</text>\n"
    );
    for (i, rate) in rates.iter().enumerate() {
        let of: Vec<&Curve> = curves.iter().filter(|c| c.rate == *rate).collect();
        one_panel(&mut svg, panel * i as f64 + LEFT, *rate, &of);
    }
    svg.push_str("</svg>\n");
    svg
}

fn one_panel(svg: &mut String, left: f64, rate: f64, curves: &[&Curve]) {
    let end = curves.iter().map(|c| c.end).max().unwrap_or(0).max(1);
    let bottom = TOP + HIGH;
    for pct in [0, 20, 40, 60, 80, 100] {
        let y = bottom - HIGH * f64::from(pct) / 100.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {y:.1}h{WIDE}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{pct}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{:.1}\">{rate} pages taken for each page reclaimed</text>\n\
         <text x=\"{left}\" y=\"{:.1}\">0</text>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{end} steps</text>",
        TOP - 8.0,
        bottom + 16.0,
        left + WIDE,
        bottom + 16.0
    );
    for (n, curve) in curves.iter().enumerate() {
        let (colour, name) = match curve.capture {
            true => ("#0a6", "capture on"),
            false => ("#c33", "capture off"),
        };
        let mut path = String::new();
        for (i, pct) in curve.at.iter().enumerate() {
            let time = curve.end as f64 * i as f64 / POINTS as f64 / end as f64;
            let (x, y) = (left + WIDE * time, bottom - HIGH * pct / 100.0);
            let step = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{x:.1} {y:.1}");
        }
        // A run that has ended keeps what it had, to the end of the panel.
        let _ = write!(path, "H{:.1}", left + WIDE);
        let (x, y) = (left + 130.0 * n as f64, bottom + 36.0);
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <path d=\"M{x} {:.1}h20\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{y}\">{name}</text>",
            y - 4.0,
            x + 26.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r29_a_curve_is_the_mean_of_runs_and_an_ended_run_keeps_what_it_had() {
        let run = |progress: &[(u64, f64)]| Outcome {
            progress: progress.to_vec(),
            ..Outcome::default()
        };
        let (a, b) = (run(&[(100, 10.0)]), run(&[(50, 20.0), (200, 40.0)]));
        let curve = Curve::new(1.0, true, &[&a, &b]);
        assert_eq!((curve.end, curve.at.len()), (200, POINTS + 1));
        assert_eq!((curve.at[0], curve.at[49]), (0.0, 0.0));
        assert_eq!((curve.at[50], curve.at[100]), (10.0, 15.0));
        assert_eq!(*curve.at.last().unwrap(), 25.0);
    }

    #[test]
    fn r29_the_picture_has_a_panel_for_each_rate_and_no_empty_one() {
        let o = Outcome {
            progress: vec![(10, 5.0)],
            ..Outcome::default()
        };
        let curve = |rate, capture| Curve::new(rate, capture, &[&o]);
        let curves = [curve(0.25, false), curve(0.25, true), curve(4.0, false)];
        let svg = svg(&curves);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("pages taken for each").count(), 2);
        assert_eq!(svg.matches("capture on").count(), 1);
        assert_eq!(svg.matches("capture off").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
