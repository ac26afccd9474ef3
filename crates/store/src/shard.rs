//! A part of the slots: their table, their segments, and compaction. Everything here runs
//! under the shard's lock and takes at most a bounded step.

use crate::encode::MAX_ENCODED;
use crate::segment::{Header, LIVE_PER_DEAD, Outgoing, SegmentSet, Segments, Sparse, footprint};
use crate::table::{Entry, Kind, LEAF_SLOTS, Place, SUM_BITS, Table};
use deckle_mm::{PAGE_SIZE, StoreStop};

/// What the largest object takes.
const LARGEST: u64 = footprint(MAX_ENCODED as u32) as u64;

/// Most bytes one step of automatic compaction copies. At the limit the emptiest segment has one
/// dead byte for each [`LIVE_PER_DEAD`] at least, so a step wins back more than the largest object
/// leaves dead when it is freed.
const STEP_BYTES: u64 = (LIVE_PER_DEAD + 2) * LARGEST;

/// What passing over a dead object costs of a step's budget, in bytes.
const SKIP_COST: u64 = 32;

/// An encoding to be stored.
#[derive(Clone, Copy)]
pub(crate) enum Encoding<'a> {
    Same(u64),
    Sparse(&'a [u8]),
    Block(&'a [u8]),
}

/// What is in a slot, beside its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<'a> {
    /// The entry is all of it.
    Word,
    /// An object's header and its encoding.
    Object(Header, &'a [u8]),
    /// An object with an encoding of `len` bytes, in the file of that number from byte `at` on.
    Filed { file: u64, at: u64, len: u32 },
}

/// Pages by encoding and what compaction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) same: u64,
    pub(crate) sparse: u64,
    pub(crate) block: u64,
    /// Bytes that compaction copied, ever.
    pub(crate) moved_bytes: u64,
    /// Segments that compaction gave up on, ever.
    pub(crate) damaged: u64,
}

pub(crate) struct Shard {
    table: Table,
    pub(crate) segments: SegmentSet,
    pub(crate) tally: Tally,
    /// The segment being emptied and the byte to go on at.
    victim: Option<(u32, u32)>,
    /// Slots are dealt to 2^bits shards in runs of a leaf.
    bits: u32,
    number: u32,
}

impl Shard {
    /// The part `number` of 2^`bits`; `sizes` of segments, and from how many bytes on encodings go
    /// to the file first.
    pub(crate) fn new(sizes: (u32, u32), far: u32, (bits, number): (u32, u32)) -> Shard {
        Shard {
            table: Table::default(),
            segments: SegmentSet::new(sizes, far),
            tally: Tally::default(),
            victim: None,
            bits,
            number,
        }
    }

    /// Number of the shard that has `slot`.
    pub(crate) fn of(slot: u32, bits: u32) -> u32 {
        (slot / LEAF_SLOTS) & ((1 << bits) - 1)
    }

    fn index(&self, slot: u32) -> u32 {
        ((slot / LEAF_SLOTS) >> self.bits) * LEAF_SLOTS + slot % LEAF_SLOTS
    }

    fn slot(&self, index: u32) -> u32 {
        ((index / LEAF_SLOTS) << self.bits | self.number) * LEAF_SLOTS + index % LEAF_SLOTS
    }

    pub(crate) fn pages(&self) -> u64 {
        self.tally.same + self.tally.sparse + self.tally.block
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.segments.bytes() + self.table.bytes() as u64 + size_of::<Shard>() as u64
    }

    fn count(&mut self, kind: Kind) -> Option<&mut u64> {
        match kind {
            Kind::Empty => None,
            Kind::Same => Some(&mut self.tally.same),
            Kind::Sparse => Some(&mut self.tally.sparse),
            Kind::Block => Some(&mut self.tally.block),
        }
    }

    /// Stores an encoding with the page's checksum. A page that was in the slot is dropped.
    pub(crate) fn put(
        &mut self,
        hooks: &dyn Segments,
        slot: u32,
        sum: u64,
        encoding: Encoding<'_>,
    ) -> Result<(), StoreStop> {
        let index = self.index(slot);
        self.free(hooks, slot);
        if !self.table.reserve(index) {
            return Err(StoreStop::NoMemory);
        }
        let (kind, body) = match encoding {
            Encoding::Same(_) => (Kind::Same, None),
            Encoding::Sparse(body) => (Kind::Sparse, Some(body)),
            Encoding::Block(body) => (Kind::Block, Some(body)),
        };
        let word = match (encoding, body) {
            (Encoding::Same(word), _) => word,
            (_, Some(body)) => {
                let header = Header {
                    slot,
                    len: body.len() as u16,
                    sum: header_sum(sum),
                };
                match self.segments.append(hooks, header, body) {
                    Some(place) => place.pack(),
                    None => {
                        // Drops a leaf that was made for this slot alone.
                        self.table.set(index, Entry::EMPTY);
                        return Err(StoreStop::NoMemory);
                    }
                }
            }
            (_, None) => return Err(StoreStop::Incompressible),
        };
        self.table.set(
            index,
            Entry {
                kind,
                sum: entry_sum(sum),
                word,
            },
        );
        if let Some(n) = self.count(kind) {
            *n += 1;
        }
        self.relieve(hooks);
        Ok(())
    }

