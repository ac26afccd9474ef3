//! `warm SIZE`: touches and frees memory with all CPUs, so that a virtual machine has it at hand
//! for the timed run that follows, and prints what a huge page costs that was just freed.

use std::thread;
use std::time::Instant;

use deckle_sys::mapping::Advice;

use super::{Failure, in_threads, pages_of, parse, say};
use crate::LabError;
use crate::region;
use crate::size::{BLOCK, PAGE};

#[derive(clap::Parser)]
#[command(name = "warm", no_binary_name = true)]
struct Options {
    #[arg(value_parser = pages_of)]
    size: usize,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let options: Options = parse(args)?;
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let each = options.size.div_ceil(threads) * PAGE;
    // All parts must be held at once, or the second thread may get the first one's memory.
    let held = in_threads(0..threads, |_| touch(each));
    held.into_iter().collect::<Result<(), LabError>>()?;
    say(format_args!("{WARM_LINE}{:.1}", just_freed()?))?;
    Ok(())
}

/// What is printed before the microseconds of a huge page fault on a warm machine.
pub(crate) const WARM_LINE: &str = "warm fault us: ";
/// Huge pages of a round of [`just_freed`], and rounds.
const FAULTS: usize = 16;
const ROUNDS: usize = 4;

/// Microseconds of a huge page fault: the best round of a few, each in what the one before has
/// freed. Elsewhere than in a virtual machine that gives its memory back, of any round.
fn just_freed() -> Result<f64, LabError> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let mut region = region::map(FAULTS * BLOCK)?;
        let _ = region::advise(&mut region, Advice::HugePage);
        let start = Instant::now();
        for at in 0..FAULTS {
            region.touch(at * BLOCK, 1);
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / FAULTS as f64);
    }
    Ok(best)
}

fn touch(len: usize) -> Result<(), LabError> {
    let mut region = region::map(len)?;
    // Refused where the kernel has no huge pages; small ones warm as well.
    let _ = region::advise(&mut region, Advice::HugePage);
    for at in (0..len).step_by(PAGE) {
        region.touch(at, 1);
    }
    // Freed by exit, not here: see main.
    std::mem::forget(region);
    Ok(())
}
