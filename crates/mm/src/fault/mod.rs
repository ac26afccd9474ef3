//! Page faults.
//!
//! A fault looks the VMA up, locks the block and decides. What needs no memory (a page that
//! is inactive, a zero page to be shown) is done at once. What needs memory lets go of the
//! lock first: estimate, drop, allocate, lock again, re-validate, and start over if the
//! world has changed (R53). A fault handler calls with [`FaultMode::NoWait`] and hands what
//! comes back as [`FaultError::Busy`] or [`FaultError::NeedReclaim`] to a worker, who calls
//! with [`FaultMode::MayWait`].

mod copy;
mod fresh;
pub(crate) mod opening;
mod readahead;
mod swapin;

use crate::beyond::Beyond;
use crate::charge::{Charge, OverLimit};
use crate::engine::folio::{AllocError, order_of};
use crate::engine::lru::Which;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::engine::step::{Access, FaultMode, Served, Step};
use crate::env::Env;
use crate::mm::Mm;
use crate::order;
use crate::platform::{PlatformError, Stop};
use crate::reclaim::oom::OomReport;
use crate::stat::Item;
use crate::store::StoreError;
use crate::table::block::{BlockState, Table, around};
use crate::table::entry::{Entry, Kind};
use crate::table::marks::Marks;
use crate::table::vma::Vma;
use crate::units::{BLOCK_PAGES, PageRun, Pfn, SpaceId, Vpn, order_pages};
use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

/// Times a fault starts over before it gives up as busy.
const RETRIES: u32 = 1000;

/// How a fault ended without a page.
#[derive(Clone, Debug)]
pub enum FaultError {
    /// Nothing is mapped there: the program gets SIGSEGV.
    NoMapping,
    /// The mapping does not allow the access: SIGSEGV.
    Access,
    /// Somebody works on the page (`NoWait` only).
    Busy,
    /// The program waits for missing pages here (userfaultfd) and this one is missing: tell it.
    ToProgram,
    /// The program has protected the page against writes (userfaultfd) and this is one: tell it.
    WriteProtected,
    /// The limit is reached and nothing may be reclaimed here (`NoWait` only).
    NeedReclaim,
    /// The limit is reached and nothing can be reclaimed.
    Oom(Box<OomReport>),
    /// The page is in the store and cannot be read back.
    Store(StoreError),
    /// The program has moved memory that is away by a call that nobody saw: its bytes cannot
    /// follow.
    Moved,
    /// The page shares a frame that has failed, and cannot be copied from it (the kernel's
    /// VM_FAULT_HWPOISON).
    Poisoned(Pfn),
    /// The system refused.
    Platform(PlatformError),
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultError::NoMapping => f.write_str("nothing is mapped there"),
            FaultError::Access => f.write_str("the mapping does not allow the access"),
            FaultError::ToProgram => f.write_str("the program itself serves missing pages there"),
            FaultError::WriteProtected => {
                f.write_str("the program itself has protected the page against writes")
            }
            FaultError::Busy => f.write_str("the page is being moved"),
            FaultError::NeedReclaim => f.write_str("the limit is reached"),
            FaultError::Oom(report) => write!(f, "{report}"),
            FaultError::Moved => {
                f.write_str("the program has moved it here by a system call that was not seen")
            }
            FaultError::Store(e) => write!(f, "a swapped page cannot be read back: {e}"),
            FaultError::Poisoned(p) => write!(f, "frame {p} has failed and cannot be copied"),
            FaultError::Platform(e) => write!(f, "the system refused: {e}"),
        }
    }
}

impl core::error::Error for FaultError {}

/// A fault that is being served.
#[derive(Clone, Copy)]
pub(crate) struct Fault<'a> {
    pub space: &'a Space,
    /// The block of the page.
    pub block: &'a BlockRef,
    pub page: Vpn,
    pub access: Access,
    pub mode: FaultMode,
}

impl<E: Env> Mm<E> {
    /// Serves a fault of the program on `page`; `write` says that it wanted to write.
    ///
    /// No lock may be held. Postcondition of `Ok`: the access may be tried again.
    pub fn fault(
        &self,
        space: SpaceId,
        page: Vpn,
        write: bool,
        mode: FaultMode,
    ) -> Result<Served, FaultError> {
        let access = match write {
            true => Access::Write,
            false => Access::Read,
        };
        self.fault_as(space, page, access, mode)
    }

