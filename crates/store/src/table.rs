//! Where each slot's page is: a table of three levels, filled lazily, 12 bytes a slot.

use crate::segment::HEADER;
use crate::share::{Ghosts, Share};

/// Slots that one leaf covers.
pub(crate) const LEAF_SLOTS: u32 = 512;
const LEAF_BITS: u32 = LEAF_SLOTS.trailing_zeros();
const MID_BITS: u32 = 8;
const MID_LEAVES: usize = 1 << MID_BITS;

/// Bits of a checksum that an entry keeps.
pub(crate) const SUM_BITS: u32 = 30;

/// How a slot's page is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nothing there.
    Empty,
    /// Same-filled: the entry's word is all of it.
    Same,
    /// A list of non-zero words, in a segment.
    Sparse,
    /// A compressed block, in a segment.
    Block,
}

/// What the table knows of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Low [`SUM_BITS`] bits of the page's checksum.
    pub(crate) sum: u32,
    /// The fill word (same-filled) or a packed [`Place`].
    pub(crate) word: u64,
}

impl Entry {
    pub(crate) const EMPTY: Entry = Entry {
        kind: Kind::Empty,
        sum: 0,
        word: 0,
    };

    /// Where the encoding is, for kinds that have one.
    pub(crate) fn place(&self) -> Option<Place> {
        match self.kind {
            Kind::Empty | Kind::Same => None,
            Kind::Sparse | Kind::Block => Some(Place::unpack(self.word)),
        }
    }
}

/// Place of an object in the segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Number of the segment, 31 bits.
    pub(crate) segment: u32,
    /// Byte in the segment, a multiple of 8 below 16 MiB.
    pub(crate) offset: u32,
    /// Bytes of the encoding, without the header: 1 to 4096.
    pub(crate) len: u32,
}

impl Place {
    /// Its bytes in the segment, the header's too.
    pub(crate) fn bytes(self) -> std::ops::Range<usize> {
        let from = self.offset as usize;
        from..from + (HEADER + self.len) as usize
    }
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.segment) << 33
            | u64::from(self.offset / 8) << 12
            | u64::from(self.len & 0xfff)
    }
    fn unpack(word: u64) -> Place {
        Place {
            segment: (word >> 33) as u32,
            offset: (word >> 12 & 0x1f_ffff) as u32 * 8,
            // No encoding is empty: 0 stands for a whole page.
            len: (word as u32).wrapping_sub(1) % 0x1000 + 1,
        }
    }
}

/// A slot's entry. Words are halved, so that nothing is lost between rows.
#[derive(Clone, Copy)]
struct Row {
    word: [u32; 2],
    /// Kind in the two top bits, checksum below.
    meta: u32,
}

struct Leaf {
    rows: Box<[Row; LEAF_SLOTS as usize]>,
    used: u32,
    share: Share,
}

/// Bytes of a leaf.
const LEAF_BYTES: u64 = size_of::<[Row; LEAF_SLOTS as usize]>() as u64;

struct Mid {
    leaves: Box<[Option<Leaf>; MID_LEAVES]>,
    used: u32,
}

/// So many values, `None` without memory. Never builds them on the stack.
pub(crate) fn boxed<T, const N: usize>(value: impl FnMut() -> T) -> Option<Box<[T; N]>> {
    let mut all = Vec::new();
    all.try_reserve_exact(N).ok()?;
    all.resize_with(N, value);
    all.into_boxed_slice().try_into().ok()
}

/// The table. Leaves that become empty are freed. A fork copies a leaf when one side writes it,
/// and no sooner.
#[derive(Default)]
pub(crate) struct Table {
    mids: Vec<Option<Mid>>,
    leaves: usize,
    nr_mids: usize,
    /// Leaves that a parent is charged for.
    borrowed: u64,
    ghosts: Ghosts,
}

fn split(index: u32) -> (usize, usize, usize) {
    (
        (index >> (LEAF_BITS + MID_BITS)) as usize,
        (index >> LEAF_BITS) as usize % MID_LEAVES,
        (index % LEAF_SLOTS) as usize,
    )
}

impl Table {
    pub(crate) fn get(&self, index: u32) -> Entry {
        let (top, mid, at) = split(index);
        let Some(leaf) = self
            .mids
            .get(top)
            .and_then(|m| m.as_ref())
            .and_then(|m| m.leaves[mid].as_ref())
        else {
            return Entry::EMPTY;
        };
        let Row { word, meta } = leaf.rows[at];
        let kind = match meta >> SUM_BITS {
            0 => Kind::Empty,
            1 => Kind::Same,
            2 => Kind::Sparse,
            _ => Kind::Block,
        };
        Entry {
            kind,
            sum: meta & ((1 << SUM_BITS) - 1),
            word: u64::from(word[0]) | u64::from(word[1]) << 32,
        }
    }

    /// Makes room for an entry, so that `set` succeeds; false without memory.
    pub(crate) fn reserve(&mut self, index: u32) -> bool {
        let (top, mid, _) = split(index);
        if self.mids.len() <= top {
            if self
                .mids
                .try_reserve_exact(top + 1 - self.mids.len())
                .is_err()
            {
                return false;
            }
            self.mids.resize_with(top + 1, || None);
        }
        if self.mids[top].is_none() {
            let leaves = boxed(|| None);
            self.mids[top] = leaves.map(|leaves| Mid { leaves, used: 0 });
            self.nr_mids += usize::from(self.mids[top].is_some());
        }
        let Some(mids) = &mut self.mids[top] else {
            return false;
        };
        if mids.leaves[mid].is_none() {
            let (word, meta) = ([0; 2], 0);
            let rows = boxed(|| Row { word, meta });
            mids.leaves[mid] = rows.map(|rows| Leaf {
                rows,
                used: 0,
                share: Share::Own,
            });
            if mids.leaves[mid].is_some() {
                mids.used += 1;
                self.leaves += 1;
            } else if mids.used == 0 {
                self.mids[top] = None;
                self.nr_mids -= 1;
                return false;
            }
        }
        mids.leaves[mid].is_some()
    }

