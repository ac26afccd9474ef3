//! Splitting a folio into smaller ones where it is: no byte moves, no frame is needed.
//!
//! The parts are as large as they can be: naturally aligned, at most of the order that was
//! asked for, each wholly in use or wholly not. What is not in use is freed. Two ways, as the
//! folio is found: one on the LRU list leaves its parts in its place there, under one lock; of
//! one that its caller has isolated the parts go to the caller's list, each with a reference
//! for that, and the LRU lock is not taken.
//!
//! The metadata change while the folio is *frozen*: it has no reference left to share, so that
//! nobody can get hold of a part in the making. Whoever holds a reference beyond those of the
//! entries (a pin, an isolation by somebody else) makes the split fail, and all is as before.

use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine::folio::order_of;
use crate::engine::isolated::{Isolated, IsolatedFolio};
use crate::engine::space::{MapError, Space};
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::platform::Platform;
use crate::stat::{Item, SizeItem};
use crate::table::block::{BlockState, Table};
use crate::table::entry::Kind;
use crate::units::{
    BLOCK_ORDER, BLOCK_PAGES, BlockNr, PageMask, PageRun, Pfn, SpaceId, Vpn, order_pages,
};
use core::fmt;
use core::ops::BitOr;

/// Times that a folio is tried to be frozen while somebody has a look at it.
const FREEZE_TRIES: u32 = 256;

/// How a folio is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SplitFlags(u8);

impl SplitFlags {
    /// Pages stay what they are.
    pub const NONE: SplitFlags = SplitFlags(0);
    /// Pages that hold only zeros become zero entries. Only of pages that stay where they are
    /// and become single ones: nothing else looks at the bytes.
    pub const DROP_ZERO: SplitFlags = SplitFlags(1);
    /// The caller has isolated the folio and takes the parts on its list.
    pub const ISOLATED: SplitFlags = SplitFlags(2);
    /// The caller holds a reference, which the split takes over.
    pub(crate) const HELD: SplitFlags = SplitFlags(4);

    /// Whether all flags of `f` are in this set.
    pub const fn has(self, f: SplitFlags) -> bool {
        self.0 & f.0 == f.0
    }
}

impl BitOr for SplitFlags {
    type Output = SplitFlags;
    fn bitor(self, other: SplitFlags) -> SplitFlags {
        SplitFlags(self.0 | other.0)
    }
}

/// Why a folio was not split; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitError {
    /// No folio of several pages is there.
    NoFolio,
    /// It cannot be split to this order: not smaller than its own, or 1.
    Order(u8),
    /// It is on an LRU list, although its parts were to go to the caller's.
    Listed,
    /// Somebody is moving pages of it.
    Busy,
    /// Others hold its pages too, since a fork.
    Shared,
    /// Pages of it cannot be taken from the program now.
    Pinned,
    /// Somebody holds a reference to it.
    Referenced,
    /// A frame of it is bad.
    Bad,
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SplitError::NoFolio => f.write_str("no large folio is there"),
            SplitError::Order(o) => write!(f, "a folio cannot be split to order {o}"),
            SplitError::Listed => f.write_str("the folio is not isolated"),
            SplitError::Busy => f.write_str("pages of the folio are being moved"),
            SplitError::Shared => f.write_str("the folio is shared since a fork"),
            SplitError::Pinned => f.write_str("pages of the folio are pinned"),
            SplitError::Referenced => f.write_str("somebody holds the folio"),
            SplitError::Bad => f.write_str("a frame of the folio is bad"),
        }
    }
}

impl core::error::Error for SplitError {}

/// What a split has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Split {
    /// Folios there are now of the one.
    pub parts: u32,
    /// Frames that were freed.
    pub freed: u32,
    /// Mappings of zero-filled pages that were dropped.
    pub dropped: u32,
}

/// The largest order that parts of a folio can have.
pub(crate) fn next_lower(order: u8) -> u8 {
    match order {
        // Order 1 does not exist.
        0..=2 => 0,
        _ => order - 1,
    }
}

/// The order of the part that begins at page `i`: as large as its alignment and `cap` allow,
/// all of its pages alive, or none. Living folios of order 1 do not exist.
fn part_at(live: &PageMask, i: u32, cap: u8) -> u8 {
    let alive = live.get(i);
    let fits = i.trailing_zeros().min(cap as u32) as u8;
    (1..=fits)
        .rev()
        .filter(|o| *o > 1 || !alive)
        .find(|o| (i..i + order_pages(*o)).all(|k| live.get(k) == alive))
        .unwrap_or(0)
}

