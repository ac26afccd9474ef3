//! `anon WORKLOAD [--seconds S]`: the workloads of the anon-folio experiment.
//!
//! Each says its [`Figures`] at its end. Memory is that of one more round, which is not timed: what
//! the process had at its peak beside what it started with.
//!
//! What a round does is written once, in `rounds`, for real memory and for the model's.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Failure, compiler, faults, in_child, parse, say_figures};
use crate::live_stats::TempFile;
use crate::size::PAGE;

mod real;
mod rounds;

use real::{Real, anonymous};
pub use rounds::{Accesses, Workload, pattern, round};

/// A mapping of so many bytes is large enough for any manager of memory to care about.
const START: usize = 8 << 20;
/// Of so many pages the child of the server that forks writes one.
pub const FORK_EACH: usize = 8;
/// Functions of the file that is compiled.
const FUNCTIONS: usize = 250;

/// The figures of a workload, which its line of results has as JSON.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
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

#[derive(clap::Parser)]
#[command(name = "anon", no_binary_name = true)]
struct Options {
    workload: Workload,
    /// Longest that a workload goes on.
    #[arg(long, default_value = "0.5", value_parser = super::seconds)]
    seconds: Duration,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    say_figures(match options.workload {
        Workload::Compile => compile()?,
        Workload::Fork => serve(options.seconds)?,
        workload => touch(workload, options.seconds)?,
    })
}

/// Page faults of this process and of the children that it has waited for.
fn all_faults() -> u64 {
    faults(libc::RUSAGE_SELF) + faults(libc::RUSAGE_CHILDREN)
}

/// A compiler on a generated file.
fn compile() -> Result<Figures, Failure> {
    let file = TempFile::new("compile.c");
    let mut cc = compiler::cc(file.path(), FUNCTIONS, "")?;
    let before = all_faults();
    let started = Instant::now();
    let end = cc.stdin(Stdio::null()).output();
    let end = end.map_err(|e| compiler::none("cc", &e))?;
    if !end.status.success() {
        return Err(compiler::failed(end.status, &end.stderr).into());
    }
    Ok(Figures {
        ops: 1,
        seconds: started.elapsed().as_secs_f64(),
        faults: all_faults() - before,
        ..Figures::default()
    })
}

/// The server that forks for each request, once more than is counted.
fn serve(most: Duration) -> Result<Figures, Failure> {
    let pages = Workload::Fork.bytes() / PAGE;
    let at_start = anonymous()?;
    let mut map = Real.map(pages * PAGE, false)?;
    for page in 0..pages {
        Real.write(&mut map, page)?;
    }
    let mut request = || {
        in_child(|| {
            let mut written = (0..pages).step_by(FORK_EACH);
            written.all(|page| Real.write(&mut map, page).is_ok())
        })
    };
    request()?;
    let before = all_faults();
    let started = Instant::now();
    let mut ops = 0;
    while ops == 0 || started.elapsed() < most {
        request()?;
        ops += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    let faults = all_faults() - before;
    let used = anonymous()?.saturating_sub(at_start);
    Real.unmap(map)?;
    Ok(Figures {
        ops,
        seconds,
        faults,
        // What each child writes; what a fork costs besides is not known.
        pages: ops * (pages / FORK_EACH) as u64,
        used,
        touched: (pages * PAGE) as u64,
    })
}

/// A workload that only touches memory: rounds for so many seconds, then one to be looked at.
fn touch(workload: Workload, most: Duration) -> Result<Figures, Failure> {
    let mut memory = Real;
    // What starts a manager of this memory is not part of the workload.
    let first = memory.map(START, false)?;
    memory.unmap(first)?;
    // A first touch is not what the loops are about; the others are about nothing else.
    if workload.loops() {
        round(workload, &mut memory, &mut |_, _| ())?;
    }
    let mut done = Figures::default();
    let before = all_faults();
    let started = Instant::now();
    loop {
        let all = round(workload, &mut memory, &mut |_, _| ())?;
        done.ops += all.ops;
        done.pages += all.pages;
        if !workload.loops() || started.elapsed() >= most {
            break;
        }
    }
    done.seconds = started.elapsed().as_secs_f64();
    done.faults = all_faults() - before;

    let at_start = anonymous()?;
    let (mut at_peak, mut touched) = (Ok(0), 0);
    round(workload, &mut memory, &mut |_, pages| {
        at_peak = anonymous();
        touched = pages * PAGE as u64;
    })?;
    done.used = at_peak?.saturating_sub(at_start);
    done.touched = touched;
    Ok(done)
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
            let done = touch(workload, Duration::from_millis(1)).unwrap();
            let touches = workload != Workload::Mmap1;
            assert!(done.ops > 0, "{workload:?}: {done:?}");
            assert_eq!(done.touched > 0, touches, "{workload:?}: {done:?}");
            assert!(done.faults > 0 || !touches, "{workload:?}: {done:?}");
        }
    }

    #[test]
    fn r150_the_line_of_results_is_read_as_it_was_written() {
        let figures = Figures {
            ops: 3,
            seconds: 0.25,
            touched: 8192,
            ..Figures::default()
        };
        let line = serde_json::to_string(&figures).unwrap();
        assert_eq!(serde_json::from_str::<Figures>(&line).unwrap(), figures);
        assert!(serde_json::from_str::<Figures>(&line.replace("ops", "other")).is_err());
    }

    #[test]
    fn r150_the_forking_server_serves_requests() {
        let done = serve(Duration::from_millis(10)).unwrap();
        assert!(done.ops > 0 && done.faults >= done.pages / 512, "{done:?}");
    }
}
