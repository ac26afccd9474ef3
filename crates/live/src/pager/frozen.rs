//! Standing still for a fork.
//!
//! From [`Pager::freeze`] to [`Pager::thaw`] the gate is closed. What is resident is in the
//! program, where the kernel copies it; the rest stays in the store. Faults wait: whoever forks
//! has all locks that it needs, so nobody who waits for a fault keeps it from going on.

use deckle_mm::{Charge, MapError, Store};
use deckle_uffd::Msg;

use super::Pager;
use super::handler::fault_of;

impl<C: Charge + 'static, S: Store + 'static> Pager<C, S> {
    /// Closes the gate and brings everything into a state that a fork may copy: what is resident
    /// into the program, marked as shared; `ahead`: and stored.
    ///
    /// # Errors
    /// The system refuses; the gate is open again then.
    pub fn freeze(&self, ahead: bool) -> Result<(), MapError> {
        self.gate.close();
        self.platform().nursery().drain();
        let space = self.space();
        let settled = self.mm.activate_all(space).and_then(|()| {
            if ahead {
                self.mm.forget_written(space)?;
            }
            self.mm.share_all(space)?;
            match ahead {
                true => self.mm.store_ahead(space),
                false => Ok(()),
            }
        });
        if settled.is_err() {
            self.gate.open();
        }
        settled
    }

    /// As [`freeze`](Self::freeze), for a fork whose child nobody will manage: everything is
    /// brought into the program.
    ///
    /// # Errors
    /// The limit has no room for it, or the system refuses; the gate is open again then.
    pub fn freeze_whole(&self) -> Result<(), MapError> {
        self.gate.close();
        self.platform().nursery().drain();
        let settled = self.mm.settle_for_fork(self.space());
        if settled.is_err() {
            self.gate.open();
        }
        settled
    }

    /// Opens the gate.
    pub fn thaw(&self) {
        self.gate.open();
    }

    /// A message while the gate is closed.
    pub(super) fn handle_frozen(&self, msg: &mut Msg) {
        if let Some(fault) = fault_of(msg)
            && !self.hand_over(fault)
        {
            // No room: the thread tries its access again and asks anew.
            self.platform().wake(fault.page, 1);
        }
    }
}