/// The pages of a folio that are in use in its block, and those of them that are mapped, by index
/// in the folio, whose first page has index `first` in the block.
pub(crate) fn live_of(
    state: &BlockState,
    head: Pfn,
    first: u32,
    pages: u32,
) -> Result<(PageMask, PageMask), SplitError> {
    let (mut live, mut mapped) = (PageMask::EMPTY, PageMask::EMPTY);
    for k in 0..pages {
        let e = state.entry(first + k);
        if e.is_busy() {
            return Err(SplitError::Busy);
        }
        if e.frame() != Some(head.add(k)) {
            continue;
        }
        if e.shared() {
            return Err(SplitError::Shared);
        }
        live.set(k);
        if matches!(e.kind(), Kind::Mapped(_)) {
            mapped.set(k);
        }
    }
    Ok((live, mapped))
}

/// A folio without a reference, so that nobody can get one: its holder's alone. It ends by
/// [`Engine::unfreeze_folio`], or split or freed.
#[derive(Debug)]
#[must_use = "a frozen folio is lost if it is forgotten"]
pub(crate) struct FrozenFolio(Pfn);

impl FrozenFolio {
    /// Its first frame.
    pub fn pfn(&self) -> Pfn {
        self.0
    }
}

impl<E: Env> Engine<E> {
    /// Takes all references away from a folio that has exactly `refs`. `None` if somebody holds
    /// it for longer than a look.
    pub(crate) fn freeze_folio(&self, head: Pfn, refs: u32) -> Option<FrozenFolio> {
        let meta = self.meta(head);
        let frozen = (0..FREEZE_TRIES).any(|_| {
            let frozen = meta.freeze(refs);
            if !frozen {
                self.machine().preempt(Site::Relock);
                core::hint::spin_loop();
            }
            frozen
        });
        frozen.then_some(FrozenFolio(head))
    }

    /// Gives a frozen folio these references: it is as it was before.
    pub(crate) fn unfreeze_folio(&self, folio: FrozenFolio, refs: u32) {
        self.meta(folio.0).unfreeze(refs);
    }

    /// Splits a frozen folio into parts of at most `cap`, of which those of `live` get one
    /// reference for each page. The others are freed; their bytes were disposed of. `list`: the
    /// folio is isolated, and stays on the list with its parts, if only as the caller's own.
    pub(crate) fn split_frozen(
        &self,
        folio: FrozenFolio,
        live: &PageMask,
        cap: u8,
        mut list: Option<&mut Isolated>,
    ) -> Split {
        let head = folio.0;
        self.unqueue(head);
        self.no_longer_partial(head);
        let meta = self.meta(head);
        let order = order_of(meta);
        let cap = cap.min(order);
        let (zone, isolated) = (self.zone_of(head), list.is_some());
        let kept = meta.flags().and(Flags::ACTIVE | Flags::UNEVICTABLE);
        self.release_discarded(head, order, live);
        if order == BLOCK_ORDER
            && let Some((space, page)) = meta.owner()
            && let Some((first, _)) = live.runs(BLOCK_PAGES).next()
        {
            let page = PageRun::new(space, page.add(u64::from(first)), 1);
            self.memory().split(page, head.add(first));
        }
        debug_assert!(!isolated || !meta.has(Flags::LRU), "{head} is on a list");
        // Of what leaves the LRU list the parts take the place.
        let mut lru = (!isolated).then(|| self.folios.lru.lock(self.machine()));
        let place = lru.as_deref_mut().and_then(|l| l.take_out(self, head));
        meta.clear(Flags::ACTIVE | Flags::REJECTED | Flags::UNEVICTABLE);
        let done = zone.split_allocated_into(head, order, |i| part_at(live, i, cap));
        debug_assert!(done.is_ok(), "{done:?}");
        let mut split = Split::default();
        let mut dead = [(Pfn(0), 0); BLOCK_PAGES as usize];
        let mut i = 0;
        while i < order_pages(order) {
            let (p, o) = (head.add(i), part_at(live, i, cap));
            let meta = self.meta(p);
            let pages = order_pages(o);
            split.parts += 1;
            self.count_folio(o);
            if live.get(i) {
                meta.add_refs(pages - 1 + u32::from(isolated));
                meta.set(kept);
                match (&mut lru, &mut list) {
                    (Some(lru), _) => lru.put_in(self, p, place),
                    (_, Some(list)) if i > 0 => list.0.push(IsolatedFolio::new(p)),
                    _ => {}
                }
            } else if !(isolated && i == 0) {
                dead[(split.parts - 1) as usize] = (p, pages);
            }
            i += pages;
        }
        drop(lru);
        split.freed = self.free_parts(&dead[..split.parts as usize], list);
        if isolated {
            self.isolation_ended(split.freed);
        }
        self.uncount_folio(order);
        self.stats().add_size(order, SizeItem::Split, 1);
        if order == BLOCK_ORDER {
            self.stats().add(Item::ThpSplitPage, 1);
        }
        split
    }

