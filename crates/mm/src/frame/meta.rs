//! What is known about one frame, in 32 bytes.
//!
//! Every field is atomic, so that a look at a frame that somebody else owns gives an old or a
//! new value, never a torn one. Who may write: the zone while a block is free (under its
//! lock), the owner of the folio else; the links of a list under the lock of that list.

use super::scarce::mobility::Mobility;
use crate::atomic::{AtomicU32, AtomicU64};
use crate::units::{Pfn, SpaceId, Vpn};
use core::fmt;
use core::ops::BitOr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// What a frame is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Of nothing yet: the zone never reached it.
    Untouched,
    /// First frame of a block on a free list.
    FreeHead,
    /// A frame inside of a block of any kind, not its first; the block's head is the nearest
    /// head below it whose block reaches it.
    Tail,
    /// First frame of an allocated folio.
    FolioHead,
    /// First frame of a block that the allocator owns but that is on no free list: on a
    /// per-CPU list, or on its way.
    Cached,
    /// First frame of a block on a capture list; the state names the list (R17).
    Captured,
}

impl Kind {
    const fn bits(self) -> u32 {
        (match self {
            Kind::Untouched => 0,
            Kind::FreeHead => 1,
            Kind::Tail => 2,
            Kind::FolioHead => 3,
            Kind::Cached => 4,
            Kind::Captured => 5,
        }) << KIND_SHIFT
    }
    const fn of(state: u32) -> Kind {
        match (state >> KIND_SHIFT) & 7 {
            1 => Kind::FreeHead,
            2 => Kind::Tail,
            3 => Kind::FolioHead,
            4 => Kind::Cached,
            5 => Kind::Captured,
            _ => Kind::Untouched,
        }
    }
}

/// What a frame is the first frame of, and its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    /// A block on a free list.
    Free(u8),
    /// An allocated folio.
    Folio(u8),
    /// A block between lists.
    Cached(u8),
    /// A block on the capture list of this number.
    Captured(u8, usize),
}

impl Head {
    /// The order.
    pub(super) fn order(self) -> u8 {
        match self {
            Head::Free(o) | Head::Folio(o) | Head::Cached(o) | Head::Captured(o, _) => o,
        }
    }
}

const ORDER_MASK: u32 = 0xf;
const KIND_SHIFT: u32 = 4;
const FLAG_SHIFT: u32 = 8;
const MOBILITY_SHIFT: u32 = 16;
const OWNER_SHIFT: u32 = 18;
/// Capture lists that a state can name: their numbers have 14 bits.
pub(super) const CAPTURE_LISTS: usize = 1 << (32 - OWNER_SHIFT);
const NO_FRAME: u32 = u32::MAX;
const VPN_BITS: u32 = 48;
const VPN_MASK: u64 = (1 << VPN_BITS) - 1;

