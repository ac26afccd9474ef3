//! What the store has in RAM goes on to the slower medium behind it, if there is one: what was
//! stored longest ago, in large writes, by whoever reclaims.

use crate::env::Env;
use crate::machine::Machine;
use crate::mm::Mm;
use crate::stat::Item;
use crate::store::Store;

impl<E: Env> Mm<E> {
    /// Has the store write while its RAM is more than its share beside what is resident. Returns
    /// by how many pages what it is charged for grew: it shrank, if anything.
    pub(super) fn write_back(&self) -> i64 {
        let mut grown = 0;
        while self.store().wants_writeback(self.stats().get(Item::NrAnon))
            && let Some(more) = self.write_some()
        {
            grown += more;
            self.machine().stand_aside();
        }
        grown
    }

    /// The same once, whatever its share: where nothing else can go. `None`: nothing was written.
    pub(super) fn write_some(&self) -> Option<i64> {
        let written = self.store().writeback()?;
        self.stats().add(Item::Zswpwb, written.pages);
        Some(self.settle_store())
    }
}
