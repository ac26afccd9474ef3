//! Collapse: small folios of a block become one huge page (khugepaged's work, and
//! MADV_COLLAPSE's: see `asked`).
//!
//! A block is worth it while not too many of its entries are holes or zeros: more than
//! `max_ptes_none` of them is what the shrinker takes a huge page apart for, so what it has
//! taken apart stays apart (R140). Pages in the store are read back first, if there are few.
//! Then the pages are unmapped, copied into the new folio and given back: nobody can write to
//! what is copied, and if anything fails, everything is mapped as it was. Pages that others hold
//! too, or whose folio is held, are not unmapped but protected; the others keep theirs.

use crate::charge::Charge;
use crate::engine::busy::Busy;
use crate::engine::folio::{AllocError, order_of};
use crate::engine::lru::Which;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, MapError, Space};
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::fault::FaultError;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::order::enabled;
use crate::platform::Prot;
use crate::sizes::HUGE_PAGES;
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap, Presence, Table};
use crate::table::entry::Kind;
use crate::table::marks::Marks;
use crate::table::vma::{ThpAdvice, Vma};
use crate::tunables::Tunables;
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, BlockNr, PageMask, PageRun, Pfn, SpaceId, Vpn};
use alloc::vec::Vec;
use core::fmt;

/// Times that a block is looked at anew because pages of it have changed meanwhile.
const RETRIES: u32 = 8;

/// Why a block was not collapsed; nothing has changed but what is resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollapseError {
    /// No mapping covers the whole block, or none that may have huge pages.
    Vma,
    /// It is one huge page already, or one in the store.
    Huge,
    /// Nothing of it is mapped: it is not in use.
    Cold,
    /// More holes and zero pages than `max_ptes_none`.
    ExceedNone(u32),
    /// More pages in the store than `max_ptes_swap`.
    ExceedSwap(u32),
    /// More pages that others hold too, since a fork, than `max_ptes_shared`; or any, where the
    /// kernel copies on write.
    ExceedShared(u32),
    /// Pages that are locked, lazily freed, pinned, bad or being moved.
    Page(Vpn),
    /// A page that the program has protected against writes.
    Protected(Vpn),
    /// No huge page was to be had.
    NoMemory,
    /// The limit refused it.
    Limit,
}

impl fmt::Display for CollapseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollapseError::Vma => f.write_str("no mapping of the whole block allows huge pages"),
            CollapseError::Huge => f.write_str("the block is a huge page"),
            CollapseError::Cold => f.write_str("nothing of the block is in use"),
            CollapseError::ExceedNone(n) => write!(f, "{n} pages of the block are holes or zeros"),
            CollapseError::ExceedSwap(n) => write!(f, "{n} pages of the block are in the store"),
            CollapseError::ExceedShared(n) => write!(f, "{n} pages of the block are shared"),
            CollapseError::Page(p) => write!(f, "{p} cannot be moved"),
            CollapseError::Protected(p) => write!(f, "the program has protected {p}"),
            CollapseError::NoMemory => f.write_str("there is no huge page"),
            CollapseError::Limit => f.write_str("the limit refuses the huge page"),
        }
    }
}

impl core::error::Error for CollapseError {}

/// What is worth a huge page.
#[derive(Clone, Copy)]
pub(super) struct Worth {
    /// Most holes and zero pages.
    pub none: u32,
    /// Most pages to read back from the store.
    pub swap: u32,
    /// Most pages that others hold too.
    pub shared: u32,
    /// The huge page must fit below `memory.high`, with the small ones it replaces.
    pub fits: bool,
    /// Whether to reclaim for it.
    pub defrag: bool,
    /// The program itself has asked for it: whatever is `enabled`, and also of what is cold.
    pub asked: bool,
}

impl Worth {
    /// What the knobs say, for who waits.
    pub fn of(t: &Tunables) -> Worth {
        Worth {
            none: u32::from(t.max_ptes_none),
            swap: u32::from(t.max_ptes_swap),
            shared: u32::from(t.max_ptes_shared),
            fits: false,
            defrag: false,
            asked: false,
        }
    }
}

/// What a look at a block has found: entries in use, in the store; rights, and whether no page
/// is soft-dirty.
struct Found {
    mapped: PageMask,
    swapped: PageMask,
    prot: Prot,
    clean: bool,
}

impl<E: Env> Mm<E> {
    /// Makes one huge page of the block that holds `page`. Waits and reclaims.
    ///
    /// # Errors
    /// [`CollapseError`]; every page is as it was, but for those that were read back.
    pub fn collapse(&self, id: SpaceId, page: Vpn) -> Result<(), CollapseError> {
        self.collapse_if(id, page, &Worth::of(&self.tunables()))
    }

