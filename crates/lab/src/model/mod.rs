//! The software side: the experiments' accesses on the software machine, under the real memory
//! manager and the real stores.
//!
//! - [`ModelSide`]: what the experiments ask of it. They know nothing else of the model.
//! - [`SoftwareMachine`]: the answer. One simulated CPU runs the program; every load and store
//!   goes through the machine's TLB, every fault to [`deckle_mm::Mm`].
//! - `process`: a simulated program with its memory; `pageout`, `oom`: its accesses.
//!
//! Outcomes and counts of the model are the manager's own. Its times are not: they say how long
//! the simulation took, and belong in no ratio.

use deckle_mm::Tunables;

use crate::LabError;
use crate::anon::Counts;
use crate::oom::{OomCase, Outcome};
use crate::overcommit;
use crate::pageout::Case;
use crate::program::anon::Workload;
use crate::program::underused::Program;
use crate::underused::Run;

mod anon;
pub mod oom;
mod pageout;
mod process;
mod replace;
mod underused;

/// What the model says about one pageout run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelPageout {
    /// Real time the simulation took, in seconds (not the time of the simulated machine).
    pub wall_s: f64,
    /// CPU time the simulation took, in seconds.
    pub cpu_s: f64,
    /// Zero-filled pages dropped when swapped out.
    pub zero_pages: u64,
    /// Pages written to the store.
    pub stored_pages: u64,
    /// RAM of the store when everything is paged out, in bytes.
    pub stored_bytes: u64,
}

/// A software machine that can run the experiments.
pub trait ModelSide {
    /// The S000 accesses over `size` bytes: fill as `case` says, page out, read back and check.
    ///
    /// # Errors
    /// [`LabError::Model`], also if a byte came back wrong.
    fn pageout(&mut self, case: Case, size: usize) -> Result<ModelPageout, LabError>;

    /// The S003 accesses of `case` in profile `linux`, within [`crate::oom::LIMIT`] bytes and
    /// without swap.
    ///
    /// # Errors
    /// [`LabError::Model`], also if a byte was wrong.
    fn oom(&mut self, case: &OomCase) -> Result<Outcome, LabError>;

    /// One round of an anon-folio workload under `tunables`; `None` for one that the machine
    /// cannot run.
    ///
    /// # Errors
    /// [`LabError::Model`]: an access that is not served, or books that do not add up.
    fn anon(&mut self, workload: Workload, tunables: Tunables) -> Result<Option<Counts>, LabError>;

    /// One run of a program of the underused experiment, without swap and with background reclaim
    /// above `high` bytes; `None` for one that the machine cannot run.
    ///
    /// # Errors
    /// [`LabError::Model`]: a wrong byte, an access that is not served, or books that do not add
    /// up.
    fn underused(
        &mut self,
        program: Program,
        tunables: Tunables,
        high: Option<u64>,
    ) -> Result<Option<Run>, LabError>;

    /// The accesses of an overcommit case, by one thread, over `size` bytes within `memory` bytes;
    /// a loop covers `reach` bytes.
    ///
    /// # Errors
    /// [`LabError::Model`]: a wrong byte, an access that is not served, or books that do not add
    /// up.
    fn overcommit(
        &mut self,
        case: overcommit::Case,
        size: u64,
        memory: u64,
        reach: u64,
    ) -> Result<overcommit::Trace, LabError>;
}

/// The software machine of `deckle-model` under the real manager. Each run is a new machine.
#[derive(Clone, Copy, Default, Debug)]
pub struct SoftwareMachine;

impl ModelSide for SoftwareMachine {
    fn pageout(&mut self, case: Case, size: usize) -> Result<ModelPageout, LabError> {
        pageout::run(case, size)
    }

    fn oom(&mut self, case: &OomCase) -> Result<Outcome, LabError> {
        oom::run(case, oom::PROCESS_PAGES)
    }

    fn anon(&mut self, workload: Workload, tunables: Tunables) -> Result<Option<Counts>, LabError> {
        anon::run(workload, tunables)
    }

    fn underused(
        &mut self,
        program: Program,
        tunables: Tunables,
        high: Option<u64>,
    ) -> Result<Option<Run>, LabError> {
        underused::run(program, tunables, high)
    }

    fn overcommit(
        &mut self,
        case: overcommit::Case,
        size: u64,
        memory: u64,
        reach: u64,
    ) -> Result<overcommit::Trace, LabError> {
        replace::run(case, size, memory, reach)
    }
}
