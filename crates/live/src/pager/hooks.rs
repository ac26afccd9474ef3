//! What the owner of a pager decides: what happens when a fault cannot be served.

use deckle_mm::FaultError;
use deckle_uffd::Errno;

use super::queue::Fault;

/// The owner's part. Called from the loops; must not touch managed memory.
pub trait Hooks: Send + Sync {
    /// A fault can never be served: memory is out, a stored page is unreadable, or the system
    /// refuses. The thread that faulted waits; the process should end.
    fn fatal(&self, fault: Fault, error: &FaultError);
    /// The descriptor that faults are read from is lost: the process must end before anybody
    /// reads zeros.
    fn lost(&self, errno: Errno);
    /// Something was done for the program, by whatever thread: counters may have changed.
    fn worked(&self) {}
    /// The other end of the descriptor that is [watched](super::Pager::watch) is gone.
    fn hung_up(&self) {}
}

/// One line on standard error, then SIGKILL, as the kernel does it.
pub struct Die;

impl Die {
    fn say(&self, what: std::fmt::Arguments<'_>) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "deckle: {what}; killed");
        let _ = deckle_sys::signal::send(std::process::id() as i32, libc::SIGKILL);
    }
}

impl Hooks for Die {
    fn fatal(&self, fault: Fault, error: &FaultError) {
        self.say(format_args!("fault at {:#x}: {error}", fault.page.addr()));
    }
    fn lost(&self, errno: Errno) {
        self.say(format_args!("the userfaultfd is lost: {errno}"));
    }
}