    /// As [`Mm::collapse`], by the caller's measure.
    pub(super) fn collapse_if(
        &self,
        id: SpaceId,
        page: Vpn,
        worth: &Worth,
    ) -> Result<(), CollapseError> {
        let space = self.space(id).map_err(|_: MapError| CollapseError::Vma)?;
        let nr = page.block();
        let block = space.block(self, nr);
        for _ in 0..RETRIES {
            let t = self.tunables();
            let (vma, seq) = self.vma_of_block(&space, nr, &t, worth.asked)?;
            let found = {
                let mut state = self.lock_settled(&block, 0, BLOCK_PAGES);
                self.judge(&space, worth, &vma, nr, &mut state)?
            };
            for k in found.swapped.pages() {
                let page = nr.start().add(u64::from(k));
                let back = self.fault(id, page, false, FaultMode::MayWait);
                back.map_err(|why| match why {
                    FaultError::Oom(_) => CollapseError::Limit,
                    FaultError::Access | FaultError::NoMapping => CollapseError::Vma,
                    _ => CollapseError::NoMemory,
                })?;
            }
            let new = match self.folio_for_collapse(worth, (id, nr.start())) {
                Ok(pfn) => pfn,
                Err(why) => {
                    self.stats().add(Item::ThpCollapseAllocFailed, 1);
                    return Err(why);
                }
            };
            let done = self.collapse_into(&space, &block, nr, worth, (&vma, seq), new);
            match done {
                Some(Ok(())) => {
                    self.stats().add(Item::ThpCollapseAlloc, 1);
                    return Ok(());
                }
                Some(Err(why)) => {
                    self.free_unused(new);
                    return Err(why);
                }
                None => self.free_unused(new),
            }
        }
        Err(CollapseError::Page(nr.start()))
    }

    /// The huge page. The small ones stay charged until it has their bytes.
    fn folio_for_collapse(
        &self,
        worth: &Worth,
        owner: (SpaceId, Vpn),
    ) -> Result<Pfn, CollapseError> {
        let pages = u64::from(BLOCK_PAGES);
        let room = || {
            let usage = self.charge().usage().saturating_add(pages);
            usage <= self.charge().high()
        };
        if worth.fits && !room() && !(worth.defrag && self.reclaim(pages) > 0 && room()) {
            return Err(CollapseError::Limit);
        }
        let got = match self.alloc_folio(BLOCK_ORDER, 1, owner) {
            Err(failed) if worth.defrag => {
                if let AllocError::Charge(_) = failed {
                    self.reclaim(pages);
                }
                self.alloc_folio(BLOCK_ORDER, 1, owner)
            }
            got => got,
        };
        got.map_err(|failed| match failed {
            AllocError::Charge(_) => CollapseError::Limit,
            AllocError::NoFrame { .. } => CollapseError::NoMemory,
        })
    }

    fn vma_of_block(
        &self,
        space: &Space,
        nr: BlockNr,
        t: &Tunables,
        asked: bool,
    ) -> Result<(Vma, u64), CollapseError> {
        let (vma, seq) = space.vma(self, nr.start());
        let last = nr.start().add(u64::from(BLOCK_PAGES - 1));
        let may = |v: &Vma| match asked {
            true => HUGE_PAGES && v.advice != ThpAdvice::NoHuge,
            false => enabled(t, v, BLOCK_ORDER),
        };
        let whole = vma.filter(|v| v.contains(last) && may(v));
        whole.map(|v| (v, seq)).ok_or(CollapseError::Vma)
    }

    /// Whether a block is worth it. Block locked, nothing in it busy.
    fn judge(
        &self,
        space: &Space,
        worth: &Worth,
        vma: &Vma,
        nr: BlockNr,
        state: &mut BlockState,
    ) -> Result<Found, CollapseError> {
        if worth.asked && matches!(state, BlockState::HugeSwapped(_)) {
            // From here on it is read back page by page.
            state.table();
        }
        let table = match state {
            BlockState::Table(table) => table,
            BlockState::Huge(_) | BlockState::HugeSwapped(_) => return Err(CollapseError::Huge),
            BlockState::Empty | BlockState::Busy => return Err(CollapseError::Cold),
        };
        self.claim_shared(space, nr, table);
        let (mut none, mut shared) = (0, 0);
        let mut found = Found {
            mapped: PageMask::EMPTY,
            swapped: PageMask::EMPTY,
            prot: vma.prot,
            clean: !vma.soft_dirty,
        };
        for k in 0..BLOCK_PAGES {
            let e = table.get(k);
            let stuck = CollapseError::Page(nr.start().add(u64::from(k)));
            if e.locked() || e.lazy() && !worth.asked {
                return Err(stuck);
            }
            if e.marks().uffd_wp {
                let page = nr.start().add(u64::from(k));
                return Err(CollapseError::Protected(page));
            }
            found.clean &= e.is_none() || e.marks().clean;
            match e.kind() {
                Kind::None | Kind::Zero { .. } => none += 1,
                Kind::Swapped(_) => found.swapped.set(k),
                Kind::Mapped(p) if E::Sharing::is_pinned(self, p) => {
                    return Err(stuck);
                }
                Kind::Mapped(_) => found.mapped.set(k),
                Kind::Inactive(_) => {}
                Kind::Busy | Kind::Open => return Err(stuck),
            }
            shared += u32::from(e.shared());
            if e.frame().is_some_and(|p| self.zone_of(p).has_bad(p, 1)) {
                return Err(stuck);
            }
        }
        let swapped = found.swapped.count();
        let may_share = E::Sharing::most_shared(worth.shared);
        // A hole that the program serves itself must not be filled.
        if none > worth.none || none > 0 && vma.uffd_missing {
            Err(CollapseError::ExceedNone(none))
        } else if swapped > worth.swap {
            Err(CollapseError::ExceedSwap(swapped))
        } else if shared > may_share {
            Err(CollapseError::ExceedShared(shared))
        } else if found.mapped == PageMask::EMPTY && !worth.asked {
            Err(CollapseError::Cold)
        } else {
            Ok(found)
        }
    }