    /// Frees what nobody uses of a folio that was split, single frames under one lock, and
    /// returns its charge (R8, R9). Entries of no pages are skipped. A part that somebody has got
    /// hold of by its number is not freed (R106): of an isolated folio it stays on the list, with
    /// the reference for that; else whoever holds it frees it.
    fn free_parts(&self, parts: &[(Pfn, u32)], mut list: Option<&mut Isolated>) -> u32 {
        let mut single = [Pfn(0); BLOCK_PAGES as usize];
        let (mut singles, mut freed) = (0, 0);
        for &(p, pages) in parts.iter().filter(|part| part.1 > 0) {
            let meta = self.meta(p);
            if !meta.freeze(1) {
                match &mut list {
                    Some(list) => list.0.push(IsolatedFolio::new(p)),
                    None => freed += self.put_charged(p, 1) as u32,
                }
                continue;
            }
            meta.clear_owner();
            self.uncount_folio(pages.ilog2() as u8);
            self.forget_copies(p, pages);
            freed += pages;
            if pages == 1 {
                single[singles] = p;
                singles += 1;
            } else {
                let zone = self.zone_of(p);
                let done = zone.free(self.machine(), p, pages.ilog2() as u8);
                debug_assert!(done.is_ok(), "{done:?}");
            }
        }
        if let Some(first) = single[..singles].first() {
            let done = self
                .zone_of(*first)
                .free_bulk(self.machine(), &single[..singles]);
            debug_assert!(done.is_ok(), "{done:?}");
        }
        self.charge().uncharge(freed as u64);
        freed
    }

    /// Splits the folio `head`, whose entries are in a block that the caller has locked, into
    /// parts of order `to` or smaller. `list` is given with [`SplitFlags::ISOLATED`].
    pub(crate) fn split_in_block(
        &self,
        space: &Space,
        state: &mut BlockState,
        head: Pfn,
        to: u8,
        flags: SplitFlags,
        list: Option<&mut Isolated>,
    ) -> Result<Split, SplitError> {
        let meta = self.meta(head);
        let order = order_of(meta);
        if to >= order || to == 1 {
            return Err(SplitError::Order(to));
        }
        let isolated = flags.has(SplitFlags::ISOLATED);
        if isolated && (meta.has(Flags::LRU) || list.is_none()) {
            return Err(SplitError::Listed);
        }
        let Some((_, page)) = meta.owner().filter(|(id, _)| *id == space.id) else {
            return Err(SplitError::NoFolio);
        };
        let nr = page.block();
        let (first, pages) = (page.index(), order_pages(order));
        if self.zone_of(head).has_bad(head, pages) {
            return Err(SplitError::Bad);
        }
        let (live, mapped) = live_of(state, head, first, pages)?;
        if live == PageMask::EMPTY {
            // All have gone since the caller looked: what is in the block is another folio's.
            return Err(SplitError::NoFolio);
        }
        let refs = match state {
            BlockState::Huge(h) if h.pfn == head => 1,
            _ => live.count(),
        };
        let mut zero = PageMask::EMPTY;
        if flags.has(SplitFlags::DROP_ZERO) && to == 0 && !space.forbids_zero() {
            let found = self.zeros_of(space, nr, state, head, first, &live);
            zero = found.inspect_err(|_| self.map_again(space, nr, state, first, &mapped))?;
        }
        let held = u32::from(isolated) + u32::from(flags.has(SplitFlags::HELD));
        let Some(folio) = self.freeze_folio(head, refs + held) else {
            self.map_again(space, nr, state, first, &mapped);
            return Err(SplitError::Referenced);
        };
        self.release_pages(head, &zero);
        let mut split = self.split_frozen(folio, &live.without(&zero), to, list);
        split.dropped = zero.count();
        self.write_split(state, first, &zero);
        self.map_again(space, nr, state, first, &mapped.without(&zero));
        let dropped = u64::from(split.dropped);
        self.stats().add(Item::ThpSplitUnmap, dropped);
        self.stats().add(Item::NrZero, dropped);
        self.stats().sub(Item::NrInactive, dropped);
        self.stats().add(Item::ThpSplitFree, u64::from(split.freed));
        Ok(split)
    }

