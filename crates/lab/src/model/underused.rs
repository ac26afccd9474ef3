//! The programs of the underused experiment that are accesses only, on the software machine.

use deckle_mm::{Charge, Item, Tunables};
use deckle_model::ModelCharge;
use deckle_store::Disabled;

use super::process::{Death, Process};
use crate::LabError;
use crate::program::underused::{CHURN_BYTES, Memory, Program, SPARSE_BYTES, churn, sparse};
use crate::size::{BLOCK, PAGE};
use crate::underused::Run;

/// RAM beside the mapping.
const SPARE: u64 = 16 << 20;

impl Memory for Process<Disabled> {
    type Error = Death;

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Death> {
        by_page(at, bytes.len(), |at, part| {
            Process::write(self, at, &bytes[part])
        })
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Death> {
        by_page(at, bytes.len(), |at, part| {
            Process::read(self, at, &mut bytes[part])
        })
    }

    fn give_back(&mut self, at: usize, bytes: usize) -> Result<(), Death> {
        Process::give_back(self, at, bytes, false).map_err(Death::Failed)
    }

    fn wrong(at: usize, found: u8, want: u8) -> Death {
        let how = format!("byte {at} is {found:#04x}, and {want:#04x} was written");
        Death::Failed(LabError::Model(how))
    }
}

/// An access as the machine takes it: within one page.
fn by_page(
    at: usize,
    len: usize,
    mut access: impl FnMut(usize, std::ops::Range<usize>) -> Result<(), Death>,
) -> Result<(), Death> {
    let mut done = 0;
    while done < len {
        let n = (PAGE - (at + done) % PAGE).min(len - done);
        access(at + done, done..done + n)?;
        done += n;
    }
    Ok(())
}

/// One run, without swap and with background reclaim above `high` bytes; `None` for a program that
/// the machine cannot run.
///
/// # Errors
/// [`LabError::Model`]: a wrong byte, an access that is not served, or books that do not add up.
pub fn run(
    program: Program,
    tunables: Tunables,
    high: Option<u64>,
) -> Result<Option<Run>, LabError> {
    let bytes = match program {
        Program::Sparse => SPARSE_BYTES,
        Program::Churn => CHURN_BYTES,
        Program::Python | Program::Compile => return Ok(None),
    };
    let charge = ModelCharge::unlimited();
    if let Some(high) = high {
        charge.set_high(high / PAGE as u64);
    }
    let ram = bytes as u64 + SPARE;
    let mut process = Process::new(ram, charge.clone(), Disabled, tunables, bytes)?.mapped()?;
    let mut settled = (0, 0);
    let mut settle = |process: &mut Process<Disabled>| {
        process.reclaim();
        settled = (Charge::usage(&charge), process.count(Item::NrThp));
        Ok(())
    };
    match program {
        Program::Sparse => sparse(&mut process, &mut settle),
        _ => churn(&mut process, &mut settle),
    }?;
    process.verify(true)?;
    Ok(Some(Run {
        time_s: None,
        peak: charge.peak() * PAGE as u64,
        settled: settled.0 * PAGE as u64,
        huge: settled.1 * BLOCK as u64,
        splits: process.count(Item::ThpSplitPage),
        underused_splits: process.count(Item::ThpUnderusedSplitPage),
        retouches: Some(process.count(Item::ThpUnderusedRetouch)),
    }))
}
