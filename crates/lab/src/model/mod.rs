//! The seam to the software machine: the experiments hand it a case, it runs the same accesses.

use crate::LabError;
use crate::oom::{OomCase, Outcome};
use crate::pageout::Case;

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
    /// Size of what the store holds, in bytes.
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
}
