//! The report of the capture experiment.

use std::fmt::Write;

use serde::Serialize;

use super::{Capture, Job, Outcome, RATES, Variant, builds};
use crate::experiment::{All, Json, Report, Tell};
use crate::figures::{Mean, percentile};
use crate::model::build::BuildRow;
use crate::plot::{self, Curves, curves};
use crate::size::{PAGE, human};
use crate::table::Column::{self, Left, Right};
use crate::table::{table, with_error};

/// Baseline success in percent, lowest and highest, between which the experiment says anything.
const BASELINE: [f64; 2] = [15.0, 60.0];
/// Rates at which the gain must be clear.
const CLEAR_RATES: [f64; 2] = [1.0, 4.0];
/// Standard errors that a clear gain is at least.
const CLEAR: f64 = 2.0;
/// Parts of a curve.
const POINTS: u64 = 200;

/// What the capture series reported in 2008.
#[derive(Clone, Copy, Serialize)]
struct Published {
    machine: &'static str,
    absolute_gain_pct: f64,
    effective_gain_pct: f64,
}

const PUBLISHED: [Published; 2] = [
    Published {
        machine: "x86_64",
        absolute_gain_pct: 2.48,
        effective_gain_pct: 4.58,
    },
    Published {
        machine: "powerpc",
        absolute_gain_pct: 5.55,
        effective_gain_pct: 25.22,
    },
];

/// One variant at one rate.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CaptureRow {
    /// Whether pages were captured.
    pub capture: bool,
    /// Which parts of capture were in use.
    pub variant: Variant,
    /// CPUs that took single pages.
    pub threads: usize,
    /// Pages that they took for each page reclaimed.
    pub rate: f64,
    /// Memory obtained as blocks, in percent; mean over the seeds.
    pub success_pct: f64,
    /// Standard error of that mean.
    pub standard_error_pct: Option<f64>,
    /// Steps of a request, failed ones included, median.
    pub p50_steps: u64,
    /// The same, 99th percentile.
    pub p99_steps: u64,
    /// How whole the free memory was, 0 to 1.
    pub fragmentation: f64,
    /// Requests, and blocks obtained, of all seeds.
    pub requests: u64,
    /// Blocks obtained.
    pub blocks: u64,
    /// Of these, from the capture list, in percent.
    pub from_capture_pct: f64,
    /// Pages reclaimed for each block obtained.
    pub reclaimed_per_block: f64,
    /// Pages captured: freed by the reclaimer, pulled in from the free lists, freed by others.
    pub captured_own: u64,
    /// Pulled in from the free lists.
    pub captured_absorbed: u64,
    /// Freed by others.
    pub captured_joined: u64,
    /// The most pages captured at a time.
    pub captured_peak: u64,
    /// Success of each seed.
    pub successes_pct: Vec<f64>,
}

/// What capture gains at one rate.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// CPUs that took single pages.
    pub threads: usize,
    /// Pages that they took for each page reclaimed.
    pub rate: f64,
    /// Success with capture minus success without, mean over the seeds.
    pub absolute_gain_pct: f64,
    /// Standard error of that mean, of the differences seed by seed.
    pub standard_error_pct: Option<f64>,
    /// The gain in percent of the success without capture.
    pub effective_gain_pct: f64,
}

/// Huge page faults beside a cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FaultRow {
    /// Whether pages were captured.
    pub capture: bool,
    /// CPUs that faulted.
    pub threads: usize,
    /// Blocks that became huge, in percent of those faulted; mean over the seeds.
    pub success_pct: f64,
    /// Standard error of that mean.
    pub standard_error_pct: Option<f64>,
    /// Steps until a block was there, median.
    pub p50_steps: u64,
    /// The same, 99th percentile.
    pub p99_steps: u64,
}

/// What is reported beside the rows of the stream, which are one for each number of threads, rate
/// and variant.
#[derive(Clone, PartialEq, Debug)]
pub struct More {
    /// Gains at each number of threads and rate, if both sides were run.
    pub gains: Vec<Gain>,
    /// Over all of them.
    pub overall: Option<Gain>,
    /// The second shape.
    pub faults: Vec<FaultRow>,
    /// A build, if both sides were run.
    pub builds: Vec<BuildRow>,
    /// Success over time, for the plot.
    curves: Vec<Curve>,
}

/// Mean success over time of one variant at one rate.
#[derive(Clone, PartialEq, Debug)]
struct Curve {
    rate: f64,
    capture: bool,
    /// Steps at the end of the longest run.
    end: u64,
    /// Percent at `POINTS` equal parts of the time until `end`.
    at: Vec<f64>,
}