    /// The same for any access.
    pub(crate) fn fault_as(
        &self,
        space: SpaceId,
        page: Vpn,
        access: Access,
        mode: FaultMode,
    ) -> Result<Served, FaultError> {
        let space = self
            .space(space)
            .map_err(|_: MapError| FaultError::NoMapping)?;
        if !space.contains(page, 1) {
            return Err(FaultError::NoMapping);
        }
        let block = space.block(self, page.block());
        let f = Fault {
            space: &space,
            block: &block,
            page,
            access,
            mode,
        };
        let mut throttled = false;
        for _ in 0..RETRIES {
            let step = self.fault_step(f)?;
            let grows = matches!(step, Step::Fresh(..) | Step::SwapIn(..) | Step::Copy(..));
            if grows && !throttled && self.is_far_above_high() {
                if mode == FaultMode::NoWait {
                    return Err(FaultError::NeedReclaim);
                }
                self.reclaim_high();
                throttled = true;
                continue;
            }
            let majfault = matches!(step, Step::SwapIn(..));
            let served = match step {
                Step::Done(served) => Some(served),
                Step::Again => None,
                Step::Break => {
                    self.end_sharing(f)?;
                    None
                }
                Step::Over(_) if mode == FaultMode::NoWait => return Err(FaultError::NeedReclaim),
                Step::Over(over) => {
                    self.make_room(AllocError::Charge(over))
                        .map_err(FaultError::Oom)?;
                    None
                }
                Step::Wait(_) if mode == FaultMode::NoWait => return Err(FaultError::Busy),
                Step::Wait(ticket) => {
                    block.wait(self, ticket);
                    None
                }
                Step::Fresh(vma, seq) => self.fault_fresh(f, &vma, seq)?,
                Step::Copy(vma, seq) => self.fault_copy(f, &vma, seq)?,
                Step::SwapIn(vma, seq) => self.swap_in(f, &vma, seq)?,
            };
            if let Some(served) = served {
                self.stats().add(Item::Pgfault, 1);
                self.stats().add(Item::Pgmajfault, u64::from(majfault));
                return Ok(served);
            }
        }
        Err(FaultError::Busy)
    }

    /// A write to a huge page that others share: it is taken apart, or as in Linux the writer's
    /// own as it is, if nobody else has it any more.
    fn end_sharing(&self, f: Fault<'_>) -> Result<(), FaultError> {
        if !self.charge().is_alone() {
            E::Sharing::break_shared(self, f.space, f.block, f.page.block());
        } else if f.mode == FaultMode::NoWait {
            return Err(FaultError::Busy);
        } else {
            self.unshare_all();
        }
        Ok(())
    }

    /// A fault in a VMA makes pages that are its own, or the huge page of zeros.
    fn note_touch(&self, f: Fault<'_>, vma: &Vma) {
        let zeros = || order::huge_zero(&self.tunables(), vma, f.page).is_some();
        if !vma.touched && (f.access != Access::Read || zeros()) {
            f.space.touch(self, f.page);
        }
    }

