//! New mappings, and ranges that become writable, whose holes are left to the system.

use crate::charge::Charge;
use crate::engine::open::those;
use crate::engine::space::{MapError, Space};
use crate::env::Env;
use crate::fault::opening::may_open;
use crate::mm::Mm;
use crate::platform::Prot;
use crate::table::vma::Vma;
use crate::tunables::FaultOrder;
use crate::units::{BLOCK_PAGES, PageRun, SpaceId, Vpn};

/// Pages of a new mapping that is open at once: 256 KiB.
const NEW: u64 = 64;

impl<E: Env> Mm<E> {
    /// Whether a new mapping may be open from the beginning, since it is so small that its first
    /// fault would cost more than its pages; it is charged then.
    pub fn charge_new(&self, prot: Prot, pages: u64) -> bool {
        let t = &self.tunables();
        let plain = t.fault_open_ratio > 0 && t.fault_order == FaultOrder::Auto;
        pages <= NEW && plain && prot == Prot::RW && self.charge_open(t, pages)
    }

    /// Returns that charge.
    pub fn uncharge_new(&self, pages: u64) {
        self.charge().uncharge(pages);
    }

    /// Maps what [`charge_new`](Self::charge_new) has charged, at a place where nothing is, of
    /// which the platform has left all holes to the system.
    ///
    /// # Errors
    /// As [`mmap`](Self::mmap); the charge is returned.
    pub fn mmap_open(
        &self,
        id: SpaceId,
        start: Vpn,
        pages: u64,
        prot: Prot,
    ) -> Result<Vpn, MapError> {
        let done = self.map_open(id, start, pages, prot);
        if done.is_err() {
            self.uncharge_new(pages);
        }
        done.map(|()| start)
    }

    fn map_open(&self, id: SpaceId, start: Vpn, pages: u64, prot: Prot) -> Result<(), MapError> {
        let space = self.space(id)?;
        if !space.contains(start, pages) {
            return Err(MapError::BadRange(start, pages));
        }
        let _mmap = space.mmap_lock.lock(self.machine());
        self.insert_new(&space, start, pages, prot)?;
        for (first, n) in by_block(start, pages) {
            let block = space.block(self, first.block());
            let mut state = self.lock_settled(&block, first.index(), n);
            if let Some(table) = state.table() {
                self.note_open(table, PageRun::new(id, first, n), prot);
            }
        }
        Ok(())
    }

    /// Opens the holes of so small a range that has just become writable, as those of a new mapping
    /// of that size. What cannot be opened stays as it is. The mmap lock is held.
    pub(crate) fn open_writable(&self, space: &Space, start: Vpn, pages: u64) {
        let t = &self.tunables();
        if pages > NEW || !self.is_far_below_high(t, pages) {
            return;
        }
        for (first, n) in by_block(start, pages) {
            let vma = space.vma(self, first).0;
            let whole = |v: &Vma| v.contains(first.add(u64::from(n - 1)));
            let Some(vma) = vma.filter(|v| whole(v) && may_open(space, v, t)) else {
                continue;
            };
            let block = space.block(self, first.block());
            let mut state = self.lock_settled(&block, first.index(), n);
            if let Some(table) = state.table() {
                let holes = those(table, first.index(), n, |e| e.is_none());
                for (k, n) in holes.runs(BLOCK_PAGES) {
                    let at = first.block().start().add(u64::from(k));
                    self.open_run(table, PageRun::new(space.id, at, n), vma.prot, t);
                }
            }
            state.tidy();
        }
    }
}

/// The parts of a range that lie in one block each.
fn by_block(start: Vpn, pages: u64) -> impl Iterator<Item = (Vpn, u32)> {
    let mut at = start;
    core::iter::from_fn(move || {
        let first = at;
        let left = (start.0 + pages).saturating_sub(first.0);
        let n = left.min(u64::from(BLOCK_PAGES - first.index()));
        at = first.add(n);
        (n > 0).then_some((first, n as u32))
    })
}
