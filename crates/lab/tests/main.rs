//! The experiments: what they find on the model, on this host, and that this gets its settings
//! back.

mod anon_model;
mod capture_model;
mod guard;
mod oom_kernel;
mod oom_model;
mod overcommit_host;
mod overcommit_model;
mod pageout_host;
mod pageout_model;
mod pss;
#[path = "../../uffd/tests/common/skipped.rs"]
mod skipped;
mod underused_model;
mod underused_programs;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time changes the host's settings, uses its swap or measures what others would
/// change.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
