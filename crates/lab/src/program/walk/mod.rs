//! `walk SIZE_MIB PATTERN THREADS [--record 4096|200] [--reach MIB] [--seconds S] [--settle S]
//! [--steps]`: a working set that is filled, and then accessed for some time.
//!
//! The memory is full of records of lz4 ratio 3:1. Each carries its number and its version; an
//! access picks one by PATTERN and compares all of it with what was written last, and a quarter of
//! the accesses then write it anew with the next version. Each thread has a part of the memory for
//! its own, so that nothing but the memory itself makes one wait for another. After the fill,
//! accesses are not counted for the time of `--settle`, then for `--seconds`.
//!
//! `--reach` is how much of the memory `loop` covers; `phases` keeps to half as much at a time.
//! `--steps` is for who looks at the machine meanwhile: before and after the time that counts the
//! program says so and waits for a line on stdin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{
    Failure, faults as count_faults, in_threads, parse, say, say_figures, wait_for_a_line,
};
use crate::LabError;
use crate::experiment::bad;
use crate::region;
use crate::size::PAGE;

pub(crate) mod faults;
mod pick;
mod record;

use pick::Access;
pub use pick::Pattern;
pub(crate) use pick::Picker;
pub use record::LENGTHS;
pub(crate) use record::RATIO;
pub(crate) use record::Records;

/// The line of `--steps` before the time that counts.
pub const SETTLED_LINE: &str = "settled";
/// The line of `--steps` after it.
pub const WALKED_LINE: &str = "walked";

/// What the program prints of itself.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Walked {
    /// Accesses that were counted, of all threads.
    pub ops: u64,
    /// Those of the thread that made the fewest.
    pub fewest: u64,
    /// For how long, in seconds.
    pub seconds: f64,
    /// For how long the memory was filled, in seconds.
    pub fill_s: f64,
    /// Page faults of the program in the time that was counted, as the system counts them.
    pub faults: u64,
}

/// What to do.
struct Plan {
    len: usize,
    pattern: Pattern,
    threads: usize,
    record: usize,
    reach: usize,
    settle: Duration,
    count: Duration,
}

/// For how long it is accessed.
#[derive(clap::Args)]
struct Times {
    /// For how long accesses count.
    #[arg(long = "seconds", default_value = "2", value_parser = super::seconds)]
    count: Duration,
    /// For how long before they do not.
    #[arg(long, default_value = "0.5", value_parser = super::seconds)]
    settle: Duration,
}

#[derive(clap::Parser)]
#[command(name = "walk", no_binary_name = true)]
struct Options {
    #[arg(value_name = "SIZE_MIB", value_parser = mib)]
    mib: usize,
    pattern: Pattern,
    threads: usize,
    #[arg(long, default_value_t = PAGE)]
    record: usize,
    #[arg(long, value_name = "MIB")]
    reach: Option<usize>,
    #[arg(long)]
    steps: bool,
    #[command(flatten)]
    times: Times,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    let mib = options.mib;
    let plan = Plan {
        len: mib << 20,
        pattern: options.pattern,
        // Each has a MiB at least.
        threads: threads(options.threads, mib.min(1024))?,
        record: options.record,
        reach: options.reach.unwrap_or(mib / 2).clamp(1, mib) << 20,
        settle: options.times.settle,
        count: options.times.count,
    };
    let step = |line: &str| {
        if options.steps {
            say(format_args!("{line}"))?;
            wait_for_a_line()?;
        }
        Ok(())
    };
    run(&plan, &step, |_| ())
}

/// A size in MiB that a mapping may have.
fn mib(text: &str) -> Result<usize, String> {
    let mib = text.parse().map_err(|_| "not a number")?;
    match (1..=1 << 26).contains(&mib) {
        true => Ok(mib),
        false => Err("must be above 0".into()),
    }
}

fn threads(threads: usize, most: usize) -> Result<usize, LabError> {
    match (1..=most).contains(&threads) {
        true => Ok(threads),
        false => bad(format!("THREADS {threads}: must be 1 to {most}")),
    }
}

/// The workload. `step` is called before and after the time that counts, `meddle` gets the memory
/// after filling it (tests spoil a byte there).
fn run(
    plan: &Plan,
    step: &dyn Fn(&str) -> Result<(), LabError>,
    meddle: impl FnOnce(&mut [u8]),
) -> Result<(), Failure> {
    let records = Records::new(plan.record)?;
    say(format_args!(
        "content: records of {} bytes, asked lz4 ratio {RATIO}:1, measured {:.2}:1",
        records.len(),
        records.ratio(),
    ))?;
    let mut region = region::map(plan.len)?;
    let started = Instant::now();
    in_threads(walkers(plan, &records, &mut region), |mut walker| {
        walker.fill()
    });
    let fill_s = started.elapsed().as_secs_f64();
    meddle(&mut region);
    let mut walkers = walkers(plan, &records, &mut region);
    timed(&mut walkers, plan.settle, Walker::walk)?;
    step(SETTLED_LINE)?;
    let (before, started) = (count_faults(libc::RUSAGE_SELF), Instant::now());
    let ops = timed(&mut walkers, plan.count, Walker::walk)?;
    let walked = Walked {
        ops: ops.iter().sum(),
        fewest: ops.into_iter().min().unwrap_or(0),
        seconds: started.elapsed().as_secs_f64(),
        fill_s,
        faults: count_faults(libc::RUSAGE_SELF).saturating_sub(before),
    };
    say_figures(walked)?;
    step(WALKED_LINE)?;
    Ok(())
}

