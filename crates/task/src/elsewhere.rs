//! Systems where service tasks cannot be made: only the typed refusal.

use crate::SpawnError;

/// Stack and thread-local storage of one task; cannot be had on this system.
#[derive(Debug)]
pub enum Area {}

impl Area {
    /// Always fails with [`SpawnError::Unsupported`].
    pub fn new(_stack_bytes: usize) -> Result<Area, SpawnError> {
        Err(SpawnError::Unsupported(
            "service tasks need Linux on x86-64 with glibc",
        ))
    }
}

/// False: there are no service tasks here.
pub fn in_service_task() -> bool {
    false
}
