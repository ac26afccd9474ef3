//! Folios that the store has refused.
//!
//! One that did not compress is not offered again at every round: it stays resident, unmapped
//! first, since it was about to leave. Its bytes can only change when it is mapped again. A
//! fault that writes to it says so at once. One that reads maps it, too, and what is written
//! then nobody sees: such folios are offered again when nothing else is left, before memory
//! counts as out.

use crate::env::Env;
use crate::frame::Flags;
use crate::mm::Mm;
use crate::table::block::BlockState;
use crate::table::entry::Kind;
use crate::units::{BLOCK_PAGES, Pfn};

impl<E: Env> Mm<E> {
    /// A fault has mapped a folio again; `write`: it is being written to. Block locked.
    pub(crate) fn forget_refusal(&self, head: Pfn, write: bool) {
        if write {
            self.meta(head).clear(Flags::REJECTED);
        }
    }

    /// Lets reclaim look again at every refused folio whose bytes may have changed since then;
    /// whether there is one. Each is found once: reclaim unmaps it, and if it is refused again
    /// it counts no more before it is touched. Walks all page tables.
    pub(super) fn offer_again(&self) -> bool {
        let offer = |head: Pfn| {
            let refused = self.meta(head).has(Flags::REJECTED);
            if refused {
                self.meta(head).clear(Flags::REJECTED);
            }
            refused
        };
        let mut found = false;
        for space in self.all_spaces() {
            for (block, ..) in space.parts(self, space.base, space.pages) {
                // What others share is written to by a copy.
                match &*block.lock(self) {
                    BlockState::Huge(h) if h.mapped() && !h.shared() => found |= offer(h.pfn),
                    BlockState::Table(table) => {
                        for e in (0..BLOCK_PAGES).map(|i| table.get(i)) {
                            if let Kind::Mapped(pfn) = e.kind()
                                && !e.shared()
                            {
                                found |= offer(self.head_of(pfn));
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        found
    }
}
