//! `faults SIZE_MIB LIMIT_MIB PATTERN THREADS [--seconds S] [--settle S] [--bare]`: the walk over
//! memory of a pager in this very process, all of whose stages are timed.
//!
//! `--bare` times nothing but the accesses, to see what the timing costs.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deckle_mm::Item;

use super::{Failure, Pattern, Plan, Records, Times, Walker, mib, threads, timed, walkers};
use crate::LabError;
use crate::program::{in_threads, parse, say_figures};
use crate::size::PAGE;

pub(crate) mod clock;
mod embed;
mod told;

pub(crate) use clock::WATCHES as MOST_THREADS;
use clock::{STALL, Sums, Watch};
use told::Seen;
pub(crate) use told::Told;

#[derive(clap::Parser)]
#[command(name = "faults", no_binary_name = true)]
struct Options {
    #[arg(value_name = "SIZE_MIB", value_parser = mib)]
    mib: usize,
    /// 16 at least.
    #[arg(value_name = "LIMIT_MIB", value_parser = clap::value_parser!(u64).range(16..))]
    limit: u64,
    pattern: Pattern,
    threads: usize,
    #[command(flatten)]
    times: Times,
    /// Times nothing but the accesses.
    #[arg(long)]
    bare: bool,
}

pub(in crate::program) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    let plan = Plan {
        len: options.mib << 20,
        pattern: options.pattern,
        threads: threads(options.threads, options.mib.min(MOST_THREADS))?,
        record: PAGE,
        reach: options.mib << 19,
        settle: options.times.settle,
        count: options.times.count,
    };
    say_figures(run(&plan, options.limit << 20, options.bare)?)
}

fn run(plan: &Plan, limit: u64, bare: bool) -> Result<Told, Failure> {
    let records = Records::new(plan.record)?;
    let service = embed::service(limit)?;
    let mut region = (service.map(plan.len))
        .map_err(|e| LabError::io("mapping memory", std::io::Error::other(format!("{e:?}"))))?;
    in_threads(walkers(plan, &records, &mut region), |mut walker| {
        walker.fill()
    });
    if !bare {
        clock::attach();
    }
    let mut walkers = walkers(plan, &records, &mut region);
    timed(&mut walkers, plan.settle, Walker::walk)?;
    let stats = service.stats();
    let counts = || [Item::Pswpin, Item::Pswpout, Item::SwpoutZero].map(|item| stats.get(item));
    let (before, parts) = (counts(), Sums::now());
    let (cpu, started) = (clock::cpu_of_process(), Instant::now());
    let seen = watched(&mut walkers, plan.count, bare)?;
    let elapsed = started.elapsed();
    let cpu = clock::cpu_of_process() - cpu;
    let (after, parts_after) = (counts(), Sums::now());
    let [read, stored, zeros] = [0, 1, 2].map(|i| after[i].saturating_sub(before[i]));
    Ok(Told::new(
        seen,
        elapsed,
        cpu,
        &parts_after.since(&parts),
        [read, stored + zeros],
    ))
}

/// All walk for this long and look at their faults.
fn watched(walkers: &mut [Walker<'_>], time: Duration, bare: bool) -> Result<Vec<Seen>, Failure> {
    let next = AtomicU64::new(0);
    timed(walkers, time, |walker, stop| {
        let watch = Watch::of(next.fetch_add(1, Ordering::Relaxed) as usize);
        let [_, began] = clock::now();
        let mut seen = Seen::default();
        // Grown ahead of need: these pages are not managed, but they have to be there.
        seen.faults.reserve(1 << 17);
        while !stop.load(Ordering::Relaxed) {
            let access = walker.picker.pick();
            if !bare {
                let byte = &walker.part[walker.records.at(access.record)];
                touch(byte, watch, &mut seen);
            }
            walker.access(access)?;
            seen.ops += 1;
        }
        seen.cpu = clock::now()[1] - began;
        Ok(seen)
    })
}

/// Of so many accesses one has its CPU time looked at, which takes long.
const CPU_EVERY: u64 = 8;

/// Reads a byte of managed memory, and books the fault that this was.
fn touch(byte: &u8, watch: &Watch, seen: &mut Seen) {
    watch.begin((std::ptr::from_ref(byte).addr() / PAGE) as u64);
    let cpu = seen.ops.is_multiple_of(CPU_EVERY).then(clock::now);
    let before = clock::time();
    // It is read just here.
    black_box(*black_box(byte));
    let wall = clock::time() - before;
    let cpu = cpu.map(|[_, then]| clock::now()[1] - then);
    let Some([read, installs]) = watch.end() else {
        return;
    };
    if let Some(cpu) = cpu.filter(|cpu| *cpu < STALL) {
        seen.cpu_in_faults += cpu;
        seen.cpu_looked_at += 1;
    }
    let delivery = read.saturating_sub(before).min(wall);
    let service = installs.saturating_sub(read).min(wall - delivery);
    let fault = [delivery, service, wall - delivery - service];
    seen.faults
        .push(fault.map(|ns| u32::try_from(ns).unwrap_or(u32::MAX)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_faults_refuses_what_makes_no_sense() {
        for bad in [
            &["64", "32", "uniform"][..],
            &["0", "32", "uniform", "1"],
            &["64", "8", "uniform", "1"],
            &["64", "32", "random", "1"],
            &["64", "32", "uniform", "65"],
            &["64", "32", "uniform", "1", "--seconds", "x"],
        ] {
            assert!(
                matches!(main(bad), Err(Failure::Lab(LabError::Option(_)))),
                "{bad:?}"
            );
        }
    }
}
