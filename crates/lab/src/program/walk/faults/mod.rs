//! `faults SIZE_MIB LIMIT_MIB PATTERN THREADS [--seconds S] [--settle S] [--bare]`: the walk over
//! memory of a pager in this very process, all of whose stages are timed.
//!
//! `--bare` times nothing but the accesses, to see what the timing costs.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use deckle_mm::Item;

use super::{Failure, Pattern, Plan, Records, Walker, all, seconds, threads, timed, walkers};
use crate::LabError;
use crate::program::{number, say, switch};
use crate::size::PAGE;

pub(crate) mod clock;
mod embed;
mod told;

pub(crate) use clock::WATCHES as MOST_THREADS;
use clock::{Sums, Watch};
use told::Seen;
pub(crate) use told::Told;

/// Starts the line with the figures, as JSON.
pub(crate) const FIGURES_LINE: &str = "figures: ";

pub(in crate::program) fn main(args: &[&str]) -> Result<(), Failure> {
    let mut args = args.to_vec();
    let bare = switch(&mut args, "--bare");
    let (count, settle) = seconds(&mut args)?;
    let [mib, limit, pattern, walk_threads] = args[..] else {
        let usage = "usage: faults SIZE_MIB LIMIT_MIB PATTERN THREADS [--seconds S] [--settle S] \
                     [--bare]";
        return Err(LabError::Option(usage.into()).into());
    };
    let (mib, limit): (usize, u64) = (number("SIZE_MIB", mib)?, number("LIMIT_MIB", limit)?);
    if mib == 0 || mib > 1 << 26 || limit < 16 {
        let why = format!("SIZE_MIB {mib}, LIMIT_MIB {limit}: must be above 0, and 16 at least");
        return Err(LabError::Option(why).into());
    }
    let plan = Plan {
        len: mib << 20,
        pattern: Pattern::parse(pattern)?,
        threads: threads(walk_threads, mib.min(MOST_THREADS))?,
        record: PAGE,
        reach: mib << 19,
        settle,
        count,
    };
    let told = run(&plan, limit << 20, bare)?;
    let line = serde_json::to_string(&told).map_err(|e| LabError::io("JSON", e.into()))?;
    say(format_args!("{FIGURES_LINE}{line}"))?;
    Ok(())
}

fn run(plan: &Plan, limit: u64, bare: bool) -> Result<Told, Failure> {
    let records = Records::new(plan.record)?;
    let service = embed::service(limit)?;
    let mut region = (service.map(plan.len))
        .map_err(|e| LabError::io("mapping memory", std::io::Error::other(format!("{e:?}"))))?;
    all(&mut walkers(plan, &records, &mut region), |walker| {
        walker.fill();
        Ok(())
    })?;
    if !bare {
        clock::attach();
    }
    let mut walkers = walkers(plan, &records, &mut region);
    timed(&mut walkers, plan.settle)?;
    let stats = service.pager().mm().stats();
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
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (stop, next) = (&stop, &next);
        scope.spawn(move || {
            thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
        });
        all(walkers, |walker| {
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
    })
}

/// Of so many accesses one has its CPU time looked at, which takes long.
const CPU_EVERY: u64 = 8;

/// Reads a byte of managed memory, and books the fault that this was.
fn touch(byte: &u8, watch: &Watch, seen: &mut Seen) {
    let at = std::ptr::from_ref(byte);
    watch.begin((at.addr() / PAGE) as u64);
    let cpu = seen.ops.is_multiple_of(CPU_EVERY).then(clock::now);
    let before = clock::time();
    // SAFETY: a reference may be read; volatile, so that it is read just here.
    black_box(unsafe { at.read_volatile() });
    let wall = clock::time() - before;
    let cpu = cpu.map(|[_, then]| clock::now()[1] - then);
    let Some([read, installs]) = watch.end() else {
        return;
    };
    if let Some(cpu) = cpu {
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