impl Curve {
    /// The mean over runs; a run that has ended keeps what it had.
    fn new(rate: f64, capture: bool, runs: &[&Outcome]) -> Self {
        let last = |o: &&Outcome| o.progress.last().map_or(0, |(step, _)| *step);
        let end = runs.iter().map(last).max().unwrap_or(0);
        let at = (0..=POINTS).map(|i| {
            let time = end * i / POINTS;
            let of = |o: &&Outcome| {
                let n = o.progress.partition_point(|(step, _)| *step <= time);
                n.checked_sub(1).map_or(0.0, |i| o.progress[i].1)
            };
            runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64
        });
        Self {
            rate,
            capture,
            end,
            at: at.collect(),
        }
    }
}

/// The rows of all runs, and the rest of the report.
pub(super) fn rows(options: &Capture, all: &[(Job, Outcome)]) -> (Vec<CaptureRow>, More) {
    let of = |variant: Variant, threads: usize, quarters: Option<u64>| -> Vec<&Outcome> {
        let wanted = (variant, threads, quarters);
        let of = all
            .iter()
            .filter(|(j, _)| (j.variant, j.threads, j.quarters) == wanted);
        of.map(|(_, outcome)| outcome).collect()
    };
    let (mut rows, mut gains, mut curves) = (Vec::new(), Vec::new(), Vec::new());
    let mut all_gains: Vec<f64> = Vec::new();
    for &threads in &options.threads {
        for quarters in RATES {
            let rate = quarters as f64 / 4.0;
            let of = |variant| of(variant, threads, Some(quarters));
            for &variant in &options.variants {
                let outcomes = of(variant);
                rows.push(row(variant, threads, rate, &outcomes));
                // Of several numbers of threads, the first.
                if matches!(variant, Variant::Off | Variant::On) && curves.len() < 6 {
                    curves.push(Curve::new(rate, variant.captures(), &outcomes));
                }
            }
            let (off, on) = (of(Variant::Off), of(Variant::On));
            if !off.is_empty() && !on.is_empty() {
                let pairs = on
                    .iter()
                    .zip(&off)
                    .map(|(on, off)| on.success_pct - off.success_pct);
                let pairs: Vec<f64> = pairs.collect();
                let base = Mean::of(off.iter().map(|o| o.success_pct)).mean;
                gains.push(gain(threads, rate, &pairs, base));
                all_gains.extend(pairs);
            }
        }
    }
    let off = rows
        .iter()
        .filter(|r: &&CaptureRow| r.variant == Variant::Off);
    let base = Mean::of(off.map(|r| r.success_pct)).mean;
    let overall = (!gains.is_empty()).then(|| gain(0, 0.0, &all_gains, base));
    let pairs = options
        .threads
        .iter()
        .flat_map(|t| options.variants.iter().map(|v| (*t, *v)));
    let faults = pairs.filter_map(|(t, v)| fault_row(t, v, &of(v, t, None)));
    let more = More {
        faults: faults.collect(),
        gains,
        overall,
        builds: Vec::new(),
        curves,
    };
    (rows, more)
}

fn row(variant: Variant, threads: usize, rate: f64, of: &[&Outcome]) -> CaptureRow {
    let success = Mean::of(of.iter().map(|o| o.success_pct));
    let mut latency: Vec<u64> = of.iter().flat_map(|o| o.latency.iter().copied()).collect();
    let sum = |f: fn(&Outcome) -> u64| of.iter().map(|o| f(o)).sum::<u64>();
    let blocks = sum(|o| o.blocks);
    CaptureRow {
        capture: variant.captures(),
        variant,
        threads,
        rate,
        success_pct: success.mean,
        standard_error_pct: success.error,
        p50_steps: percentile(&mut latency, 50.0),
        p99_steps: percentile(&mut latency, 99.0),
        fragmentation: Mean::of(of.iter().map(|o| o.fragmentation)).mean,
        requests: latency.len() as u64,
        blocks,
        from_capture_pct: 100.0 * sum(|o| o.from_capture) as f64 / blocks.max(1) as f64,
        reclaimed_per_block: sum(|o| o.reclaimed) as f64 / blocks.max(1) as f64,
        captured_own: sum(|o| o.capture.own),
        captured_absorbed: sum(|o| o.capture.absorbed),
        captured_joined: sum(|o| o.capture.joined),
        captured_peak: of.iter().map(|o| o.capture.peak).max().unwrap_or(0),
        successes_pct: of.iter().map(|o| o.success_pct).collect(),
    }
}

