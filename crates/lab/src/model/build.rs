//! A build on a machine that has too little RAM for it, with page capture and without: what a
//! compiler does to its memory (see `program::anon::pattern`), after the kernel build that the
//! capture series was tried with.

use deckle_mm::{Item, Tunables};
use deckle_model::ModelCharge;
use deckle_store::{Algorithm, Ram};
use serde::Serialize;

use super::anon::Memory;
use super::process::Process;
use super::{PER_PAGE, fits};
use crate::LabError;
use crate::program::anon::pattern;
use crate::size::PAGE;

/// Of 100 bytes of the build, those that are RAM.
const RAM_PCT: u64 = 80;

/// One build.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct BuildRow {
    /// Whether pages were captured.
    pub capture: bool,
    /// Faults, those included that read something back.
    pub faults: u64,
    /// Those.
    pub major_faults: u64,
    /// Pages stored.
    pub stored: u64,
    /// Pages read back.
    pub read_back: u64,
    /// Huge pages of faults.
    pub huge: u64,
    /// Pages captured: none, as nobody waits for a large block.
    pub captured: u64,
}

/// Without capture, and with it.
///
/// # Errors
/// [`LabError::Model`]: an access that is not served, or books that do not add up.
pub fn run() -> Result<Vec<BuildRow>, LabError> {
    [false, true].into_iter().map(build).collect()
}

fn build(capture: bool) -> Result<BuildRow, LabError> {
    let bytes = pattern::BYTES as u64;
    let ram = bytes * RAM_PCT / 100;
    fits("a build", 2 * bytes + ram / PAGE as u64 * PER_PAGE)?;
    let (charge, store) = (ModelCharge::unlimited(), Ram::new(Algorithm::Lz4));
    let window = 2 * pattern::BYTES + (4 << 20);
    let process = Process::new(ram, charge, store, Tunables::default(), window)?;
    process.set_capture(capture);
    let mut memory = Memory(process);
    pattern::run(&mut memory, &mut |_, _| ())?;
    memory.0.verify(true)?;
    let count = |item| memory.0.count(item);
    Ok(BuildRow {
        capture,
        faults: count(Item::Pgfault),
        major_faults: count(Item::Pgmajfault),
        stored: count(Item::Pswpout),
        read_back: count(Item::Pswpin),
        huge: count(Item::ThpFaultAlloc),
        captured: count(Item::CapturePages),
    })
}
