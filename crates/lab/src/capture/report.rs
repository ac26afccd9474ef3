//! The report of the capture experiment, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::faults::{self, Faults};
use super::plot::{self, Curve};
use super::stream::{self, Stream};
use super::{CaptureOptions, RATES, Variant};
use crate::figures::{Mean, percentile};
use crate::size;

/// Baseline success in percent, lowest and highest, between which the experiment says anything.
const BASELINE: [f64; 2] = [15.0, 60.0];
/// Rates at which the gain must be clear.
const CLEAR_RATES: [f64; 2] = [1.0, 4.0];
/// Standard errors that a clear gain is at least.
const CLEAR: f64 = 2.0;

/// What the capture series reported in 2008: machine, absolute and effective gain.
const PUBLISHED: [(&str, f64, f64); 2] = [("x86_64", 2.48, 4.58), ("powerpc", 5.55, 25.22)];

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

/// All of it.
#[derive(Clone, PartialEq, Debug)]
pub struct CaptureReport {
    /// What was run.
    pub options: CaptureOptions,
    /// The stream, one row for each number of threads, rate and variant.
    pub rows: Vec<CaptureRow>,
    /// Gains at each number of threads and rate, if both sides were run.
    pub gains: Vec<Gain>,
    /// Over all of them.
    pub overall: Option<Gain>,
    /// The second shape.
    pub faults: Vec<FaultRow>,
    /// Success over time, for the plot.
    curves: Vec<Curve>,
}

#[derive(Serialize)]
struct Published {
    machine: &'static str,
    absolute_gain_pct: f64,
    effective_gain_pct: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    experiment: &'static str,
    memory_bytes: u64,
    order: u8,
    seed: u64,
    seeds: u64,
    rows: &'a [CaptureRow],
    gains: &'a [Gain],
    absolute_gain_pct: Option<f64>,
    effective_gain_pct: Option<f64>,
    standard_error_pct: Option<f64>,
    faults: &'a [FaultRow],
    published: Vec<Published>,
    /// Null where it is not the fixed experiment.
    holds: Option<bool>,
}

type Streams = [(Variant, Stream, stream::Outcome)];
type FaultRuns = [(Variant, Faults, faults::Outcome)];

impl CaptureReport {
    pub(super) fn new(options: &CaptureOptions, streams: &Streams, runs: &FaultRuns) -> Self {
        let (mut rows, mut gains, mut curves) = (Vec::new(), Vec::new(), Vec::new());
        let mut all_gains: Vec<f64> = Vec::new();
        for &threads in &options.threads {
            for quarters in RATES {
                let rate = quarters as f64 / 4.0;
                let of = |variant: Variant| -> Vec<&stream::Outcome> {
                    streams
                        .iter()
                        .filter(|(v, s, _)| {
                            (*v, s.threads, s.quarters) == (variant, threads, quarters)
                        })
                        .map(|(_, _, outcome)| outcome)
                        .collect()
                };
                for &variant in &options.variants {
                    let outcomes = of(variant);
                    rows.push(row(variant, threads, rate, &outcomes));
                    if matches!(variant, Variant::Off | Variant::On) && curves.len() < 6 {
                        curves.push(Curve::new(rate, variant.captures(), &outcomes));
                    }
                }
                let (off, on) = (of(Variant::Off), of(Variant::On));
                if !off.is_empty() && !on.is_empty() {
                    let pairs: Vec<f64> = (on.iter().zip(&off))
                        .map(|(on, off)| on.success_pct - off.success_pct)
                        .collect();
                    let base = Mean::of(off.iter().map(|o| o.success_pct)).mean;
                    gains.push(gain(threads, rate, &pairs, base));
                    all_gains.extend(pairs);
                }
            }
        }
        let base = Mean::of(
            (rows.iter())
                .filter(|r| r.variant == Variant::Off)
                .map(|r| r.success_pct),
        );
        let overall = (!gains.is_empty()).then(|| gain(0, 0.0, &all_gains, base.mean));
        Self {
            options: options.clone(),
            rows,
            gains,
            overall,
            faults: fault_rows(options, runs),
            curves,
        }
    }

    /// Whether what must hold of the experiment holds: the baseline in its range at each rate,
    /// the gain clear at rates 1 and 4. `None` if this was another experiment.
    pub fn holds(&self) -> Option<bool> {
        let baseline = |r: &CaptureRow| {
            r.variant != Variant::Off || (BASELINE[0]..=BASELINE[1]).contains(&r.success_pct)
        };
        let clear = |g: &Gain| {
            !CLEAR_RATES.contains(&g.rate)
                || Mean {
                    mean: g.absolute_gain_pct,
                    error: g.standard_error_pct,
                }
                .clear_of_zero(CLEAR)
        };
        let fixed = self.options.is_the_fixed_one();
        fixed.then(|| self.rows.iter().all(baseline) && self.gains.iter().all(clear))
    }

    /// The report for programs.
    pub fn to_json(&self) -> String {
        let json = Json {
            schema: 1,
            experiment: "capture",
            memory_bytes: self.options.memory,
            order: self.options.order,
            seed: self.options.seed,
            seeds: self.options.seeds,
            rows: &self.rows,
            gains: &self.gains,
            absolute_gain_pct: self.overall.as_ref().map(|g| g.absolute_gain_pct),
            effective_gain_pct: self.overall.as_ref().map(|g| g.effective_gain_pct),
            standard_error_pct: self.overall.as_ref().and_then(|g| g.standard_error_pct),
            faults: &self.faults,
            published: PUBLISHED
                .map(
                    |(machine, absolute_gain_pct, effective_gain_pct)| Published {
                        machine,
                        absolute_gain_pct,
                        effective_gain_pct,
                    },
                )
                .into(),
            holds: self.holds(),
        };
        serde_json::to_string(&json).expect("numbers and names")
    }