/// Threads' parts: whole pages, all of the memory.
fn walkers<'a>(plan: &Plan, records: &'a Records, mut bytes: &'a mut [u8]) -> Vec<Walker<'a>> {
    let pages = plan.len / PAGE;
    let edge = |n: usize| pages * n / plan.threads;
    let part = |n| {
        let (from, to) = (edge(n), edge(n + 1));
        let (part, rest) = std::mem::take(&mut bytes).split_at_mut((to - from) * PAGE);
        bytes = rest;
        let count = (to - from) * records.in_page();
        let reach = plan.reach / PAGE / plan.threads * records.in_page();
        Walker {
            records,
            part,
            first_page: from,
            versions: vec![0; count],
            picker: Picker::new(plan.pattern, count, reach, n as u64),
        }
    };
    (0..plan.threads).map(part).collect()
}

/// One thread's part of the memory, and what it should hold.
struct Walker<'a> {
    records: &'a Records,
    part: &'a mut [u8],
    first_page: usize,
    /// Of each record the version that was written last. It wraps.
    versions: Vec<u8>,
    picker: Picker,
}

impl Walker<'_> {
    fn number(&self, n: usize) -> u64 {
        (self.first_page * self.records.in_page() + n) as u64
    }

    fn fill(&mut self) {
        for n in 0..self.versions.len() {
            let (number, at) = (self.number(n), self.records.at(n));
            let record = &mut self.part[at..][..self.records.len()];
            self.records.write(record, number, 0);
        }
    }

    /// Accesses records until it shall stop; returns how many.
    fn walk(&mut self, stop: &AtomicBool) -> Result<u64, Failure> {
        let mut ops = 0;
        while !stop.load(Ordering::Relaxed) {
            let access = self.picker.pick();
            self.access(access)?;
            ops += 1;
        }
        Ok(ops)
    }

    fn access(&mut self, access: Access) -> Result<(), Failure> {
        let (number, at) = (self.number(access.record), self.records.at(access.record));
        let record = &mut self.part[at..][..self.records.len()];
        let version = &mut self.versions[access.record];
        if let Some(wrong) = self.records.wrong(record, number, *version) {
            return Err(Failure::Mismatch {
                page: self.first_page + at / PAGE,
                offset: at % PAGE + wrong.offset,
                found: wrong.found,
                want: wrong.want,
            });
        }
        if access.write {
            *version = version.wrapping_add(1);
            self.records.write(record, number, *version);
        }
        Ok(())
    }
}

/// Has all do their work until this much time is over; what they return, or the first error.
fn timed<'a, T: Send>(
    walkers: &mut [Walker<'a>],
    time: Duration,
    work: impl Fn(&mut Walker<'a>, &AtomicBool) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
        });
        in_threads(walkers, |walker| work(walker, &stop))
            .into_iter()
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pattern: Pattern, threads: usize, record: usize) -> Plan {
        Plan {
            len: 3 << 20,
            pattern,
            threads,
            record,
            reach: 1 << 20,
            settle: Duration::ZERO,
            count: Duration::from_millis(30),
        }
    }

    #[test]
    fn r150_walk_is_right_when_memory_is() {
        for pattern in Pattern::ALL {
            for (threads, record) in [(1, LENGTHS[0]), (3, LENGTHS[1])] {
                run(&plan(pattern, threads, record), &|_| Ok(()), |_| ()).unwrap();
            }
        }
    }

    #[test]
    fn r150_walk_finds_one_flipped_bit() {
        let spoil = |bytes: &mut [u8]| bytes[10 * PAGE + 417] ^= 0x10;
        for record in LENGTHS {
            let mut plan = plan(Pattern::Sequential, 2, record);
            plan.count = Duration::from_secs(1);
            match run(&plan, &|_| Ok(()), spoil) {
                Err(Failure::Mismatch {
                    page: 10,
                    offset: 417,
                    found,
                    want,
                }) => assert_eq!(found ^ want, 0x10),
                other => panic!("not found: {other:?}"),
            }
        }
    }

    #[test]
    fn r150_parts_of_threads_are_all_of_the_memory() {
        let plan = plan(Pattern::Uniform, 5, PAGE);
        let mut bytes = vec![0; plan.len];
        let records = Records::new(PAGE).unwrap();
        let walkers = walkers(&plan, &records, &mut bytes);
        let mut next = 0;
        for walker in &walkers {
            assert_eq!(walker.first_page, next);
            next += walker.part.len() / PAGE;
        }
        assert_eq!(next, plan.len / PAGE);
    }

    #[test]
    fn r150_the_figures_of_walk_are_parsed_or_refused() {
        let walked = Walked {
            ops: 12,
            fewest: 5,
            seconds: 1.5,
            fill_s: 0.25,
            faults: 7,
        };
        let line = serde_json::to_string(&walked).unwrap();
        assert_eq!(serde_json::from_str::<Walked>(&line).unwrap(), walked);
        for bad in ["", "{}", &line.replace("ops", "other"), &line[4..]] {
            assert!(serde_json::from_str::<Walked>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn r150_walk_refuses_what_makes_no_sense() {
        for bad in [
            &["4", "uniform"][..],
            &["0", "uniform", "1"],
            &["4", "random", "1"],
            &["4", "uniform", "0"],
            &["4", "uniform", "5"],
            &["4", "uniform", "1", "--record", "100"],
            &["4", "uniform", "1", "--seconds", "-1"],
            &["4", "uniform", "1", "--reach"],
        ] {
            assert!(
                matches!(main(bad), Err(Failure::Lab(LabError::Option(_)))),
                "{bad:?}"
            );
        }
    }
}
