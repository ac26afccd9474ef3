//! Copy on write where no kernel does it: what a write to a page that a fork has shared comes to.
//!
//! An entry is *exclusive*, or *shared*: others may hold its page. Shared entries are guarded:
//! the write arrives as a fault. Reuse (F4) comes before copy (F3):
//!
//! - The page is exclusive: the maximal run of exclusive guarded pages around it, inside folio,
//!   VMA and block, becomes writable, without a look at references (R73, R78).
//! - All references to the folio are entries of the run of guarded pages around it: nobody else
//!   has any of it. The run becomes exclusive and writable; the folio is this place's own (R89).
//! - Else a part of the folio is copied: the largest naturally aligned window that holds nothing
//!   but shared pages in a row (R62 to R65).
//!
//! An exclusive page is never replaced (R64, R79). A page becomes exclusive in one of two ways:
//! it is new, or the count of references proves that nobody else has it (R80). Both the fault
//! that copies (R81) and a pin hold a reference, so that neither is overlooked.

use crate::engine::Engine;
use crate::engine::folio::{first_page, order_of};
use crate::engine::lru::Which;
use crate::engine::space::Space;
use crate::engine::step::{Access, Served, Step};
use crate::env::Env;
use crate::platform::PlatformError;
use crate::stat::Item;
use crate::table::block::{HugeMap, Presence, Table};
use crate::table::entry::Kind;
use crate::table::vma::Vma;
use crate::tunables::Stages;
use crate::units::{BLOCK_PAGES, BlockNr, PageRun, Pfn, Vpn, order_pages};

impl<E: Env> Engine<E> {
    /// A fault on a page of a mapped huge one. Block locked.
    pub(crate) fn wp_huge(
        &self,
        space: &Space,
        page: Vpn,
        access: Access,
        h: &mut HugeMap,
    ) -> Result<Step, PlatformError> {
        let allowed = match access {
            Access::Read => true,
            Access::Unshare => !h.shared(),
            Access::Write => !h.guarded(),
        };
        if allowed {
            return Ok(Step::Done(Served::Spurious));
        }
        if !self.claim_huge(space, page.block(), h, false) {
            return Ok(Step::Break);
        }
        if access == Access::Write {
            self.unguard(PageRun::new(space.id, page.block().start(), BLOCK_PAGES))?;
            h.has = Presence::Mapped;
            h.marks = h.marks.dirtied();
            self.stats().add(Item::Pgreuse, u64::from(BLOCK_PAGES));
            self.lru_move(h.pfn, Which::Active);
        }
        Ok(Step::Done(Served::Spurious))
    }

    /// A fault on a mapped page of a table. Block locked.
    pub(crate) fn wp_table(
        &self,
        space: &Space,
        vma: &Vma,
        seq: u64,
        page: Vpn,
        access: Access,
        table: &mut Table,
    ) -> Result<Step, PlatformError> {
        let i = page.index();
        let e = table.get(i);
        let allowed = match access {
            Access::Read => true,
            Access::Unshare => !e.shared(),
            Access::Write => !e.guarded(),
        };
        let Kind::Mapped(pfn) = e.kind() else {
            return Ok(Step::Again);
        };
        if allowed {
            return Ok(Step::Done(Served::Spurious));
        }
        let head = self.head_of(pfn);
        let (first, end) = self.reuse_run(vma, page, pfn, table);
        if e.shared() {
            if !self.is_sole(head, end - first, false) {
                return Ok(Step::Copy(*vma, seq));
            }
            for k in first..end {
                table.set(k, table.get(k).guard(false));
            }
            self.rmap_settle(head, space.id, first_page(page, pfn, head));
        }
        if access == Access::Write {
            table.set(i, table.get(i).dirtied());
            let (first, end) = unmarked_around(table, i, first, end);
            let start = page.block().start().add(u64::from(first));
            self.unguard(PageRun::new(space.id, start, end - first))?;
            for k in first..end {
                table.set(k, table.get(k).unguarded());
            }
            self.stats().add(Item::Pgreuse, u64::from(end - first));
            self.lru_move(head, Which::Active);
        }
        Ok(Step::Done(Served::Spurious))
    }

    /// The guarded pages in a row around `page`, inside folio, VMA and block (R72); around an
    /// exclusive page only the exclusive ones.
    fn reuse_run(&self, vma: &Vma, page: Vpn, pfn: Pfn, table: &Table) -> (u32, u32) {
        let i = page.index();
        if self.tunables().stages < Stages::Reuse {
            return (i, i + 1);
        }
        let e = table.get(i);
        let head = self.head_of(pfn);
        let last = head.0 + order_pages(order_of(self.meta(head))) - 1;
        let joins = |k: u32| {
            let next = table.get(k);
            let frame = pfn.0.wrapping_add(k).wrapping_sub(i);
            (head.0..=last).contains(&frame)
                && next.kind() == Kind::Mapped(Pfn(frame))
                && next.guarded()
                && next.prot() == e.prot()
                && (e.shared() || !next.shared())
                && vma.contains(page.block().start().add(u64::from(k)))
        };
        let (mut first, mut end) = (i, i + 1);
        while first > 0 && joins(first - 1) {
            first -= 1;
        }
        while end < BLOCK_PAGES && joins(end) {
            end += 1;
        }
        (first, end)
    }

    /// Whether the `refs` references of entries in a block that the caller holds are all there
    /// are. Isolation is the folio's lock: who else has isolated it is at work on it (R74).
    /// `isolated`: the caller has.
    pub(super) fn is_sole(&self, head: Pfn, refs: u32, isolated: bool) -> bool {
        let meta = self.meta(head);
        if isolated {
            return meta.refs() == refs + 1;
        }
        if meta.refs() != refs {
            return false;
        }
        let Some(folio) = self.isolate(head) else {
            return false;
        };
        let sole = meta.refs() == refs + 1;
        self.putback(folio);
        sole
    }

    /// Makes the shared entries of the folio of page `i` exclusive if the entries of this block
    /// are proven to be all that there are of it. Block locked.
    pub(crate) fn claim_entries(&self, space: &Space, nr: BlockNr, table: &mut Table, i: u32) {
        let Kind::Mapped(pfn) = table.get(i).kind() else {
            return;
        };
        let head = self.head_of(pfn);
        let pages = order_pages(order_of(self.meta(head)));
        let place = i.wrapping_sub(pfn.0 - head.0);
        let at = |j: u32| place.wrapping_add(j);
        let ours = |table: &Table, j: u32| table.get(at(j)).kind() == Kind::Mapped(head.add(j));
        let n = (0..pages).filter(|&j| ours(table, j)).count() as u32;
        if !self.is_sole(head, n, false) {
            return;
        }
        for j in 0..pages {
            let e = table.get(at(j));
            if ours(table, j) && e.shared() {
                table.set(at(j), e.guard(false));
            }
        }
        let page = nr.start().add(u64::from(i));
        self.rmap_settle(head, space.id, first_page(page, pfn, head));
    }
}

/// The part of `first..end` around `i` that may become writable with it: the others of which no
/// write may go unheard stay protected.
pub(crate) fn unmarked_around(table: &Table, i: u32, first: u32, end: u32) -> (u32, u32) {
    let marked = |k: &u32| table.get(*k).marks().any();
    let low = (first..i).rev().find(marked).map_or(first, |k| k + 1);
    let high = (i + 1..end).find(marked).unwrap_or(end);
    (low, high)
}
