//! The anon-folio accesses on the software machine. Faults and memory are the manager's own;
//! there is no speed. The server that forks is left out: a simulated program is one process.

use deckle_mm::{Item, Tunables};
use deckle_model::ModelCharge;
use deckle_store::Disabled;

use super::process::{Death, Process};
use crate::LabError;
use crate::anon::Counts;
use crate::host;
use crate::program::anon::{Accesses, Workload, compiler, round};
use crate::size::{self, PAGE};

/// RAM beside the mappings.
const SPARE: u64 = 16 << 20;
/// Bytes of this process for each page of the machine's RAM, besides the page.
const PER_PAGE: u64 = 128;

struct Memory(Process<Disabled>);

/// Where a mapping begins, and its length, in bytes.
struct Map(usize, usize);

impl Accesses for Memory {
    type Map = Map;
    type Error = LabError;

    /// An allocator asks the system for as much as it is asked for, and a page for itself.
    fn map(&mut self, bytes: usize, malloc: bool) -> Result<Map, LabError> {
        let bytes = bytes + if malloc { PAGE } else { 0 };
        let mut map = Map(self.0.map(bytes)?, bytes);
        if malloc {
            self.write(&mut map, 0)?;
        }
        Ok(map)
    }

    fn unmap(&mut self, map: Map) -> Result<(), LabError> {
        self.0.give_back(map.0, map.1, true)
    }

    fn write(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        let written = self.0.write(map.0 + page * PAGE, &[1]);
        written.map_err(Death::into_error)
    }

    fn fill(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        let written = self.0.write(map.0 + page * PAGE, &[0x5a; PAGE]);
        written.map_err(Death::into_error)
    }

    fn read(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        let read = self.0.read(map.0 + page * PAGE, &mut [0]);
        read.map_err(Death::into_error)
    }

    fn clear(&mut self, map: &mut Map) -> Result<(), LabError> {
        self.0.give_back(map.0, map.1, false)
    }
}

/// One round of a workload under `tunables`; `None` for one that the machine cannot run.
pub(super) fn run(workload: Workload, tunables: Tunables) -> Result<Option<Counts>, LabError> {
    if workload == Workload::Fork {
        return Ok(None);
    }
    // Twice: what is mapped, and holes between mappings.
    let bytes = workload.bytes() as u64;
    let ram = bytes + SPARE;
    let (need, have) = (ram + ram / PAGE as u64 * PER_PAGE, host::mem_available()?);
    if need > have {
        return Err(LabError::Model(format!(
            "the machine's memory for {} is memory of this process: it needs {}, and {} are \
             available on this host",
            workload.name(),
            size::human(need),
            size::human(have),
        )));
    }
    let window = 2 * workload.bytes() + (4 << 20);
    let charge = ModelCharge::unlimited();
    let mut memory = Memory(Process::unmapped(ram, charge, Disabled, tunables, window)?);
    let (mut peak_bytes, mut touched_bytes) = (0, 0);
    let mut peak = |m: &mut Memory, pages: u64| {
        peak_bytes = m.0.count(Item::NrAnon) * PAGE as u64;
        touched_bytes = pages * PAGE as u64;
    };
    let pages = match workload {
        Workload::Compile => compiler::run(&mut memory, &mut peak)?,
        _ => round(workload, &mut memory, &mut peak)?.pages,
    };
    let faults = memory.0.count(Item::Pgfault);
    memory.0.verify(true)?;
    Ok(Some(Counts {
        faults,
        pages,
        peak_bytes,
        touched_bytes,
    }))
}
