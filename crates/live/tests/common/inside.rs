//! What tests and benchmarks see of a service beyond what its users do.

use deckle_live::{Pager, Service};
use deckle_mm::{Charge, Store};

/// The pager of a service. Whoever uses it leaves regions where they are.
pub trait Inside<C: Charge, S: Store> {
    fn inside(&self) -> &Pager<C, S>;
}

impl<C: Charge, S: Store> Inside<C, S> for Service<C, S> {
    fn inside(&self) -> &Pager<C, S> {
        // SAFETY: nothing of a region is unmapped, moved or discarded by this way while one is
        // read; what is paged out comes back as it was.
        unsafe { self.pager() }
    }
}