    /// What is in a slot.
    ///
    /// `Corrupt` for an empty slot and for an object whose header is not what was written.
    pub(crate) fn get(&self, slot: u32) -> Result<(Entry, Found<'_>), StoreStop> {
        let entry = self.table.get(self.index(slot));
        if entry.kind == Kind::Empty {
            return Err(StoreStop::Corrupt);
        }
        let Some(place) = entry.place() else {
            return Ok((entry, Found::Word));
        };
        if let Some((file, at)) = self.segments.spot(place) {
            let len = place.len;
            return Ok((entry, Found::Filed { file, at, len }));
        }
        match self.segments.object(place) {
            Some((header, body)) if header.slot == slot && u32::from(header.len) == place.len => {
                Ok((entry, Found::Object(header, body)))
            }
            _ => Err(StoreStop::Corrupt),
        }
    }

    /// Whether what is in a slot is in a segment that is lent or borrowed.
    pub(crate) fn is_shared(&self, slot: u32) -> bool {
        let place = self.table.get(self.index(slot)).place();
        place.is_some_and(|place| self.segments.is_shared(place.segment))
    }

    /// Empties a slot; false when it was empty.
    pub(crate) fn free(&mut self, hooks: &dyn Segments, slot: u32) -> bool {
        let index = self.index(slot);
        let entry = self.table.get(index);
        let Some(n) = self.count(entry.kind) else {
            return false;
        };
        *n -= 1;
        self.table.set(index, Entry::EMPTY);
        if let Some(place) = entry.place() {
            self.release(hooks, place);
            self.relieve(hooks);
        }
        true
    }

    fn release(&mut self, hooks: &dyn Segments, place: Place) {
        if self.segments.release(hooks, place)
            && self
                .victim
                .is_some_and(|(segment, _)| segment == place.segment)
        {
            self.victim = None;
        }
    }

    /// One step of compaction when more than one byte for each [`LIVE_PER_DEAD`] live ones and a
    /// segment are dead: RAM then follows the live bytes at 1.09 times plus a constant. Of what was
    /// lent it is as much as is live.
    fn relieve(&mut self, hooks: &dyn Segments) {
        if self.segments.is_sparse() {
            self.compact(hooks, STEP_BYTES);
        }
    }

    /// Before a fork, see [`SegmentSet::lend`].
    pub(crate) fn lend(&mut self, hooks: &dyn Segments) -> u64 {
        self.victim = None;
        self.table.lend();
        self.segments.lend(hooks)
    }

    /// See [`SegmentSet::unlend`].
    pub(crate) fn unlend(&mut self, oldest: Option<u64>) {
        self.table.unlend(oldest);
        self.segments.unlend(oldest);
    }

    /// After a fork, see [`SegmentSet::borrow_lent`].
    pub(crate) fn borrow_lent(&mut self, hooks: &dyn Segments) {
        self.table.borrow_lent();
        self.segments.borrow_lent(hooks);
    }

    /// What is borrowed is charged here from now on.
    pub(crate) fn own(&mut self) {
        self.table.own();
        self.segments.own();
    }

    /// Bytes that a parent is charged for.
    pub(crate) fn borrowed(&self) -> u64 {
        self.table.borrowed() + self.segments.borrowed()
    }

    /// Bytes that this process is charged for, and only children have, perhaps.
    pub(crate) fn ghost(&self) -> u64 {
        self.table.ghost() + self.segments.ghost()
    }

    /// Moves live objects out of the emptiest segments until about `budget` bytes are copied or
    /// nothing more is worth it. Returns the bytes copied.
    pub(crate) fn compact(&mut self, hooks: &dyn Segments, budget: u64) -> u64 {
        let mut copied = 0;
        let mut spent = 0;
        while spent < budget {
            let next = self
                .victim
                .or_else(|| self.segments.emptiest().map(|s| (s, 0)));
            let Some((segment, offset)) = next else { break };
            let Some(header) = self.segments.header_at(segment, offset) else {
                // All headers seen and objects left: some header led astray. Its objects
                // stay where they are, each read checks them.
                self.segments.mark_damaged(segment);
                self.tally.damaged += 1;
                self.victim = None;
                continue;
            };
            let len = u32::from(header.len);
            if len as usize > MAX_ENCODED && len as usize != PAGE_SIZE {
                self.victim = Some((segment, u32::MAX));
                continue;
            }
            self.victim = Some((segment, offset + footprint(len)));
            let from = Place {
                segment,
                offset,
                len,
            };
            let entry = self.entry_of(header.slot);
            if entry.place() != Some(from) {
                spent += SKIP_COST;
                continue;
            }
            let Some(to) = self.segments.relocate(hooks, from) else {
                self.victim = Some((segment, offset));
                break;
            };
            self.table.set(
                self.index(header.slot),
                Entry {
                    word: to.pack(),
                    ..entry
                },
            );
            self.release(hooks, from);
            copied += u64::from(footprint(len));
            spent += u64::from(footprint(len));
        }
        self.tally.moved_bytes += copied;
        copied
    }