    /// Sets the entry of a slot that has room; false (and nothing done) when it has none.
    pub(crate) fn set(&mut self, index: u32, entry: Entry) -> bool {
        let (top, mid, at) = split(index);
        let Some(mids) = self.mids.get_mut(top).and_then(|m| m.as_mut()) else {
            return false;
        };
        let Some(leaf) = mids.leaves[mid].as_mut() else {
            return false;
        };
        match core::mem::replace(&mut leaf.share, Share::Own) {
            Share::Own => {}
            Share::Lent => self.ghosts.add(LEAF_BYTES),
            Share::Borrowed => self.borrowed -= 1,
        }
        leaf.used -= u32::from(leaf.rows[at].meta >> SUM_BITS != 0);
        leaf.used += u32::from(entry.kind != Kind::Empty);
        leaf.rows[at] = Row {
            word: [entry.word as u32, (entry.word >> 32) as u32],
            meta: (entry.kind as u32) << SUM_BITS | entry.sum & ((1 << SUM_BITS) - 1),
        };
        if leaf.used == 0 {
            mids.leaves[mid] = None;
            mids.used -= 1;
            self.leaves -= 1;
            if mids.used == 0 {
                self.mids[top] = None;
                self.nr_mids -= 1;
            }
        }
        true
    }

    /// First slot at or after `index` that may be in use; `None` when there is none.
    pub(crate) fn next_used(&self, index: u32) -> Option<u32> {
        let mut at = u64::from(index);
        while at < (self.mids.len() as u64) << (LEAF_BITS + MID_BITS) {
            let i = at as u32;
            let (top, mid, _) = split(i);
            let step = match &self.mids[top] {
                None => LEAF_BITS + MID_BITS,
                Some(m) if m.leaves[mid].is_none() => LEAF_BITS,
                Some(_) if self.get(i).kind == Kind::Empty => 0,
                Some(_) => return Some(i),
            };
            at = ((at >> step) + 1) << step;
        }
        None
    }

    /// Before a fork, by the parent: all leaves are shared from now on, at its charge.
    pub(crate) fn lend(&mut self) {
        self.own();
        self.share(Share::Own, Share::Lent);
        self.ghosts.fork();
    }

    /// As [`SegmentSet::unlend`](crate::segment::SegmentSet::unlend).
    pub(crate) fn unlend(&mut self, oldest: Option<u64>) {
        self.ghosts.forget(oldest);
        if oldest.is_none() {
            self.share(Share::Lent, Share::Own);
        }
    }

    /// After a fork, by the child: the leaves that its parent has lent are borrowed.
    pub(crate) fn borrow_lent(&mut self) {
        self.ghosts.forget(None);
        self.borrowed = self.share(Share::Lent, Share::Borrowed);
    }

    /// What is borrowed is charged here from now on.
    pub(crate) fn own(&mut self) {
        self.share(Share::Borrowed, Share::Own);
        self.borrowed = 0;
    }

    fn share(&mut self, from: Share, to: Share) -> u64 {
        let mids = self.mids.iter_mut().flatten();
        let leaves = mids.flat_map(|mid| mid.leaves.iter_mut().flatten());
        let change = |leaf: &mut Leaf| leaf.share = to;
        leaves.filter(|leaf| leaf.share == from).map(change).count() as u64
    }

    /// Bytes of leaves that a parent is charged for.
    pub(crate) fn borrowed(&self) -> u64 {
        self.borrowed * LEAF_BYTES
    }

    /// Bytes of leaves that only children have.
    pub(crate) fn ghost(&self) -> u64 {
        self.ghosts.bytes()
    }

    /// Bytes of all levels.
    pub(crate) fn bytes(&self) -> usize {
        self.leaves * LEAF_BYTES as usize
            + self.nr_mids * size_of::<[Option<Leaf>; MID_LEAVES]>()
            + self.mids.capacity() * size_of::<Option<Mid>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_places_come_back_and_empty_leaves_are_freed() {
        let mut t = Table::default();
        let place = Place {
            segment: (1 << 31) - 1,
            offset: (1 << 24) - 8,
            len: 3584,
        };
        for len in [1, 4095, 4096] {
            let place = Place { len, ..place };
            assert_eq!(Place::unpack(place.pack()), place);
        }
        let slots = [0, 511, 512, 1 << 20, u32::MAX];
        for slot in slots {
            let entry = Entry {
                kind: Kind::Block,
                sum: slot >> 2,
                word: place.pack(),
            };
            assert!(!t.set(slot, entry) || slot == 511);
            assert!(t.reserve(slot) && t.set(slot, entry));
            assert_eq!(t.get(slot), entry);
            assert_eq!(t.get(slot).place(), Some(place));
        }
        let mut at = Some(0);
        for slot in slots {
            assert_eq!(t.next_used(at.unwrap()), Some(slot));
            at = slot.checked_add(1);
        }
        assert_eq!(t.next_used(u32::MAX - 1), Some(u32::MAX));
        for slot in slots {
            assert!(t.set(slot, Entry::EMPTY));
            assert_eq!(t.get(slot), Entry::EMPTY);
        }
        assert_eq!((t.leaves, t.nr_mids, t.next_used(0)), (0, 0, None));
    }

    #[test]
    fn a_slot_costs_twelve_bytes() {
        assert_eq!(size_of::<Row>(), 12);
    }
}
