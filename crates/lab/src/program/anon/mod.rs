//! `anon WORKLOAD [--seconds S]`: the workloads of the anon-folio experiment.
//!
//! Each says at its end `anon: OPS SECONDS FAULTS PAGES USED TOUCHED`: operations, the time and
//! the page faults that they took, the pages that base pages would have faulted for (0: not
//! known), and of one more round, which is not timed, the anonymous memory that the process had
//! at its peak beside what it started with, and how much of it the workload had touched, both
//! in bytes.
//!
//! What a round does is written once, in `rounds`, for real memory and for the model's.

use std::io;
use std::time::{Duration, Instant};

use super::{Failure, number, option, say};
use crate::LabError;
use crate::size::PAGE;

pub(super) mod compile;
mod fork;
mod real;
mod rounds;

pub use fork::EACH as FORK_EACH;
use real::{Real, anonymous, faults};
pub use rounds::{Accesses, Workload, compiler, round};

/// What the line of results starts with.
pub const RESULT_LINE: &str = "anon: ";
/// Longest that a workload goes on unless told otherwise.
const SECONDS: f64 = 0.5;

/// A mapping of so many bytes is large enough for any manager of memory to care about.
const START: usize = 8 << 20;

/// The figures of a workload's line of results.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// Operations.
    pub ops: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Page faults that they took.
    pub faults: u64,
    /// Pages that base pages would have faulted for; 0 where that is not known.
    pub pages: u64,
    /// Anonymous memory at the peak of a round, in bytes; 0 where it is not measured inside.
    pub used: u64,
    /// What the workload had touched of it, in bytes.
    pub touched: u64,
}

impl Figures {
    /// Parses what follows [`RESULT_LINE`].
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [ops, seconds, faults, pages, used, touched] = words[..] else {
            return None;
        };
        Some(Self {
            ops: ops.parse().ok()?,
            seconds: seconds.parse().ok()?,
            faults: faults.parse().ok()?,
            pages: pages.parse().ok()?,
            used: used.parse().ok()?,
            touched: touched.parse().ok()?,
        })
    }

    fn print(self) -> Result<(), Failure> {
        let Self {
            ops,
            seconds,
            faults,
            pages,
            used,
            touched,
        } = self;
        say(format_args!(
            "{RESULT_LINE}{ops} {seconds} {faults} {pages} {used} {touched}"
        ))?;
        Ok(())
    }
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let mut args = args.to_vec();
    let seconds =
        option(&mut args, "--seconds")?.map_or(Ok(SECONDS), |t| number("--seconds", t))?;
    let [name] = args[..] else {
        let usage = "usage: anon WORKLOAD [--seconds S]";
        return Err(LabError::Option(usage.into()).into());
    };
    let figures = match Workload::parse(name)? {
        Workload::Compile => compile::run()?,
        Workload::Fork => fork::run(seconds)?,
        workload => touch(workload, seconds)?,
    };
    figures.print()
}

/// A workload that only touches memory: rounds for so many seconds, then one to be looked at.
fn touch(workload: Workload, seconds: f64) -> Result<Figures, Failure> {
    let failed = |e| LabError::io(format!("mapping memory for {}", workload.name()), e);
    let mut memory = Real;
    // What starts a manager of this memory is not part of the workload.
    let first = memory.map(START, false).map_err(failed)?;
    memory.unmap(first).map_err(failed)?;
    // A first touch is not what the loops are about; the others are about nothing else.
    if workload.loops() {
        round(workload, &mut memory, &mut |_, _| ()).map_err(failed)?;
    }
    let mut done = Figures {
        ops: 0,
        seconds: 0.0,
        faults: 0,
        pages: 0,
        used: 0,
        touched: 0,
    };
    let before = faults()?;
    let started = Instant::now();
    let most = Duration::from_secs_f64(seconds);
    loop {
        let all = round(workload, &mut memory, &mut |_, _| ()).map_err(failed)?;
        done.ops += all.ops;
        done.pages += all.pages;
        if !workload.loops() || started.elapsed() >= most {
            break;
        }
    }
    done.seconds = started.elapsed().as_secs_f64();
    done.faults = faults()? - before;

    let at_start = anonymous()?;
    let (mut at_peak, mut touched) = (Ok(0), 0);
    round(workload, &mut memory, &mut |_, pages| {
        at_peak = anonymous();
        touched = pages * PAGE as u64;
    })
    .map_err(failed)?;
    done.used = at_peak?.saturating_sub(at_start);
    done.touched = touched;
    Ok(done)
}

/// The last error of the system, about `what`.
fn last_error(what: &str) -> LabError {
    LabError::io(what, io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_each_touching_workload_says_what_it_did() {
        for workload in Workload::ALL {
            if matches!(workload, Workload::Compile | Workload::Fork) {
                continue;
            }
            let done = touch(workload, 0.001).unwrap();
            assert!(done.ops > 0 && done.faults > 0, "{workload:?}: {done:?}");
            assert!(done.touched > 0, "{workload:?}: {done:?}");
        }
    }

    #[test]
    fn r150_the_line_of_results_is_read_as_it_was_written() {
        let line = "3 0.25 7 9 4096 8192";
        let figures = Figures::parse(line).unwrap();
        assert_eq!(
            (figures.ops, figures.seconds, figures.touched),
            (3, 0.25, 8192)
        );
        assert_eq!(Figures::parse("3 0.25 7 9 4096"), None);
    }
}
