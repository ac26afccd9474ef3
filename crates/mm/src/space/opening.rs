//! Where holes are left to the system: around a fault, and of new mappings.

use crate::charge::Charge;
use crate::env::Env;
use crate::huge::order;
use crate::mm::Mm;
use crate::platform::Prot;
use crate::space::block::{BlockState, Table, around};
use crate::space::fault::FaultMode;
use crate::space::open::{ahead, those};
use crate::space::vma::Vma;
use crate::space::{MapError, Space};
use crate::tunables::{FaultOrder, Tunables};
use crate::units::{BLOCK_PAGES, PageRun, SpaceId, Vpn};

/// Pages of a new mapping that is open at once: 256 KiB.
const NEW: u64 = 64;

impl<E: Env> Mm<E> {
    /// Opens the holes around `page`, a hole, if that may be and the charge allows: how many. Only
    /// at the first try of a fault (`NoWait`): who was put off was so because memory is short, and
    /// who populates wants pages. Block locked, the VMA just validated.
    pub(crate) fn try_open(
        &self,
        space: &Space,
        state: &mut BlockState,
        vma: &Vma,
        page: Vpn,
        mode: FaultMode,
        t: &Tunables,
    ) -> Option<u32> {
        let may = mode == FaultMode::NoWait && may_open(space, vma, t);
        if !may || !self.is_far_below_high(t, 1) {
            return None;
        }
        let table = state.table()?;
        let run = holes(space, table, vma, page);
        let opened = self.open_run(table, run, vma.prot, t);
        if !opened {
            state.tidy();
        }
        opened.then_some(run.pages)
    }

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

/// Whether holes of a VMA may be the system's to fill: nobody else has a say there.
fn may_open(space: &Space, vma: &Vma, t: &Tunables) -> bool {
    let plain = vma.prot.read && vma.prot.write && !vma.locked;
    let ours = !vma.uffd_missing && !vma.uffd_wp && !space.forbids_zero();
    t.fault_open_ratio > 0 && order::adapts(t, vma) && plain && ours
}

/// The holes of a VMA without a gap around `page`, as far as [`ahead`] says.
fn holes(space: &Space, table: &Table, vma: &Vma, page: Vpn) -> PageRun {
    let (block, i) = (page.block().start(), page.index());
    let hole = |k| table.get(k).is_none() && vma.contains(block.add(u64::from(k)));
    let run = around(i, ahead(table, i, |e| e.is_open()), hole);
    PageRun::new(space.id, block.add(u64::from(run.start)), run.len() as u32)
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
