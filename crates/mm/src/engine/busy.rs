//! Who owns what is busy.
//!
//! Who marks a block, or entries of it, busy under its lock gets a [`Busy`]. Only by it the lock
//! is taken again to write the outcome, and writing the outcome wakes whoever waits: neither can
//! be had without the other. What was forgotten, `verify` finds busy.

use crate::engine::Engine;
use crate::engine::space::BlockRef;
use crate::env::Env;
use crate::machine::Machine;
use crate::sync::Guard;
use crate::table::block::{BlockState, Table};
use crate::table::entry::Kind;
use crate::units::PageMask;

/// What one owner has marked busy of a block: all of it, or some of its entries.
#[must_use = "what stays busy hangs whoever meets it"]
pub(crate) struct Busy {
    block: BlockRef,
    pages: PageMask,
}

impl Busy {
    /// Marks a block busy as a whole, and lets go of its lock; with what it was.
    pub(crate) fn block<M: Machine>(
        block: &BlockRef,
        mut state: Guard<'_, BlockState, M>,
    ) -> (Busy, BlockState) {
        let was = core::mem::replace(&mut *state, BlockState::Busy);
        debug_assert!(!matches!(was, BlockState::Busy), "it has an owner");
        (Busy::of(block, PageMask::FULL), was)
    }

    /// Marks entries of a locked block's table busy, none of which is.
    pub(crate) fn entries(block: &BlockRef, table: &mut Table, pages: PageMask) -> Busy {
        for k in pages.pages() {
            let e = table.get(k);
            debug_assert!(!e.is_busy(), "page {k} has an owner");
            table.set(k, e.with(Kind::Busy));
        }
        Busy::of(block, pages)
    }

    fn of(block: &BlockRef, pages: PageMask) -> Busy {
        Busy {
            block: block.clone(),
            pages,
        }
    }

    /// Ends the ownership of a whole block, which is `state` from now on.
    pub(crate) fn end<E: Env>(self, mm: &Engine<E>, state: BlockState) {
        self.end_by(mm, |block| *block = state);
    }

    /// Ends the ownership: `write` says under the lock what became of all that was busy.
    pub(crate) fn end_by<E: Env>(self, mm: &Engine<E>, write: impl FnOnce(&mut BlockState)) {
        let mut state = self.block.lock(mm);
        write(&mut state);
        debug_assert!(
            self.pages.pages().all(|k| !state.entry(k).is_busy()),
            "what became of a page was not said"
        );
        self.block.settled(mm);
        drop(state);
    }

    /// Writes what became of a part; who waits learns of it by the end.
    pub(crate) fn note<E: Env>(&self, mm: &Engine<E>, write: impl FnOnce(&mut BlockState)) {
        write(&mut self.block.lock(mm));
    }
}

impl<E: Env> Engine<E> {
    /// Locks a block once nothing of `first..first + n` is busy.
    pub(crate) fn lock_settled<'a>(
        &'a self,
        block: &'a BlockRef,
        first: u32,
        n: u32,
    ) -> Guard<'a, BlockState, E::M> {
        loop {
            let state = block.lock(self);
            let busy = match &*state {
                BlockState::Busy => true,
                BlockState::Table(t) => t.busy_in(first, n),
                _ => false,
            };
            if !busy {
                return state;
            }
            let ticket = block.ticket();
            drop(state);
            block.wait(self, ticket);
        }
    }
}