    /// Takes the oldest segment for writing, see [`SegmentSet::send`].
    pub(crate) fn send(&mut self) -> Option<Outgoing> {
        let out = self.segments.send()?;
        self.victim = self.victim.filter(|(i, _)| *i != out.segment);
        Some(out)
    }

    /// Moves what is live of a segment in the file back to RAM: the objects from byte `from` of it
    /// on, until about `budget` bytes were looked at. `bytes` are those of the segment. Returns
    /// where to go on; `None`: nothing is left to be done, or there is no memory.
    pub(crate) fn bring_back(
        &mut self,
        hooks: &dyn Segments,
        sparse: &Sparse,
        bytes: &[u8],
        from: u32,
        budget: u32,
    ) -> Option<u32> {
        let mut at = from;
        while at < from.saturating_add(budget) {
            let (header, body) = crate::segment::read_object(bytes, at)?;
            if !self.segments.is_still(sparse) {
                return None;
            }
            let (segment, offset, len) = (sparse.segment, at, u32::from(header.len));
            let place = Place {
                segment,
                offset,
                len,
            };
            let entry = self.entry_of(header.slot);
            if entry.place() == Some(place) {
                let word = self.segments.append(hooks, header, body)?.pack();
                let index = self.index(header.slot);
                self.table.set(index, Entry { word, ..entry });
                self.release(hooks, place);
                self.tally.moved_bytes += u64::from(footprint(len));
            }
            at += footprint(len);
        }
        Some(at)
    }

    /// The entry of a slot that a header names: empty when it is none of ours.
    fn entry_of(&self, slot: u32) -> Entry {
        if Shard::of(slot, self.bits) == self.number {
            self.table.get(self.index(slot))
        } else {
            Entry::EMPTY
        }
    }

    /// Inverts a bit of what is stored for a slot: bits of header and encoding, or of the
    /// fill word. False when there is no such bit.
    pub(crate) fn flip_bit(&mut self, slot: u32, bit: u32) -> bool {
        let index = self.index(slot);
        let entry = self.table.get(index);
        match (entry.kind, entry.place()) {
            (Kind::Same, _) if bit < 64 => self.table.set(
                index,
                Entry {
                    word: entry.word ^ 1 << bit,
                    ..entry
                },
            ),
            (_, Some(place)) => self.segments.flip_bit(place, bit),
            _ => false,
        }
    }

    /// Indices that are in use.
    fn used(&self) -> impl Iterator<Item = u32> {
        let next = |at: Option<u32>| at.and_then(|at| self.table.next_used(at));
        core::iter::successors(next(Some(0)), move |at| next(at.checked_add(1)))
    }

    /// Each `stride`th slot that holds something.
    pub(crate) fn some_slots(&self, stride: usize) -> impl Iterator<Item = u32> {
        self.used().step_by(stride).map(|index| self.slot(index))
    }

    /// Reconciles table, segments and counts.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut tally = Tally {
            same: 0,
            sparse: 0,
            block: 0,
            ..self.tally
        };
        let mut live = Vec::new();
        for index in self.used() {
            let entry = self.table.get(index);
            match entry.kind {
                Kind::Empty => {}
                Kind::Same => tally.same += 1,
                Kind::Sparse => tally.sparse += 1,
                Kind::Block => tally.block += 1,
            }
            if let Some(place) = entry.place() {
                let slot = self.slot(index);
                if self.index(slot) != index || self.get(slot).is_err() {
                    return Err(format!("slot {slot}: no object at {place:?}"));
                }
                let segment = place.segment as usize;
                if live.len() <= segment {
                    live.resize(segment + 1, 0);
                }
                live[segment] += u64::from(footprint(place.len));
            }
        }
        if tally != self.tally {
            return Err(format!("counted {tally:?}, booked {:?}", self.tally));
        }
        self.segments.verify(&live)
    }
}

/// The part of a checksum that the table keeps.
pub(crate) fn entry_sum(sum: u64) -> u32 {
    sum as u32 & ((1 << SUM_BITS) - 1)
}

/// The part of a checksum that the object's header keeps.
pub(crate) fn header_sum(sum: u64) -> u16 {
    (sum >> 48) as u16
}
