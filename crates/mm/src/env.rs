//! One set of the four traits, and the manager built on it.

use crate::charge::Charge;
use crate::engine::sharing::Sharing;
use crate::frames::Frames;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::store::Store;

/// The machine that a manager runs on: one type for each trait.
pub trait Env: Sized + 'static {
    /// Memory and translations.
    type P: Platform;
    /// CPUs and waiting.
    type M: Machine;
    /// The group's account.
    type C: Charge;
    /// Where swapped pages go.
    type S: Store;
    /// Who copies pages on write.
    type Sharing: Sharing;
    /// What frames are.
    type Frames: Frames;
}
