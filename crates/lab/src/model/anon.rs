//! The anon-folio accesses on the software machine. Faults and memory are the manager's own;
//! there is no speed. The server that forks runs on bare hardware, where copy on write is the
//! manager's, too.

use deckle_mm::{Item, Store, Tunables};
use deckle_model::{ModelCharge, RamCoreCow};
use deckle_store::Disabled;

use super::process::Process;
use super::{PER_PAGE, fits};
use crate::LabError;
use crate::program::anon::{Accesses, FORK_EACH, Figures, Workload, pattern, round};
use crate::size::PAGE;

/// RAM beside the mappings.
const SPARE: u64 = 16 << 20;
/// Requests that the server serves.
const REQUESTS: u64 = 4;

pub(super) struct Memory<S: Store + 'static>(pub Process<S>);

/// Where a mapping begins, and its length, in bytes.
pub struct Map(usize, usize);

impl<S: Store + 'static> Accesses for Memory<S> {
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
        Ok(self.0.write(map.0 + page * PAGE, &[1])?)
    }

    fn fill(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        Ok(self.0.write(map.0 + page * PAGE, &[0x5a; PAGE])?)
    }

    fn read(&mut self, map: &mut Map, page: usize) -> Result<(), LabError> {
        Ok(self.0.read(map.0 + page * PAGE, &mut [0])?)
    }

    fn clear(&mut self, map: &mut Map) -> Result<(), LabError> {
        self.0.give_back(map.0, map.1, false)
    }
}

/// One round of a workload under `tunables`; of its figures operations and time are left out.
///
/// # Errors
/// [`LabError::Model`]: an access that is not served, or books that do not add up.
pub fn run(workload: Workload, tunables: Tunables) -> Result<Figures, LabError> {
    // The child of a server that forks may copy all that its parent has.
    let copies = if workload == Workload::Fork { 2 } else { 1 };
    let bytes = copies * workload.bytes() as u64;
    let ram = bytes + SPARE;
    fits(workload.name(), ram + ram / PAGE as u64 * PER_PAGE)?;
    // Twice: what is mapped, and holes between mappings.
    let window = 2 * workload.bytes() + (4 << 20);
    let charge = ModelCharge::unlimited();
    if workload == Workload::Fork {
        let server = Process::<_, RamCoreCow>::new(ram, charge, Disabled, tunables, window)?;
        return serve(&server);
    }
    let mut memory = Memory(Process::new(ram, charge, Disabled, tunables, window)?);
    let (mut used, mut touched) = (0, 0);
    let mut peak = |m: &mut Memory<_>, pages: u64| {
        used = m.0.count(Item::NrAnon) * PAGE as u64;
        touched = pages * PAGE as u64;
    };
    let pages = match workload {
        Workload::Compile => pattern::run(&mut memory, &mut peak)?,
        _ => round(workload, &mut memory, &mut peak)?.pages,
    };
    let faults = memory.0.count(Item::Pgfault);
    memory.0.verify(true)?;
    Ok(Figures {
        faults,
        pages,
        used,
        touched,
        ..Figures::default()
    })
}

/// The server: it has written all its memory, and serves one request more than is counted. Memory
/// is what both processes hold when the child has written.
fn serve(server: &Process<Disabled, RamCoreCow>) -> Result<Figures, LabError> {
    let bytes = Workload::Fork.bytes();
    let at = server.map(bytes)?;
    for page in (0..bytes).step_by(PAGE) {
        server.write(at + page, &[1])?;
    }
    let (mut before, mut peak) = (0, 0);
    for request in 0..=REQUESTS {
        if request == 1 {
            before = server.count(Item::Pgfault);
        }
        let child = server.fork()?;
        for page in (0..bytes).step_by(FORK_EACH * PAGE) {
            server.write_in(child, at + page, &[2])?;
        }
        peak = peak.max(server.charged());
        server.end(child)?;
    }
    server.verify(true)?;
    let pages = (bytes / PAGE) as u64;
    let written = pages / FORK_EACH as u64;
    Ok(Figures {
        faults: server.count(Item::Pgfault) - before,
        pages: REQUESTS * written,
        used: peak * PAGE as u64,
        touched: (pages + written) * PAGE as u64,
        ..Figures::default()
    })
}