    /// Moves the pages of a block into a new folio. `None`: the world has changed, start over.
    fn collapse_into(
        &self,
        space: &Space,
        block: &BlockRef,
        nr: BlockNr,
        worth: &Worth,
        (vma, seq): (&Vma, u64),
        new: Pfn,
    ) -> Option<Result<(), CollapseError>> {
        let mut state = self.lock_settled(block, 0, BLOCK_PAGES);
        if space.changed(seq) {
            return None;
        }
        let found = match self.judge(space, worth, vma, nr, &mut state) {
            Ok(found) if found.swapped == PageMask::EMPTY => found,
            Ok(_) => return None,
            Err(why) => return Some(Err(why)),
        };
        let BlockState::Table(table) = &mut *state else {
            return None;
        };
        self.unmap_entries(space, nr, table, 0, BLOCK_PAGES);
        let held = |k: u32, table: &Table| E::Sharing::copies_in_place(self, table, k);
        self.guard_table(space.id, nr, table, held);
        if let Some(k) = self.stuck(table) {
            self.map_again(space, nr, &mut state, 0, &found.mapped);
            return Some(Err(CollapseError::Page(nr.start().add(u64::from(k)))));
        }
        let run = PageRun::new(space.id, nr.start(), BLOCK_PAGES);
        E::Sharing::hide_source(self, run, table);
        let from: Vec<_> = (0..BLOCK_PAGES).map(|k| table.get(k).frame()).collect();
        let (busy, old) = Busy::block(block, state);
        let copied = self.gather(new, &from).is_ok();
        self.machine().preempt(Site::Relock);
        if !copied {
            busy.end_by(self, |state| {
                *state = old;
                self.map_again(space, nr, state, 0, &found.mapped);
            });
            return Some(Err(CollapseError::NoMemory));
        }
        E::Sharing::drop_source(self, run);
        self.stats().add(Item::NrInactive, u64::from(BLOCK_PAGES));
        let mut h = HugeMap {
            pfn: new,
            has: Presence::Inactive,
            prot: found.prot,
            locked: false,
            marks: Marks {
                clean: found.clean,
                uffd_wp: false,
            },
        };
        busy.end_by(self, |state| {
            self.map_huge_again(space, nr, &mut h);
            *state = BlockState::Huge(h);
            self.lru_add(new, Which::Active);
            self.queue_new(new);
            // The old pages are nobody's now.
            if let BlockState::Table(mut old) = old {
                self.drop_entries(run, &mut old);
            }
        });
        Some(Ok(()))
    }

    /// The first page that could neither be unmapped nor protected, or whose folio somebody else
    /// holds for himself.
    fn stuck(&self, table: &Table) -> Option<u32> {
        let mut k = 0;
        while k < BLOCK_PAGES {
            let e = table.get(k);
            let Some(p) = e.frame() else {
                k += 1;
                continue;
            };
            if e.guarded() && E::Sharing::copies_in_place(self, table, k) {
                k += 1;
                continue;
            }
            let head = self.head_of(p);
            let pages = 1 << order_of(self.meta(head));
            let of_folio = |i: &u32| {
                let frame = table.get(*i).frame();
                frame.is_some_and(|f| (head.0..head.0 + pages).contains(&f.0))
            };
            let entries = (0..BLOCK_PAGES).filter(of_folio).count() as u32;
            let mapped = matches!(e.kind(), Kind::Mapped(_));
            if mapped || self.meta(head).refs() != entries {
                return Some(k);
            }
            k += 1;
            // The rest of the folio has the same answer, if it is unmapped.
            while k < BLOCK_PAGES
                && matches!(table.get(k).kind(), Kind::Inactive(f) if self.head_of(f) == head)
            {
                k += 1;
            }
        }
        None
    }
}