    /// What can be done with the block locked once.
    fn fault_step(&self, f: Fault<'_>) -> Result<Step, FaultError> {
        let Fault {
            space,
            block,
            page,
            access,
            ..
        } = f;
        let (vma, seq) = space.vma(self, page);
        let vma = vma.ok_or(FaultError::NoMapping)?;
        let write = access == Access::Write;
        let readable = vma.prot.read || vma.prot.exec;
        if !(if write { vma.prot.write } else { readable }) {
            return Err(FaultError::Access);
        }
        self.note_touch(f, &vma);
        let mut state = block.lock(self);
        if space.changed(seq) {
            return Ok(Step::Again);
        }
        let i = page.index();
        let e = state.entry(i);
        if write && e.marks().uffd_wp && !e.is_busy() {
            return Err(FaultError::WriteProtected);
        }
        match &mut *state {
            BlockState::Busy => return Ok(Step::Wait(block.ticket())),
            BlockState::Huge(h) if h.mapped() => {
                return E::Sharing::fault_huge(self, space, page, access, h)
                    .map_err(FaultError::Platform);
            }
            BlockState::Huge(h) => {
                self.show_huge(space, page.block(), h)
                    .map_err(FaultError::Platform)?;
                self.stats().add(Item::Pgactivate, BLOCK_PAGES as u64);
                self.lru_move(h.pfn, Which::Active);
                self.forget_refusal(h.pfn, write);
                return Ok(Step::Done(Served::Mapped(BLOCK_PAGES)));
            }
            BlockState::Empty | BlockState::HugeSwapped(_) | BlockState::Table(_) => {}
        }
        match state.entry(i).kind() {
            Kind::Mapped(_) => {
                let Some(table) = state.table() else {
                    return Ok(Step::Again);
                };
                E::Sharing::fault_present(self, space, (&vma, seq), page, access, table)
                    .map_err(FaultError::Platform)
            }
            Kind::Busy => Ok(Step::Wait(block.ticket())),
            Kind::Swapped(_) => Ok(Step::SwapIn(vma, seq)),
            // Somebody else has just opened it.
            Kind::Open => Ok(Step::Done(Served::Spurious)),
            Kind::Inactive(pfn) => {
                let Some(table) = state.table() else {
                    return Ok(Step::Again);
                };
                let n = self
                    .take_back(space, table, page, pfn)
                    .map_err(FaultError::Platform)?;
                self.forget_refusal(self.head_of(pfn), write);
                Ok(Step::Done(Served::Mapped(n)))
            }
            Kind::None if vma.uffd_missing => Err(FaultError::ToProgram),
            Kind::None | Kind::Zero { .. } if access != Access::Read || space.forbids_zero() => {
                Ok(Step::Fresh(vma, seq))
            }
            kind => self.read_nothing(f, &vma, &mut state, kind == Kind::None),
        }
    }

    /// A read of a hole (`fresh`) or of a zero entry: zeros are shown around the page, or holes are
    /// left to the system. Block locked.
    fn read_nothing(
        &self,
        f: Fault<'_>,
        vma: &Vma,
        state: &mut BlockState,
        fresh: bool,
    ) -> Result<Step, FaultError> {
        let Fault { space, page, .. } = f;
        let t = &self.tunables();
        if fresh && let Some(n) = self.try_open(f, state, vma, t) {
            return Ok(Step::Done(Served::Mapped(n)));
        }
        // It costs an entry, and what tables took is charged afterwards.
        let (usage, max) = (self.charge().usage(), self.charge().max());
        if fresh && usage > max {
            let asked = 1;
            return Ok(Step::Over(OverLimit { asked, max, usage }));
        }
        let empty = matches!(state, BlockState::Empty);
        let whole = order::huge_zero(t, vma, page).filter(|_| empty);
        let Some(table) = state.table() else {
            return Ok(Step::Again);
        };
        let wide = !fresh || t.beyond(Beyond::ReadAround);
        let mut run = match whole {
            Some(w) => PageRun::new(space.id, w.start, BLOCK_PAGES),
            None => zero_window(space, vma, table, page, wide, fresh),
        };
        let mut shown = self.show_zeros(space, vma, table, run);
        if shown.is_err_and(|e| e.why == Stop::Gone) && run.pages > 1 {
            // The place of another page is not ours any more.
            run = PageRun::new(space.id, page, 1);
            shown = self.show_zeros(space, vma, table, run);
        }
        shown.map_err(FaultError::Platform)?;
        if fresh {
            (f.block.huge_zero).store(run.pages == BLOCK_PAGES, Relaxed);
        }
        Ok(Step::Done(Served::Mapped(run.pages)))
    }