fn gain(threads: usize, rate: f64, pairs: &[f64], base: f64) -> Gain {
    let mean = Mean::of(pairs.iter().copied());
    Gain {
        threads,
        rate,
        absolute_gain_pct: mean.mean,
        standard_error_pct: mean.error,
        effective_gain_pct: if base > 0.0 {
            100.0 * mean.mean / base
        } else {
            0.0
        },
    }
}

fn fault_row(threads: usize, variant: Variant, of: &[&Outcome]) -> Option<FaultRow> {
    let huge = Mean::of(of.iter().map(|o| o.success_pct));
    let mut latency: Vec<u64> = of.iter().flat_map(|o| o.latency.clone()).collect();
    (!of.is_empty()).then(|| FaultRow {
        capture: variant.captures(),
        threads,
        success_pct: huge.mean,
        standard_error_pct: huge.error,
        p50_steps: percentile(&mut latency, 50.0),
        p99_steps: percentile(&mut latency, 99.0),
    })
}

impl Report<Capture> {
    /// Whether what must hold of the experiment holds: the baseline in its range at each rate,
    /// the gain clear at rates 1 and 4. `None` if this was another experiment.
    pub fn holds(&self) -> Option<bool> {
        let baseline = |r: &CaptureRow| {
            r.variant != Variant::Off || (BASELINE[0]..=BASELINE[1]).contains(&r.success_pct)
        };
        let clear = |g: &Gain| {
            let (mean, error) = (g.absolute_gain_pct, g.standard_error_pct);
            !CLEAR_RATES.contains(&g.rate) || Mean { mean, error }.clear_of_zero(CLEAR)
        };
        let fixed = self.options.is_the_fixed_one();
        fixed.then(|| self.rows.iter().all(baseline) && self.more.gains.iter().all(clear))
    }
}

const STREAM: [Column<CaptureRow>; 9] = [
    Left("capture", |r| r.variant.to_string()),
    Right("threads", |r| r.threads.to_string()),
    Right("rate", |r| r.rate.to_string()),
    Right("success %", |r| {
        with_error(r.success_pct, r.standard_error_pct, 2)
    }),
    Right("p50", |r| r.p50_steps.to_string()),
    Right("p99", |r| r.p99_steps.to_string()),
    Right("from list", |r| format!("{:.0} %", r.from_capture_pct)),
    Right("whole", |r| format!("{:.2}", r.fragmentation)),
    Right("reclaimed", |r| format!("{:.0}", r.reclaimed_per_block)),
];

/// Of what, absolute, and effective.
type Line = (String, String, f64);

const GAINS: [Column<Line>; 3] = [
    Left("", |(what, ..)| what.clone()),
    Right("", |(_, absolute, _)| absolute.clone()),
    Right("", |(.., effective)| format!("{effective:+.2} %")),
];

const FAULTS: [Column<FaultRow>; 5] = [
    Left("capture", |r| if r.capture { "on" } else { "off" }.into()),
    Right("threads", |r| r.threads.to_string()),
    Right("huge %", |r| {
        with_error(r.success_pct, r.standard_error_pct, 2)
    }),
    Right("p50", |r| r.p50_steps.to_string()),
    Right("p99", |r| r.p99_steps.to_string()),
];

fn gain_line(what: String, g: &Gain) -> Line {
    let sign = if g.absolute_gain_pct < 0.0 { "" } else { "+" };
    let absolute = with_error(g.absolute_gain_pct, g.standard_error_pct, 2);
    (what, format!("{sign}{absolute}"), g.effective_gain_pct)
}

impl More {
    /// Success over time, with capture and without; none without a run of either.
    pub(super) fn plot(&self) -> Option<String> {
        let mut rates: Vec<f64> = self.curves.iter().map(|c| c.rate).collect();
        rates.dedup();
        let panel = |rate: f64| {
            let of: Vec<&Curve> = self.curves.iter().filter(|c| c.rate == rate).collect();
            let end = of.iter().map(|c| c.end).max().unwrap_or(0).max(1);
            let line = |c: &&Curve| {
                let time = |i: usize| c.end as f64 * i as f64 / POINTS as f64 / end as f64;
                let point = |(i, pct): (usize, &f64)| (time(i), pct / 100.0);
                let mut points: Vec<(f64, f64)> = c.at.iter().enumerate().map(point).collect();
                // A run that has ended keeps what it had, to the end of the panel.
                points.extend(points.last().map(|(_, y)| (1.0, *y)));
                let (name, colour) = match c.capture {
                    true => ("capture on", "#0a6"),
                    false => ("capture off", "#c33"),
                };
                plot::Line {
                    name,
                    colour,
                    points,
                }
            };
            Curves {
                title: format!("{rate} pages taken for each page reclaimed"),
                end: format!("{end} steps"),
                lines: of.iter().map(line).collect(),
            }
        };
        let panels: Vec<Curves> = rates.into_iter().map(panel).collect();
        let title = "Memory obtained as large blocks over time, in percent";
        (!panels.is_empty()).then(|| curves(title, &panels))
    }
}