/// Flags of a folio, kept in its head.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u32);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// On an LRU list; kept by [`super::List`].
    pub const LRU: Flags = Flags(1 << FLAG_SHIFT);
    /// Belongs on the active list.
    pub const ACTIVE: Flags = Flags(1 << (FLAG_SHIFT + 1));
    /// On the deferred split queue; kept by [`super::List`].
    pub const QUEUED: Flags = Flags(1 << (FLAG_SHIFT + 2));
    /// Some of its pages were unmapped for good.
    pub const PARTIAL: Flags = Flags(1 << (FLAG_SHIFT + 3));
    /// Where its pages are mapped is in the reverse map, not in its owner field: since a fork
    /// several spaces may hold it.
    pub const FORKED: Flags = Flags(1 << (FLAG_SHIFT + 4));
    /// Locked in memory: never reclaimed.
    pub const UNEVICTABLE: Flags = Flags(1 << (FLAG_SHIFT + 5));
    /// Somebody holds a page of it by [`crate::Mm::pin`]: it is neither moved nor split.
    pub const PINNED: Flags = Flags(1 << (FLAG_SHIFT + 6));
    /// The store refused its content; not offered again before it may be another.
    pub const REJECTED: Flags = Flags(1 << (FLAG_SHIFT + 7));
    /// The frame must never be used again; its folio is not taken back (R2).
    pub const BAD: Flags = Flags(1 << (FLAG_SHIFT - 1));
    /// Flags that must be clear when a folio is freed (R3): somebody still counts on it.
    pub const IN_USE: Flags =
        Flags(Flags::LRU.0 | Flags::ACTIVE.0 | Flags::QUEUED.0 | Flags::UNEVICTABLE.0);
    const ALL: Flags = Flags(0x1ff << (FLAG_SHIFT - 1));

    /// Whether all flags of `f` are in this set.
    pub const fn has(self, f: Flags) -> bool {
        self.0 & f.0 == f.0
    }
    /// Whether any flag of `f` is in this set.
    pub const fn any(self, f: Flags) -> bool {
        self.0 & f.0 != 0
    }
    /// The flags that are in both sets.
    pub const fn and(self, f: Flags) -> Flags {
        Flags(self.0 & f.0)
    }
    /// The flags of this set that are not in `f`.
    pub const fn without(self, f: Flags) -> Flags {
        Flags(self.0 & !f.0)
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 9] = [
            "bad",
            "lru",
            "active",
            "queued",
            "partial",
            "forked",
            "unevictable",
            "pinned",
            "rejected",
        ];
        let mut first = true;
        for (i, name) in NAMES.iter().enumerate() {
            if self.0 >> (FLAG_SHIFT as usize - 1 + i) & 1 == 1 {
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// Metadata of one frame. Of a folio, the head's says everything.
pub struct FrameMeta {
    /// Order (bits 0..4), kind (4..7), flags (7..16), mobility (16..18) of a folio or of the
    /// list that a free block is on, number of the capture list (18..32) of a captured block.
    state: AtomicU32,
    refs: AtomicU32,
    prev: AtomicU32,
    next: AtomicU32,
    qprev: AtomicU32,
    qnext: AtomicU32,
    /// Space in the top 16 bits, page in the low 48; all ones for none.
    owner: AtomicU64,
}

// The budget: 0.8 % of the memory managed.
const _: () = assert!(size_of::<FrameMeta>() == 32);

impl FrameMeta {
    /// A frame that is part of nothing yet.
    pub(crate) const fn new() -> FrameMeta {
        FrameMeta {
            state: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            prev: AtomicU32::new(NO_FRAME),
            next: AtomicU32::new(NO_FRAME),
            qprev: AtomicU32::new(NO_FRAME),
            qnext: AtomicU32::new(NO_FRAME),
            owner: AtomicU64::new(u64::MAX),
        }
    }

    /// What the frame is part of.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(self.state.load(Acquire))
    }

    /// Order of the folio this frame is the head of; `None` for every other frame.
    pub fn folio_order(&self) -> Option<u8> {
        self.order_if(Kind::FolioHead)
    }

    /// Order of the free block this frame is the head of (R1). Meaningful only for the zone
    /// under its lock, and therefore for the zone only.
    pub(super) fn free_order(&self) -> Option<u8> {
        self.order_if(Kind::FreeHead)
    }

    fn order_if(&self, kind: Kind) -> Option<u8> {
        let state = self.state.load(Acquire);
        (Kind::of(state) == kind).then_some((state & ORDER_MASK) as u8)
    }

    /// What the frame heads, and of which order; `None` if it is no head.
    pub(super) fn head(&self) -> Option<Head> {
        let state = self.state.load(Acquire);
        let order = (state & ORDER_MASK) as u8;
        match Kind::of(state) {
            Kind::Untouched | Kind::Tail => None,
            Kind::FreeHead => Some(Head::Free(order)),
            Kind::FolioHead => Some(Head::Folio(order)),
            Kind::Cached => Some(Head::Cached(order)),
            Kind::Captured => Some(Head::Captured(order, (state >> OWNER_SHIFT) as usize)),
        }
    }

    /// Mobility of the folio, or of the list that the free block is on.
    pub fn mobility(&self) -> Mobility {
        Mobility::of_bits(self.state.load(Relaxed) >> MOBILITY_SHIFT)
    }

    /// Becomes part of something else; clears the flags, the mobility and the capture list.
    #[inline]
    pub(super) fn set_kind(&self, kind: Kind, order: u8) {
        self.state
            .store(kind.bits() | (order as u32 & ORDER_MASK), Release);
    }

    /// As [`FrameMeta::set_kind`], of a mobility.
    #[inline]
    pub(super) fn set_mobile(&self, kind: Kind, order: u8, mobility: Mobility) {
        let bits = kind.bits() | (order as u32 & ORDER_MASK);
        self.state
            .store(bits | (mobility as u32) << MOBILITY_SHIFT, Release);
    }

    /// The head of a block on capture list `list`, which has 14 bits.
    pub(super) fn set_captured(&self, order: u8, list: usize) {
        let bits = Kind::Captured.bits() | (order as u32 & ORDER_MASK);
        self.state
            .store(bits | (list as u32) << OWNER_SHIFT, Release);
    }

    /// The head of a new folio: one reference, no flags. A frame that is part of no folio has
    /// no owner and is on no list, so that nothing else needs to be cleared.
    #[inline]
    pub(super) fn set_folio_head(&self, order: u8, mobility: Mobility) {
        debug_assert!(self.owner().is_none() && self.unlinked(), "{self:?}");
        self.refs.store(1, Relaxed);
        self.set_mobile(Kind::FolioHead, order, mobility);
    }

    /// From the head of a folio of `order`, whose state is `seen`, to one that the allocator
    /// owns; false if the state is another one by now. Of two that free the same folio at
    /// once, one fails here.
    #[inline]
    pub(super) fn claim(&self, seen: u32, order: u8) -> bool {
        let cached = Kind::Cached.bits() | (order as u32 & ORDER_MASK);
        let won = self
            .state
            .compare_exchange(seen, cached, AcqRel, Relaxed)
            .is_ok();
        if won {
            self.refs.store(0, Relaxed);
        }
        won
    }

    /// Kind, order and flags in one look.
    pub(super) fn look(&self) -> (Kind, u8, Flags) {
        let state = self.state.load(Acquire);
        let order = (state & ORDER_MASK) as u8;
        (Kind::of(state), order, Flags(state & Flags::ALL.0))
    }

    /// The state, for [`FrameMeta::claim`], if nothing speaks against taking the folio back:
    /// it is the head of one of `order`, not bad, not in use, with one reference at most.
    #[inline]
    pub(super) fn releasable(&self, order: u8) -> Option<u32> {
        const LOOKED_AT: u32 = ORDER_MASK | 7 << KIND_SHIFT | Flags::BAD.0 | Flags::IN_USE.0;
        let state = self.state.load(Acquire);
        let wanted = Kind::FolioHead.bits() | order as u32;
        let good = state & LOOKED_AT == wanted && order as u32 <= ORDER_MASK;
        (good && self.refs() <= 1).then_some(state)
    }

    // ---- flags ----

    /// The flags now.
    pub fn flags(&self) -> Flags {
        Flags(self.state.load(Acquire) & Flags::ALL.0)
    }
    /// Whether all of `f` are set.
    pub fn has(&self, f: Flags) -> bool {
        self.flags().has(f)
    }
    /// Sets `f`; returns the flags before.
    pub fn set(&self, f: Flags) -> Flags {
        Flags(self.state.fetch_or(f.0, AcqRel) & Flags::ALL.0)
    }
    /// Clears `f`; returns the flags before.
    pub fn clear(&self, f: Flags) -> Flags {
        Flags(self.state.fetch_and(!f.0, AcqRel) & Flags::ALL.0)
    }

    // ---- references ----

    /// References to the folio; 0 for a free or frozen one.
    #[inline]
    pub fn refs(&self) -> u32 {
        self.refs.load(Acquire)
    }
    /// Takes a reference; false if there is none to share (free, or frozen).
    pub fn try_get(&self) -> bool {
        self.refs
            .fetch_update(AcqRel, Relaxed, |n| {
                (n != 0).then(|| n.checked_add(1)).flatten()
            })
            .is_ok()
    }
    /// Takes `n` references; the caller has one already.
    pub fn add_refs(&self, n: u32) {
        let before = self.refs.fetch_add(n, AcqRel);
        debug_assert!(before > 0, "took references to a folio that nobody holds");
    }
    /// Drops a reference; returns how many are left. Whoever drops the last one frees the
    /// folio. Dropping one that does not exist changes nothing (debug builds assert).
    pub fn put(&self) -> u32 {
        let before = self
            .refs
            .fetch_update(AcqRel, Relaxed, |n| n.checked_sub(1));
        debug_assert!(before.is_ok(), "dropped a reference that nobody has");
        before.map_or(0, |n| n - 1)
    }
    /// Gives `n` references back; the number that is left.
    pub fn put_refs(&self, n: u32) -> u32 {
        let before = self
            .refs
            .fetch_update(AcqRel, Relaxed, |r| r.checked_sub(n));
        debug_assert!(before.is_ok(), "dropped references that nobody has");
        before.map_or(0, |r| r - n)
    }
    /// Sets the number of references of a folio that only the caller knows.
    pub fn set_refs(&self, n: u32) {
        self.refs.store(n, Release);
    }
    /// Takes all references away if there are exactly `expected`, so that nobody can get one;
    /// [`FrameMeta::unfreeze`] gives them back.
    pub fn freeze(&self, expected: u32) -> bool {
        self.refs
            .compare_exchange(expected, 0, AcqRel, Relaxed)
            .is_ok()
    }
    /// Gives a frozen folio `refs` references.
    pub fn unfreeze(&self, refs: u32) {
        debug_assert_eq!(self.refs(), 0, "the folio is not frozen");
        self.refs.store(refs, Release);
    }

    // ---- owner ----

    /// Where the first page of the folio belongs; `None` if nowhere.
    #[inline]
    pub fn owner(&self) -> Option<(SpaceId, Vpn)> {
        let word = self.owner.load(Acquire);
        (word != u64::MAX).then_some((SpaceId((word >> VPN_BITS) as u16), Vpn(word & VPN_MASK)))
    }
    /// Says where the first page of the folio belongs; the page number has 48 bits.
    pub fn set_owner(&self, space: SpaceId, page: Vpn) {
        debug_assert!(page.0 < VPN_MASK, "page number beyond 48 bits");
        let word = (space.0 as u64) << VPN_BITS | page.0 & VPN_MASK;
        self.owner.store(word, Release);
    }
    /// Belongs nowhere.
    pub fn clear_owner(&self) {
        self.owner.store(u64::MAX, Release);
    }

    // ---- links, for the lists of this module ----

    pub(super) fn links(&self, queue: bool) -> (&AtomicU32, &AtomicU32) {
        if queue {
            (&self.qprev, &self.qnext)
        } else {
            (&self.prev, &self.next)
        }
    }
    fn unlinked(&self) -> bool {
        [&self.prev, &self.next, &self.qprev, &self.qnext]
            .iter()
            .all(|l| l.load(Relaxed) == NO_FRAME)
    }
}

/// The frame a link leads to.
pub(super) fn link_get(link: &AtomicU32) -> Option<Pfn> {
    let n = link.load(Relaxed);
    (n != NO_FRAME).then_some(Pfn(n))
}

/// Points a link at a frame, or at none.
pub(super) fn link_set(link: &AtomicU32, to: Option<Pfn>) {
    link.store(to.map_or(NO_FRAME, |p| p.0), Relaxed);
}

impl fmt::Debug for FrameMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, refs, flags) = (self.kind(), self.refs(), self.flags());
        let order = self.state.load(Relaxed) & ORDER_MASK;
        write!(f, "{kind:?} order {order} refs {refs} {flags:?}")?;
        match self.owner() {
            Some((space, page)) => write!(f, " of {space} {page}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn r1_order_is_readable_only_by_who_owns_the_block() {
        let m = FrameMeta::new();
        assert_eq!((m.folio_order(), m.free_order()), (None, None));
        m.set_kind(Kind::FreeHead, 10);
        assert_eq!((m.folio_order(), m.free_order()), (None, Some(10)));
        m.set_folio_head(4, Mobility::Movable);
        assert_eq!((m.folio_order(), m.free_order()), (Some(4), None));
        m.set_captured(7, 5);
        assert_eq!((m.folio_order(), m.free_order()), (None, None));
        assert_eq!(m.head(), Some(Head::Captured(7, 5)));
        m.set_kind(Kind::Tail, 0);
        assert_eq!((m.folio_order(), m.free_order()), (None, None));
    }

    #[test]
    fn flags_order_kind_and_owner_do_not_disturb_each_other() {
        let m = FrameMeta::new();
        m.set_folio_head(9, Mobility::Unmovable);
        assert_eq!(m.set(Flags::LRU | Flags::PARTIAL), Flags::NONE);
        assert_eq!(m.set(Flags::REJECTED), Flags::LRU | Flags::PARTIAL);
        m.set_owner(SpaceId(0xfffe), Vpn(0x7fff_ffff_ffff));
        assert_eq!(m.owner(), Some((SpaceId(0xfffe), Vpn(0x7fff_ffff_ffff))));
        assert_eq!((m.kind(), m.folio_order()), (Kind::FolioHead, Some(9)));
        assert_eq!(m.mobility(), Mobility::Unmovable);
        m.set(Flags::BAD);
        assert!(m.clear(Flags::BAD).has(Flags::BAD));
        m.clear(Flags::PARTIAL);
        assert!(m.has(Flags::LRU | Flags::REJECTED) && !m.has(Flags::PARTIAL));
        assert_eq!(format!("{:?}", m.flags()), "lru|rejected");
        m.set_owner(SpaceId(0), Vpn(0));
        assert_eq!(m.owner(), Some((SpaceId(0), Vpn(0))));
        m.clear_owner();
        assert_eq!(m.owner(), None);
    }

    #[test]
    fn a_frozen_folio_gives_no_reference() {
        let m = FrameMeta::new();
        assert!(!m.try_get(), "free");
        m.set_folio_head(0, Mobility::Movable);
        assert!(m.try_get());
        assert!(!m.freeze(1));
        assert_eq!(m.put(), 1);
        assert!(m.freeze(1) && !m.try_get());
        m.unfreeze(1);
        assert_eq!(m.put(), 0);
    }
}