    /// Maps the zero page over a run of holes and unmapped zero entries. A page that the
    /// program has written in the moment before its protection is there already, with bytes
    /// that nobody has charged: it becomes a folio of its own. Block locked.
    fn show_zeros(
        &self,
        space: &Space,
        vma: &Vma,
        table: &mut Table,
        run: PageRun,
    ) -> Result<(), PlatformError> {
        let mut at = 0;
        while at < run.pages {
            let (shown, stop) = self.show_zero_page(run.tail(at));
            for k in at..at + shown {
                let k = run.start.index() + k;
                let old = table.get(k);
                let dropped = matches!(old.kind(), Kind::Zero { dropped: true, .. });
                let kind = Kind::Zero {
                    mapped: true,
                    dropped,
                };
                let marks = match old.is_none() {
                    true => Marks {
                        clean: !vma.soft_dirty,
                        uffd_wp: false,
                    },
                    false => old.marks(),
                };
                table.set(k, Entry::new(kind, vma.prot, vma.locked).marked(marks));
            }
            at += shown;
            match stop {
                Some(e) if e.why == Stop::Exists => {
                    self.adopt_written(space, vma, table, run.start.add(at as u64))?;
                    at += 1;
                }
                Some(e) => return Err(e),
                None => {}
            }
        }
        Ok(())
    }

    /// Books a page that is in the program already. Past the limit if it must be: the memory
    /// is used, and reclaim hears of it with the next charge.
    pub(crate) fn adopt_written(
        &self,
        space: &Space,
        vma: &Vma,
        table: &mut Table,
        page: Vpn,
    ) -> Result<(), PlatformError> {
        let one = PageRun::new(space.id, page, 1);
        self.charge().force_charge(1);
        let Ok(pfn) = self.alloc_charged(0, 1, (space.id, page)) else {
            self.charge().uncharge(1);
            return Err(PlatformError {
                at: 0,
                why: Stop::NoMemory,
            });
        };
        if let Kind::Zero { dropped: true, .. } = table.get(page.index()).kind() {
            self.stats().sub(Item::NrZero, 1);
            self.stats().add(Item::SwpinZero, 1);
        }
        let entry = Entry::new(Kind::Mapped(pfn), vma.prot, vma.locked);
        table.set(page.index(), entry);
        self.stats().add(Item::NrAnon, 1);
        self.lru_add(pfn, Which::Active);
        self.unguard(one)
    }

    /// Maps the inactive pages around `page` that belong to the same folio. Block locked.
    fn take_back(
        &self,
        space: &Space,
        table: &mut Table,
        page: Vpn,
        pfn: Pfn,
    ) -> Result<u32, PlatformError> {
        let i = page.index();
        let head = self.head_of(pfn);
        let prot = table.get(i).prot();
        let joins = |k: u32, p: u32| {
            let e = table.get(k);
            e.kind() == Kind::Inactive(Pfn(p)) && e.prot() == prot
        };
        let end = head.0 + order_pages(order_of(self.meta(head)));
        let (mut first, mut last) = (i, i + 1);
        while first > 0 && pfn.0 - (i - first) > head.0 && joins(first - 1, pfn.0 - (i - first) - 1)
        {
            first -= 1;
        }
        while last < BLOCK_PAGES && pfn.0 + (last - i) < end && joins(last, pfn.0 + (last - i)) {
            last += 1;
        }
        let (mut n, frame) = (last - first, Pfn(pfn.0 - (i - first)));
        match self.show_entries(space, page.block(), table, (first, n), frame) {
            // The place of another page is not ours any more.
            Err(e) if e.why == Stop::Gone && n > 1 => {
                n = 1;
                self.show_entries(space, page.block(), table, (i, n), pfn)?;
            }
            shown => shown?,
        }
        self.stats().add(Item::Pgactivate, u64::from(n));
        self.lru_move(head, Which::Active);
        Ok(n)
    }
}

/// The pages around `page` for which the zero page is mapped in one go: a 64 KiB window of
/// the VMA, of holes for a first touch, of zero entries for pages that were dropped.
fn zero_window(
    space: &Space,
    vma: &Vma,
    table: &Table,
    page: Vpn,
    wide: bool,
    fresh: bool,
) -> PageRun {
    if !wide {
        return PageRun::new(space.id, page, 1);
    }
    let block = page.block().start();
    let joins = |k: u32| {
        vma.contains(block.add(u64::from(k)))
            && match table.get(k).kind() {
                Kind::None => fresh,
                Kind::Zero { mapped, .. } => !mapped && !fresh,
                _ => false,
            }
    };
    let base = page.index() & !15;
    let run = around(page.index(), base..base + 16, joins);
    PageRun::new(space.id, block.add(u64::from(run.start)), run.len() as u32)
}
