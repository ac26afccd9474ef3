//! The service's part of a fork.

use super::Process;

impl Process {
    /// Before the fork.
    pub fn fork_begin(&self) -> Result<usize, i32> {
        Err(libc::ENOMEM)
    }

    /// After it, in the parent.
    pub fn fork_end(&self) -> Result<usize, i32> {
        Ok(0)
    }
}
