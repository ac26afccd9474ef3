//! The software side: the experiments' accesses on the software machine of `deckle-model`, under
//! the real memory manager and the real stores. Each run is a new machine: one simulated CPU runs
//! the program; every load and store goes through the machine's TLB, every fault to
//! [`deckle_mm::Mm`].
//!
//! Outcomes and counts of the model are the manager's own. Its times are not: they say how long
//! the simulation took, and belong in no ratio.

use crate::LabError;
use crate::host::mem_available;
use crate::size::human;

pub mod anon;
pub mod build;
pub mod oom;
pub mod pageout;
mod process;
pub mod replace;
pub mod stages;
pub mod underused;

/// What machine and manager keep for each page, in bytes: their record of a frame (16 and 64),
/// entries of page tables and of the manager's.
const PER_PAGE: u64 = 128;

/// The machine's memory is memory of this process: refuses what the host does not have.
fn fits(what: &str, need: u64) -> Result<(), LabError> {
    let have = mem_available()?;
    if need <= have {
        return Ok(());
    }
    let (need, have) = (human(need), human(have));
    Err(LabError::Model(format!(
        "the machine's memory for {what} is memory of this process: it needs {need}, and {have} \
         are available on this host; ask for less with --size"
    )))
}
