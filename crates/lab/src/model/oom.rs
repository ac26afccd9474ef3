//! The S003 accesses, and what a process costs beside them.
//!
//! Whether 471 and above die is a close call. With nothing split, 10 huge pages fill the limit of
//! 5120 pages exactly if nothing else is charged, and the next touch is the end. As soon as
//! anything else is charged, only 9 fit; the other 11 blocks get the 41 small pages each that are
//! touched: 9 x 512 + 11 x 41 = 5059 pages, which leaves 61. The kernel charges a process more
//! than that: the model has no process, so its cost is charged as a figure, [`PROCESS_PAGES`] and
//! a page table for each block.

use deckle_mm::{Charge, Tunables, tunables::Profile};
use deckle_model::ModelCharge;
use deckle_store::Disabled;

use super::process::{Death, Process};
use crate::LabError;
use crate::oom::{Blocks, LIMIT, OomCase, Outcome, SIZE, STRIDE};
use crate::program::sparse;
use crate::size::{BLOCK, PAGE};

/// Pages that Linux charges for the program before it touches its workload, without room that is
/// only charged ahead. Measured on 6.18 (x86-64) with the workload binary over one page in a
/// memory cgroup of its own: 49 of anonymous memory (relocated data of binary and libc, .data and
/// .bss, stack, heap) and 15 of kernel memory (page tables of all these, kernel stack, task and
/// memory descriptors); the test program, which is smaller, 38 and 20. `tests/oom_model.rs`
/// measures the latter again.
pub const PROCESS_PAGES: u64 = 49 + 15;
/// Page tables per block of the workload: Linux takes one along with each huge page, so that it
/// can split it, and one for a block of small pages.
const TABLES_PER_BLOCK: u64 = 1;
/// The machine has room for all of it: the limit decides, not the RAM.
const RAM: u64 = 2 * SIZE as u64;

/// One case, with `process` pages charged beside the workload.
///
/// # Errors
/// [`LabError::Model`]: a wrong byte, or books that do not add up.
pub fn run(case: &OomCase, process: u64) -> Result<Outcome, LabError> {
    let charge = ModelCharge::new((LIMIT / PAGE) as u64);
    charge.force_charge(process);
    let tunables = Tunables {
        max_ptes_none: u16::try_from(case.max_ptes_none).unwrap_or(u16::MAX),
        shrink_underused: case.shrink_underused,
        ..Tunables::of_profile(Profile::Linux)
    };
    let program = Process::new(RAM, charge.clone(), Disabled, tunables, SIZE)?.mapped()?;
    let outcome = match touch_and_check(&program, &charge, case.blocks == Blocks::Zeros) {
        Ok(()) => Outcome::Survived,
        Err(Death::Oom(_)) => Outcome::Killed,
        Err(Death::Failed(e)) => return Err(e),
    };
    program.verify(false)?;
    Ok(outcome)
}

fn touch_and_check(
    program: &Process<Disabled>,
    charge: &ModelCharge,
    zeros: bool,
) -> Result<(), Death> {
    let mut tables = 0;
    for (at, byte) in sparse::touches(SIZE, STRIDE, zeros) {
        if at / BLOCK >= tables {
            // Past the limit if need be: the touch itself is charged next and finds it full.
            charge.force_charge(TABLES_PER_BLOCK);
            tables += 1;
        }
        program.write(at, &[byte])?;
    }
    let (mut page, mut want) = ([0; PAGE], [0; PAGE]);
    for n in 0..SIZE / PAGE {
        program.read(n * PAGE, &mut page)?;
        sparse::page(n, STRIDE, zeros, &mut want);
        if page != want {
            let e = LabError::Model(format!("page {n} does not hold what was written"));
            return Err(Death::Failed(e));
        }
    }
    Ok(())
}
