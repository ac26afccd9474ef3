//! What is wanted of the live side.

use super::{Case, Of, Overcommit};
use crate::Side;
use crate::experiment::{Report, Target};
use crate::program::walk::Pattern;
use crate::size::PAGE;

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

pub(super) fn targets(report: &Report<Overcommit>) -> Vec<Target<Of>> {
    let ratios = report.ratios();
    let mut all = Vec::new();
    for (pattern, two, one) in SPEED {
        let case = |threads| Case {
            pattern,
            threads,
            record: PAGE,
        };
        let mut add = |threads, what, at_least, want, found: f64| {
            let of = Of { pattern, threads };
            all.push(Target::new(of, what, at_least, want, found));
        };
        for (threads, want) in [(2, two), (1, one)] {
            let Some(ratio) = ratios.iter().find(|r| r.case == case(threads)) else {
                continue;
            };
            add(threads, "of the kernel's accesses", true, want, ratio.ops);
            if threads == 2 {
                add(threads, "of its time to fill", false, FILL, ratio.fill);
                // Elsewhere a fault brings more pages here than there.
                if let (Some(cpu), Pattern::Uniform) = (ratio.cpu_per_fault, pattern) {
                    add(threads, "of its CPU time a fault", false, CPU, cpu);
                }
            }
        }
        let scale = |on| {
            let ops = |threads| report.row(on, case(threads)).map(|row| row.ops_per_s);
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