    /// Unmaps a folio and finds its pages of zeros; those that must stay are none. On an error
    /// a part of it may be unmapped.
    fn zeros_of(
        &self,
        space: &Space,
        nr: BlockNr,
        state: &mut BlockState,
        head: Pfn,
        first: u32,
        live: &PageMask,
    ) -> Result<PageMask, SplitError> {
        match state {
            BlockState::Huge(h) if h.locked => return Ok(PageMask::EMPTY),
            BlockState::Huge(h) => {
                let done = self.unmap_huge(space, nr, h);
                done.map_err(|_| SplitError::Pinned)?;
            }
            BlockState::Table(table) => {
                for (start, len) in live.runs(BLOCK_PAGES) {
                    self.unmap_entries(space, nr, table, first + start, len);
                }
            }
            _ => return Err(SplitError::NoFolio),
        }
        let mut look = *live;
        for k in live.pages() {
            let e = state.entry(first + k);
            if e.locked() {
                look.clear(k);
            } else if matches!(e.kind(), Kind::Mapped(_)) {
                return Err(SplitError::Pinned);
            }
        }
        Ok(self.zeros_among(head, &look))
    }

    /// Writes the entries of a folio that is split: those of `zero` are zero entries now, and a
    /// huge mapping is a table.
    fn write_split(&self, state: &mut BlockState, first: u32, zero: &PageMask) {
        if let BlockState::Huge(h) = state {
            let mut table = Table::new();
            for k in 0..BLOCK_PAGES {
                table.set(k, BlockState::Huge(*h).entry(k));
            }
            *state = BlockState::Table(table);
        }
        let BlockState::Table(table) = state else {
            return;
        };
        for k in zero.pages() {
            table.set(first + k, table.get(first + k).with(Kind::DROPPED));
        }
    }

    /// Maps pages that were unmapped for a split; those that are mapped are left alone.
    pub(crate) fn map_again(
        &self,
        space: &Space,
        nr: BlockNr,
        state: &mut BlockState,
        first: u32,
        pages: &PageMask,
    ) {
        if let BlockState::Huge(h) = state {
            if pages.get(0) {
                self.map_huge_again(space, nr, h);
            }
            return;
        }
        let BlockState::Table(table) = state else {
            return;
        };
        let mut k = 0;
        while k < BLOCK_PAGES {
            let e = table.get(first + k);
            let Kind::Inactive(p) = e.kind() else {
                k += 1;
                continue;
            };
            let joins = |n: u32| {
                pages.get(k + n) && table.get(first + k + n) == e.with(Kind::Inactive(p.add(n)))
            };
            let Some(len) = (0..).find(|&n| !joins(n)).filter(|&n| n > 0) else {
                k += 1;
                continue;
            };
            // If the machine refuses, they stay inactive: the next touch asks again.
            let _ = self.show_entries(space, nr, table, (first + k, len), p);
            k += len;
        }
    }

    /// Splits the folio that holds a page, into parts of order `to` or smaller: what the kernel
    /// has in `split_huge_pages`.
    ///
    /// # Errors
    /// [`SplitError`]; nothing has changed then.
    pub fn split_page(
        &self,
        id: SpaceId,
        page: Vpn,
        to: u8,
        flags: SplitFlags,
    ) -> Result<Split, SplitError> {
        let space = self.space(id).map_err(|_: MapError| SplitError::NoFolio)?;
        let block = (space.block_if_any(self, page.block())).ok_or(SplitError::NoFolio)?;
        let mut state = self.lock_settled(&block, page.index(), 1);
        let frame = state.entry(page.index()).frame();
        let head = self.head_of(frame.ok_or(SplitError::NoFolio)?);
        self.split_in_block(&space, &mut state, head, to, flags, None)
    }
}
