//! The accesses of a working set larger than memory, by one CPU: what has to be read back.

use deckle_mm::{Item, Tunables};
use deckle_model::ModelCharge;
use deckle_store::{Algorithm, Ram};

use super::process::Process;
use super::{PER_PAGE, fits};
use crate::LabError;
use crate::overcommit::{Case, Trace};
use crate::program::walk::{Picker, Records};
use crate::size::{PAGE, human};

/// RAM of the machine beside the limit: frames of huge pages while they are taken apart.
const SPARE: u64 = 64 << 20;
/// The version of each small record of a page, in bytes.
const VERSIONS: u64 = 32;
/// The accesses that do not count, and those that do, for each page of the working set.
const WARM: usize = 2;
const COUNTED: usize = 4;
/// Between two looks at how much is resident.
const LOOK: usize = 1000;

/// Runs a case, by one thread, over `size` bytes within `memory` bytes; a loop covers `reach`
/// bytes.
///
/// # Errors
/// [`LabError::Model`]: a wrong byte, an access that is not served, or books that do not add up.
pub fn run(case: Case, size: u64, memory: u64, reach: u64) -> Result<Trace, LabError> {
    let need = 2 * memory + SPARE + size / PAGE as u64 * (PER_PAGE + VERSIONS);
    fits(&human(size), need)?;
    let charge = ModelCharge::new(memory / PAGE as u64);
    // As deckle run has it by default, but for the 4 MiB that it leaves at least: the one CPU
    // reclaims before it goes on, and in a small limit nothing that it has just read would stay.
    charge.set_high((memory - memory / 64) / PAGE as u64);
    let store = Ram::new(Algorithm::Lz4);
    let len = size as usize;
    let program =
        Process::new(memory + SPARE, charge, store, Tunables::default(), len)?.mapped()?;
    let records = Records::new(case.record)?;
    let pages = len / PAGE;
    let count = pages * records.in_page();
    let mut walk = Walk {
        program,
        versions: vec![0; count],
        page: vec![0; records.len()],
        records,
        trace: Trace::default(),
    };
    for record in 0..count {
        let page = walk.records.at(record) / PAGE;
        walk.trace.pages.push(page as u32);
        walk.write(record)?;
    }
    let reach = reach as usize / PAGE * walk.records.in_page();
    let mut picker = Picker::new(case.pattern, count, reach, 0);
    let mut pick = |walk: &mut Walk| {
        let access = picker.pick();
        walk.check(access.record)?;
        match access.write {
            true => walk.write(access.record),
            false => Ok(()),
        }
    };
    for _ in 0..WARM * pages {
        pick(&mut walk)?;
    }
    walk.trace.warm = walk.trace.pages.len();
    let before = walk.read_back();
    let (mut resident, mut looks) = (0, 0);
    for n in 0..COUNTED * pages {
        pick(&mut walk)?;
        if n % LOOK == 0 {
            let count = |item| walk.program.count(item);
            resident += count(Item::NrAnon) + count(Item::NrInactive);
            looks += 1;
        }
    }
    let after = walk.read_back();
    walk.program.verify(false)?;
    Ok(Trace {
        resident: resident / looks,
        missed: after.0 - before.0,
        read: after.1 - before.1,
        ..walk.trace
    })
}

struct Walk {
    program: Process<Ram>,
    records: Records,
    versions: Vec<u8>,
    page: Vec<u8>,
    trace: Trace,
}

impl Walk {
    /// Faults that read, and pages read.
    fn read_back(&self) -> (u64, u64) {
        let count = |item| self.program.count(item);
        (count(Item::Pgmajfault), count(Item::Pswpin))
    }

    /// Writes a record anew. Not an access of its own: who writes has read.
    fn write(&mut self, record: usize) -> Result<(), LabError> {
        let at = self.records.at(record);
        let version = self.versions[record].wrapping_add(1);
        self.versions[record] = version;
        self.records.write(&mut self.page, record as u64, version);
        Ok(self.program.write(at, &self.page)?)
    }

    fn check(&mut self, record: usize) -> Result<(), LabError> {
        let at = self.records.at(record);
        self.trace.pages.push((at / PAGE) as u32);
        self.program.read(at, &mut self.page)?;
        let wrong = self
            .records
            .wrong(&self.page, record as u64, self.versions[record]);
        match wrong {
            None => Ok(()),
            Some(_) => Err(LabError::Model(format!(
                "record {record} does not hold what was written"
            ))),
        }
    }
}