impl Tell for Capture {
    const NAME: &'static str = "capture";
    type Row = CaptureRow;
    type More = More;
    type Of = All;

    fn text(report: &Report<Self>) -> String {
        let (o, more) = (&report.options, &report.more);
        let mut text = format!(
            "capture: blocks of {} from a zone of {}, while others take single pages\n\
             on the software machine, {} seeds from {}; latency in steps of the machine\n\n",
            human((PAGE as u64) << o.order),
            human(o.memory),
            o.seeds,
            o.seed,
        );
        table(&mut text, 0, &STREAM, &report.rows, |_| None);
        text.push_str(
            "\nsuccess: memory obtained as blocks. from list: blocks that came from the capture \
             list.\nwhole: how whole free memory was (0 to 1). reclaimed: pages for each block.\n",
        );
        if let Some(overall) = &more.overall {
            text.push_str("\ngain by capture, absolute (points) and effective (of success off):");
            let each = |g: &Gain| gain_line(format!("{} threads, rate {}", g.threads, g.rate), g);
            let mut lines: Vec<Line> = more.gains.iter().map(each).collect();
            lines.push(gain_line("all".into(), overall));
            lines.extend(PUBLISHED.iter().map(|p| {
                let absolute = format!("{:+.2}", p.absolute_gain_pct);
                let of = format!("published, {}", p.machine);
                (of, absolute, p.effective_gain_pct)
            }));
            table(&mut text, 2, &GAINS, &lines, |_| None);
        }
        if !more.faults.is_empty() {
            let _ = writeln!(
                text,
                "\nhuge page faults of 80 % of the memory beside a cache (after thpchallenge):"
            );
            table(&mut text, 0, &FAULTS, &more.faults, |_| None);
        }
        builds::text(&mut text, &more.builds);
        text.push_str(match report.holds() {
            Some(true) => {
                "\nholds: success off is 15 to 60 % at each rate, and the gain at rates 1 and 4 is \
                 at least twice its standard error\n"
            }
            Some(false) => {
                "\nDOES NOT HOLD: success off must be 15 to 60 % at each rate, and the gain at \
                 rates 1 and 4 at least twice its standard error\n"
            }
            None => "",
        });
        text
    }

    fn json(report: &Report<Self>, json: Json) -> Json {
        let (o, more) = (&report.options, &report.more);
        let overall = more.overall.as_ref();
        json.with("memory_bytes", &o.memory)
            .with("order", &o.order)
            .with("seed", &o.seed)
            .with("seeds", &o.seeds)
            .with("rows", &report.rows)
            .with("gains", &more.gains)
            .with("absolute_gain_pct", &overall.map(|g| g.absolute_gain_pct))
            .with("effective_gain_pct", &overall.map(|g| g.effective_gain_pct))
            .with(
                "standard_error_pct",
                &overall.and_then(|g| g.standard_error_pct),
            )
            .with("faults", &more.faults)
            .with("builds", &more.builds)
            .with("published", &PUBLISHED)
            // Null where it is not the fixed experiment.
            .with("holds", &report.holds())
    }

    /// True if it is the fixed experiment, and what must come of it does not.
    fn failed(report: &Report<Self>) -> bool {
        report.holds() == Some(false)
    }

    fn plot(report: &Report<Self>) -> Option<String> {
        report.more.plot()
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
        assert_eq!((curve.end, curve.at.len()), (200, POINTS as usize + 1));
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
        let more = More {
            gains: Vec::new(),
            overall: None,
            faults: Vec::new(),
            builds: Vec::new(),
            curves: vec![curve(0.25, false), curve(0.25, true), curve(4.0, false)],
        };
        let svg = more.plot().unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("pages taken for each").count(), 2);
        assert_eq!(svg.matches("capture on").count(), 1);
        assert_eq!(svg.matches("capture off").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
