//! `warm SIZE`: touches and frees memory with all CPUs, so that a virtual machine has it at hand
//! for the timed run that follows.

use std::thread;

use super::{Failure, pages_of};
use crate::LabError;
use crate::region::Region;
use crate::size::PAGE;

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let [size] = args[..] else {
        return Err(LabError::Option("usage: warm SIZE".into()).into());
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let each = (pages_of(size)?.div_ceil(threads)) * PAGE;
    thread::scope(|scope| {
        let touchers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(move || touch(each)))
            .collect();
        // All parts must be held at once, or the second thread may get the first one's memory.
        let held: Result<Vec<()>, LabError> = touchers
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        held.map(|_| ()).map_err(Failure::from)
    })
}

fn touch(len: usize) -> Result<(), LabError> {
    let mut region = Region::new(len).map_err(|e| LabError::io("mapping memory", e))?;
    // Refused where the kernel has no huge pages; small ones warm as well.
    let _ = region.advise(libc::MADV_HUGEPAGE);
    for at in (0..len).step_by(PAGE) {
        region.touch(at, 1);
    }
    // Freed by exit, not here: see main.
    std::mem::forget(region);
    Ok(())
}
