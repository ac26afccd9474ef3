//! Where a fault leaves the holes around it to the system.

use crate::engine::open::ahead;
use crate::engine::space::Space;
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::fault::Fault;
use crate::mm::Mm;
use crate::order;
use crate::table::block::{BlockState, Table, around};
use crate::table::vma::Vma;
use crate::tunables::Tunables;
use crate::units::{PageRun, Vpn};

impl<E: Env> Mm<E> {
    /// Opens the holes around the page, a hole, if that may be and the charge allows: how many.
    /// Only at the first try of a fault (`NoWait`): who was put off was so because memory is
    /// short, and who populates wants pages. Block locked, the VMA just validated.
    pub(crate) fn try_open(
        &self,
        f: Fault<'_>,
        state: &mut BlockState,
        vma: &Vma,
        t: &Tunables,
    ) -> Option<u32> {
        let Fault { space, page, .. } = f;
        let may = f.mode == FaultMode::NoWait && may_open(space, vma, t);
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
}

/// Whether holes of a VMA may be the system's to fill: nobody else has a say there.
pub(crate) fn may_open(space: &Space, vma: &Vma, t: &Tunables) -> bool {
    let plain = vma.prot.read && vma.prot.write && !vma.locked;
    let ours = !vma.uffd_missing && !vma.uffd_wp && !vma.whole && !space.forbids_zero();
    t.fault_open_ratio > 0 && order::adapts(t, vma) && plain && ours
}

/// The holes of a VMA without a gap around `page`, as far as [`ahead`] says.
fn holes(space: &Space, table: &Table, vma: &Vma, page: Vpn) -> PageRun {
    let (block, i) = (page.block().start(), page.index());
    let hole = |k| table.get(k).is_none() && vma.contains(block.add(u64::from(k)));
    let run = around(i, ahead(table, i, |e| e.is_open()), hole);
    PageRun::new(space.id, block.add(u64::from(run.start)), run.len() as u32)
}