    /// The report for people.
    pub fn to_text(&self) -> String {
        let o = &self.options;
        let mut text = format!(
            "capture: blocks of {} from a zone of {}, while others take single pages\n\
             on the software machine, {} seeds from {}; latency in steps of the machine\n\n\
             {:<14} {:>7} {:>5} {:>15} {:>9} {:>8} {:>10} {:>6} {:>9}\n",
            size::human((size::PAGE as u64) << o.order),
            size::human(o.memory),
            o.seeds,
            o.seed,
            "capture",
            "threads",
            "rate",
            "success %",
            "p50",
            "p99",
            "from list",
            "whole",
            "reclaimed",
        );
        for r in &self.rows {
            let _ = writeln!(
                text,
                "{:<14} {:>7} {:>5} {:>15} {:>9} {:>8} {:>8.0} % {:>6.2} {:>9.0}",
                r.variant.name(),
                r.threads,
                r.rate,
                with_error(r.success_pct, r.standard_error_pct),
                r.p50_steps,
                r.p99_steps,
                r.from_capture_pct,
                r.fragmentation,
                r.reclaimed_per_block,
            );
        }
        text.push_str(
            "\nsuccess: memory obtained as blocks. from list: blocks that came from the capture \
             list.\nwhole: how whole free memory was (0 to 1). reclaimed: pages for each block.\n",
        );
        if !self.gains.is_empty() {
            text.push_str("\ngain by capture, absolute (points) and effective (of success off):\n");
        }
        for g in &self.gains {
            let what = format!("{} threads, rate {}", g.threads, g.rate);
            gain_line(&mut text, &what, g);
        }
        if let Some(g) = &self.overall {
            gain_line(&mut text, "all", g);
            for (machine, absolute, effective) in PUBLISHED {
                let _ = writeln!(
                    text,
                    "  {:<22} {:>+15.2}  {effective:>+7.2} %",
                    format!("published, {machine}"),
                    absolute
                );
            }
        }
        if !self.faults.is_empty() {
            let _ = writeln!(
                text,
                "\nhuge page faults of 80 % of the memory beside a cache (after thpchallenge):\n\
                 {:<14} {:>7} {:>21} {:>9} {:>8}",
                "capture", "threads", "huge %", "p50", "p99"
            );
        }
        for f in &self.faults {
            let _ = writeln!(
                text,
                "{:<14} {:>7} {:>21} {:>9} {:>8}",
                if f.capture { "on" } else { "off" },
                f.threads,
                with_error(f.success_pct, f.standard_error_pct),
                f.p50_steps,
                f.p99_steps
            );
        }
        match self.holds() {
            Some(true) => text.push_str(
                "\nholds: success off is 15 to 60 % at each rate, and the gain at rates 1 and 4 \
                 is at least twice its standard error\n",
            ),
            Some(false) => text.push_str(
                "\nDOES NOT HOLD: success off must be 15 to 60 % at each rate, and the gain at \
                 rates 1 and 4 at least twice its standard error\n",
            ),
            None => {}
        }
        text
    }

    /// Success over time, with capture and without, as a picture; `None` without a run of
    /// either. Of several numbers of threads, the first.
    pub fn to_svg(&self) -> Option<String> {
        (!self.curves.is_empty()).then(|| plot::svg(&self.curves))
    }
}

fn with_error(mean: f64, error: Option<f64>) -> String {
    match error {
        Some(error) => format!("{mean:.2} +- {error:.2}"),
        None => format!("{mean:.2}"),
    }
}

fn gain_line(text: &mut String, what: &str, g: &Gain) {
    let absolute = match g.standard_error_pct {
        Some(error) => format!("{:+.2} +- {error:.2}", g.absolute_gain_pct),
        None => format!("{:+.2}", g.absolute_gain_pct),
    };
    let effective = g.effective_gain_pct;
    let _ = writeln!(text, "  {what:<22} {absolute:>15}  {effective:>+7.2} %");
}

fn row(variant: Variant, threads: usize, rate: f64, of: &[&stream::Outcome]) -> CaptureRow {
    let success = Mean::of(of.iter().map(|o| o.success_pct));
    let mut latency: Vec<u64> = of.iter().flat_map(|o| o.latency.iter().copied()).collect();
    let sum = |f: fn(&stream::Outcome) -> u64| of.iter().map(|o| f(o)).sum::<u64>();
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

fn fault_rows(options: &CaptureOptions, runs: &FaultRuns) -> Vec<FaultRow> {
    let mut rows = Vec::new();
    for &threads in &options.threads {
        for &variant in &options.variants {
            let of: Vec<&faults::Outcome> = (runs.iter())
                .filter(|(v, f, _)| (*v, f.threads) == (variant, threads))
                .map(|(_, _, outcome)| outcome)
                .collect();
            if of.is_empty() {
                continue;
            }
            let huge = Mean::of(of.iter().map(|o| o.huge_pct()));
            let mut latency: Vec<u64> = of.iter().flat_map(|o| o.latency.clone()).collect();
            rows.push(FaultRow {
                capture: variant.captures(),
                threads,
                success_pct: huge.mean,
                standard_error_pct: huge.error,
                p50_steps: percentile(&mut latency, 50.0),
                p99_steps: percentile(&mut latency, 99.0),
            });
        }
    }
    rows
}
