//! Memory that the program has had from the system without the core: it is taken into the books
//! where it is, with the pages that it has; and what the program has given back to the system
//! without the core is taken out of them.

use crate::charge::Charge;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::env::Env;
use crate::mm::Mm;
use crate::platform::{Made, Prot};
use crate::table::block::BlockState;
use crate::table::vma::Vma;
use crate::units::{BLOCK_PAGES, PageMask, PageRun, SpaceId, Vpn};

/// Pages that a range has already: runs, each within one block, and what is there of each.
pub type There = [(PageRun, Made)];

impl<E: Env> Mm<E> {
    /// Maps a range that the program has mapped already, with the rights `prot`, and of which it
    /// has the pages that `there` tells; the others are holes. The platform serves the range since
    /// before it was looked at: so no page has come since. The pages are charged whatever the
    /// limit: they are in memory already. A fault meanwhile finds no mapping, and is tried again.
    ///
    /// `grown`: it is what the mapping before it has grown by.
    ///
    /// # Errors
    /// [`MapError::BadRange`]: out of the space, or something is mapped there; nothing has changed.
    pub fn adopt(
        &self,
        id: SpaceId,
        (start, pages): (Vpn, u64),
        (prot, grown): (Prot, bool),
        there: &There,
    ) -> Result<(), MapError> {
        let space = self.space(id)?;
        let _mmap = space.mmap_lock.lock(self.machine());
        let is_taken =
            |start, pages| space.read_vmas(self, |t| t.range(start, pages).next().is_some());
        if !space.contains(start, pages) || is_taken(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        for (run, made) in there {
            debug_assert!(
                run.start >= start && run.start.0 + u64::from(run.pages) <= start.0 + pages
            );
            let block = space.block(self, run.start.block());
            let mut state = self.lock_settled(&block, run.start.index(), run.pages);
            if let Some(table) = state.table() {
                self.charge().force_charge(u64::from(run.pages));
                self.note_open(table, *run, prot);
                self.book(table, *run, made);
            }
            state.tidy();
        }
        // What has grown is one mapping with what was there.
        let before = start
            .0
            .checked_sub(1)
            .and_then(|page| space.vma(self, Vpn(page)).0);
        let like = before.filter(|v| grown && v.prot == prot);
        let like = like.unwrap_or(Vma::new(start, pages, prot));
        let (whole, locked, soft_dirty) = (true, false, true);
        self.insert(
            &space,
            Vma {
                start,
                pages,
                whole,
                locked,
                soft_dirty,
                ..like
            },
        )
    }

    /// Forgets what is mapped in a range that the program has unmapped, or mapped something else
    /// over: what is there is not the core's to drop, as the platform knows.
    ///
    /// # Errors
    /// [`MapError::BadRange`]: out of the space.
    pub fn forget(&self, id: SpaceId, start: Vpn, pages: u64) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        self.break_edges(&space, start, pages);
        space.edit_vmas(self, |tree| tree.remove(start, pages));
        self.zap_range(&space, start, pages);
        Ok(())
    }

    /// Whether faults of a mapping are not served any more that is managed, since the program has
    /// put it in the place of what was: what of it is not the system's to fill is not served.
    /// `serves` tells that of a page; it is asked with the lock of the page's block held.
    pub fn is_lost(
        &self,
        id: SpaceId,
        start: Vpn,
        pages: u64,
        serves: &dyn Fn(Vpn) -> bool,
    ) -> bool {
        let Ok(space) = self.space(id) else {
            return false;
        };
        let mut is_known = false;
        for (block, first, n) in space.parts(self, start, pages) {
            is_known = true;
            let (from, state) = (first.index(), block.lock(self));
            if let Some(k) = (from..from + n).find(|&k| !state.entry(k).is_open()) {
                return !serves(first.block().start().add(u64::from(k)));
            }
        }
        !is_known && !serves(start)
    }

    /// The program has moved the pages of a range to another, of which the core knows nothing, by
    /// a call of its own: what is mapped there has come along, and the marks of what is not. The
    /// books follow; until they do the platform does at the new place what is asked for at the old
    /// one.
    ///
    /// # Errors
    /// [`MapError::BadRange`]: out of the space, or something is mapped at the new place; nothing
    /// has changed.
    pub fn moved(&self, id: SpaceId, (from, to): (Vpn, Vpn), pages: u64) -> Result<(), MapError> {
        let space = self.space(id)?;
        let _mmap = space.mmap_lock.lock(self.machine());
        let is_taken = space.read_vmas(self, |t| t.range(to, pages).next().is_some());
        if !space.contains(from, pages) || !space.contains(to, pages) || is_taken {
            return Err(MapError::BadRange(to, pages));
        }
        let vmas = self.mapped_parts(id, from, pages);
        space.edit_vmas(self, |tree| tree.remove(from, pages));
        for (block, first, n) in space.parts(self, from, pages) {
            let mut at = 0;
            while at < n {
                let (old, dest) = (
                    first.add(at.into()),
                    to.add(first.0 - from.0 + u64::from(at)),
                );
                let len = (n - at).min(BLOCK_PAGES - dest.index());
                self.follow(&space, &block, (old, dest, len));
                at += len;
            }
        }
        for v in vmas {
            let place = to.add(v.start.0 - from.0);
            self.insert(&space, v.moved(place, v.pages))?;
        }
        Ok(())
    }

    /// Has the entries of a run follow its pages.
    fn follow(&self, space: &Space, block: &BlockRef, run: (Vpn, Vpn, u32)) {
        let (from, to, n) = run;
        let whole = n == BLOCK_PAGES && to.index() == 0;
        loop {
            let state = self.lock_settled(block, from.index(), n);
            if matches!(&*state, BlockState::Huge(_)) && !whole {
                drop(state);
                self.break_huge(space, block, from.block(), PageMask::EMPTY);
            } else if self.hand_over(space, block, state, run, whole) {
                return;
            }
        }
    }
}
