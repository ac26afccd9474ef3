//! Segments: runs of memory that objects are appended to.
//!
//! One segment is open, and one more for what goes to a file first; a full one is sealed and
//! nothing is appended to it again. Freeing an object wipes its bytes and lowers its segment's
//! count of live ones; a sealed segment without any is unmapped at once. What a fork has copied is
//! not even wiped, so that the kernel goes on sharing its pages: there the bytes stay until their
//! segment is unmapped. Sealed segments may leave for a file.

mod filed;
mod share;
mod source;
mod sparse;
mod verify;

use crate::share::{Ghosts, Share};
use crate::swapfile::Extent;
use crate::table::Place;
use deckle_sys::Memory;
use filed::Filed;
pub(crate) use filed::{Outgoing, Sparse};
pub use source::{Heap, Segments};
pub(crate) use sparse::LIVE_PER_DEAD;
use sparse::NO_BUCKETS;

/// Bytes in front of each object: slot, length, 16 bits of the checksum.
pub(crate) const HEADER: u32 = 8;

/// Bytes an object of `len` encoded bytes takes.
pub(crate) const fn footprint(len: u32) -> u32 {
    (HEADER + len).next_multiple_of(8)
}

/// What stands in front of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) slot: u32,
    pub(crate) len: u16,
    pub(crate) sum: u16,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER as usize] {
        let v = u64::from(self.slot) | u64::from(self.len) << 32 | u64::from(self.sum) << 48;
        v.to_le_bytes()
    }
    fn from_bytes(b: [u8; HEADER as usize]) -> Header {
        let v = u64::from_le_bytes(b);
        Header {
            slot: v as u32,
            len: (v >> 32) as u16,
            sum: (v >> 48) as u16,
        }
    }
}

/// The object at a byte of what was read of a file; `None` where there is none.
pub(crate) fn read_object(bytes: &[u8], at: u32) -> Option<(Header, &[u8])> {
    let (head, rest) = bytes.get(at as usize..)?.split_first_chunk()?;
    let header = Header::from_bytes(*head);
    match header.len {
        0 => None,
        len => Some((header, rest.get(..usize::from(len))?)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Number not in use.
    Free,
    Open,
    Sealed,
    /// Sealed, and a header in it is not what was written: compaction leaves it alone.
    Damaged,
    /// Sealed, and being written to the file: nothing in it changes, and it stays mapped.
    Leaving,
    /// In a file, and not mapped.
    Filed,
}

struct Segment {
    share: Share,
    /// None of what is free, or in a file.
    memory: Option<Memory>,
    /// Its bytes.
    size: u32,
    /// Bytes appended.
    used: u32,
    /// Bytes of objects that are not freed.
    live: u32,
    /// These objects.
    pages: u32,
    state: State,
    /// For encodings that go to the file first.
    goes_first: bool,
    /// Where it is when it is in a file.
    extent: Extent,
    /// In a file, and what is left in it cannot be moved.
    stuck: bool,
    /// When it was sealed, by the count of those that were.
    age: u64,
    /// Neighbours in the bucket (sealed) or next free number; NIL ends a list.
    prev: u32,
    next: u32,
}
impl Segment {
    /// Bytes that can be appended.
    fn room(&self) -> u32 {
        self.size - self.used
    }
    /// Whether there is memory of it.
    fn is_mapped(&self) -> bool {
        self.memory.is_some()
    }
    /// An object with its header, to write; `None` without memory, or while that is written to a
    /// file.
    fn object_mut(&mut self, place: Place) -> Option<&mut [u8]> {
        self.memory.as_mut()?.bytes_mut()?.get_mut(place.bytes())
    }
    /// Bytes of pages that were appended to.
    fn written(&self) -> u64 {
        u64::from(self.used.next_multiple_of(4096).min(self.size))
    }
}

const NIL: u32 = u32::MAX;
/// With live bytes of so many segments of a size, shared ones not counted, new ones have it.
const GROWS_FROM: u64 = 8;

/// What the segments of one [`Share`] hold, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sum {
    mapped: u64,
    live: u64,
}

/// All segments of a shard.
pub(crate) struct SegmentSet {
    /// Bytes of the smallest segments and of the largest.
    sizes: [u32; 2],
    /// Encodings of so many bytes and more go to the file first.
    far: u32,
    segments: Vec<Segment>,
    free: u32,
    buckets: sparse::Buckets,
    /// The open one, and the one for what goes to the file first.
    open: [Option<u32>; 2],
    filed: Filed,
    /// A large one that was emptied. To use it anew takes neither time nor a charge, where a new
    /// one is 2 MiB of zeros that the kernel writes, and those who wait for room have to make.
    spare: Option<Memory>,
    mapped: u64,
    sums: [Sum; 3],
    /// Bytes of segments that a parent is charged for.
    borrowed: u64,
    ghosts: Ghosts,
}

impl SegmentSet {
    /// No segments yet; each will have `small` bytes, or `large` when much is stored.
    pub(crate) fn new((small, large): (u32, u32), far: u32) -> SegmentSet {
        SegmentSet {
            sizes: [small, large],
            far,
            segments: Vec::new(),
            free: NIL,
            buckets: NO_BUCKETS,
            open: [None; 2],
            filed: Filed::default(),
            spare: None,
            mapped: 0,
            sums: [Sum::default(); 3],
            borrowed: 0,
            ghosts: Ghosts::default(),
        }
    }

    /// Bytes of live objects with their headers.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.sums.iter().map(|s| s.live).sum()
    }

    /// Segments mapped now.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped + u64::from(self.spare.is_some())
    }

    /// Their bytes.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        let spare = self.spare.as_ref().map_or(0, |s| s.len() as u64);
        self.sums.iter().map(|s| s.mapped).sum::<u64>() + spare
    }

    /// Bytes of segments and of what describes them.
    pub(crate) fn bytes(&self) -> u64 {
        self.mapped_bytes() + (self.segments.capacity() * size_of::<Segment>()) as u64
    }

    /// Copies an object to the open segment, opening another one as needed; `None` without
    /// memory.
    pub(crate) fn append(
        &mut self,
        hooks: &dyn Segments,
        header: Header,
        body: &[u8],
    ) -> Option<Place> {
        let place = self.room(hooks, u32::from(header.len))?;
        debug_assert_eq!(usize::from(header.len), body.len());
        let segment = &mut self.segments[place.segment as usize];
        let (head, to) = segment.object_mut(place)?.split_first_chunk_mut()?;
        *head = header.to_bytes();
        to.copy_from_slice(body.get(..to.len())?);
        Some(place)
    }

    /// Copies a whole object, header included, to the open segment. The old one stays until
    /// `release`. `None` without memory.
    pub(crate) fn relocate(&mut self, hooks: &dyn Segments, from: Place) -> Option<Place> {
        self.object(from)?;
        let to = self.room(hooks, from.len)?;
        // Never one: what is appended to is not sealed.
        let both = [from.segment as usize, to.segment as usize];
        let [source, target] = self.segments.get_disjoint_mut(both).ok()?;
        let bytes = target.object_mut(to)?;
        bytes.copy_from_slice(source.object_mut(from)?);
        Some(to)
    }

    /// Books room for an object of `len` bytes.
    fn room(&mut self, hooks: &dyn Segments, len: u32) -> Option<Place> {
        let need = footprint(len);
        let goes_first = len >= self.far;
        let i = match self.open[usize::from(goes_first)] {
            Some(i) if self.segments[i as usize].room() >= need => i,
            full => {
                let fresh = self.map(hooks, goes_first)?;
                if let Some(i) = full {
                    self.seal(hooks, i);
                }
                self.open[usize::from(goes_first)] = Some(fresh);
                fresh
            }
        };
        let segment = &mut self.segments[i as usize];
        let place = Place {
            segment: i,
            offset: segment.used,
            len,
        };
        segment.used += need;
        segment.live += need;
        segment.pages += 1;
        self.sums[segment.share as usize].live += u64::from(need);
        Some(place)
    }

    fn map(&mut self, hooks: &dyn Segments, goes_first: bool) -> Option<u32> {
        if self.free == NIL {
            // 31 bits name a segment.
            if self.segments.len() >= 1 << 31 || self.segments.try_reserve(1).is_err() {
                return None;
            }
        }
        let [small, large] = self.sizes;
        let size = match goes_first {
            true => filed::FAR_BYTES.clamp(small, large),
            false => self.fitting().clamp(small, large),
        };
        let memory = match self.spare.take_if(|spare| spare.len() == size as usize) {
            Some(spare) => spare,
            None => hooks.map(size as usize)?,
        };
        let new = Segment {
            share: Share::Own,
            memory: Some(memory),
            size,
            used: 0,
            live: 0,
            pages: 0,
            state: State::Open,
            goes_first,
            extent: Extent::NONE,
            stuck: false,
            age: 0,
            prev: NIL,
            next: NIL,
        };
        self.mapped += 1;
        self.sums[Share::Own as usize].mapped += u64::from(size);
        if self.free == NIL {
            self.segments.push(new);
            Some(self.segments.len() as u32 - 1)
        } else {
            let i = self.free;
            self.free = self.segments[i as usize].next;
            self.segments[i as usize] = new;
            Some(i)
        }
    }

    /// The largest size of which there are [`GROWS_FROM`] live, or none: what is not used of the
    /// open segment is little beside what is stored.
    fn fitting(&self) -> u32 {
        let live = self.sums[Share::Own as usize].live / GROWS_FROM;
        let bits = live.checked_ilog2().unwrap_or(0).min(31);
        1 << bits
    }

    /// Whether so much is stored that new segments are as large as they get.
    fn is_much(&self) -> bool {
        self.sums[Share::Own as usize].live >= GROWS_FROM * u64::from(self.sizes[1])
    }

    /// Gives a segment back, or keeps it to be used anew.
    fn unmap(&mut self, hooks: &dyn Segments, i: u32) {
        let segment = &mut self.segments[i as usize];
        let free = Segment {
            next: self.free,
            state: State::Free,
            share: Share::Own,
            memory: None,
            ..*segment
        };
        let gone = core::mem::replace(segment, free);
        let size = u64::from(gone.size);
        self.sums[gone.share as usize].mapped -= size;
        match gone.share {
            Share::Own => {}
            Share::Lent => self.ghosts.add(size),
            Share::Borrowed => self.borrowed -= gone.written(),
        }
        self.free = i;
        self.give_back(hooks, gone);
    }

    /// Gives a segment's memory back, or keeps it to be used anew.
    fn give_back(&mut self, hooks: &dyn Segments, gone: Segment) {
        let Some(memory) = gone.memory else {
            return;
        };
        self.mapped -= 1;
        let [small, large] = self.sizes;
        let fits = gone.share == Share::Own && gone.size == large && large > small;
        if fits && self.is_much() && self.spare.is_none() {
            self.spare = Some(memory);
        } else {
            hooks.unmap(memory);
        }
    }

    /// Gives the spare segment back; its bytes.
    pub(crate) fn drop_spare(&mut self, hooks: &dyn Segments) -> u64 {
        let Some(spare) = self.spare.take() else {
            return 0;
        };
        let bytes = spare.len() as u64;
        hooks.unmap(spare);
        bytes
    }

    fn seal(&mut self, hooks: &dyn Segments, i: u32) {
        let segment = &mut self.segments[i as usize];
        if segment.live == 0 {
            self.unmap(hooks, i);
            return;
        }
        segment.state = State::Sealed;
        segment.age = self.filed.next_age();
        segment
            .memory
            .iter()
            .for_each(|memory| hooks.sealed(memory));
        self.link(i);
    }

    /// Wipes an object's encoding, which may be of a page that its owner wipes. Its header stays,
    /// for who walks through the segment.
    fn wipe(&mut self, place: Place) {
        let segment = &self.segments[place.segment as usize];
        let read = segment.share != Share::Own || segment.state == State::Leaving;
        if read || self.object(place).is_none() {
            return;
        }
        if let Some(object) = self.segments[place.segment as usize].object_mut(place) {
            object[HEADER as usize..].fill(0);
        }
    }

    /// Drops an object. True when that unmapped its segment.
    pub(crate) fn release(&mut self, hooks: &dyn Segments, place: Place) -> bool {
        let bytes = footprint(place.len);
        let i = place.segment;
        let Some(segment) = self.segments.get(i as usize) else {
            return false;
        };
        let (state, live) = (segment.state, segment.live);
        if state == State::Free || live < bytes {
            debug_assert!(false, "released an object of no segment");
            return false;
        }
        if state == State::Filed {
            self.release_filed(i, bytes);
            return live == bytes;
        }
        self.wipe(place);
        let segment = &mut self.segments[i as usize];
        segment.pages -= 1;
        let left = live - bytes;
        self.sums[segment.share as usize].live -= u64::from(bytes);
        let moves = left == 0 || segment.list(left) != segment.list(live);
        if !self.is_much() {
            self.drop_spare(hooks);
        }
        if moves {
            self.unlink(i);
        }
        self.segments[i as usize].live = left;
        match state {
            // Nobody refers to its bytes. It is not sealed: start over, or with a small one.
            State::Open if left == 0 && self.segments[i as usize].size > self.sizes[0] => {
                self.open[usize::from(self.segments[i as usize].goes_first)] = None;
                self.unmap(hooks, i);
                return true;
            }
            State::Open if left == 0 => self.segments[i as usize].used = 0,
            State::Sealed | State::Damaged if left == 0 => {
                self.unmap(hooks, i);
                return true;
            }
            State::Sealed if moves => self.link(i),
            _ => {}
        }
        false
    }

    /// An object's header and encoding; `None` when there cannot be one at this place.
    pub(crate) fn object(&self, place: Place) -> Option<(Header, &[u8])> {
        let segment = self.segments.get(place.segment as usize)?;
        let end = u64::from(place.offset) + u64::from(footprint(place.len));
        if end > u64::from(segment.used) {
            return None;
        }
        let (head, body) = segment
            .memory
            .as_ref()?
            .get(place.bytes())?
            .split_first_chunk()?;
        Some((Header::from_bytes(*head), body))
    }

    /// The header at a byte of a segment, whoever it belongs to; `None` past the last.
    pub(crate) fn header_at(&self, segment: u32, offset: u32) -> Option<Header> {
        self.object(Place {
            segment,
            offset,
            len: 0,
        })
        .map(|(header, _)| header)
    }

    /// Inverts one bit of an object's encoding, for tests of what reads it.
    pub(crate) fn flip_bit(&mut self, place: Place, bit: u32) -> bool {
        if self.object(place).is_none() || bit / 8 >= HEADER + place.len {
            return false;
        }
        let object = self.segments[place.segment as usize].object_mut(place);
        let byte = object.and_then(|object| object.get_mut(bit as usize / 8));
        byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
    }

    /// Unmaps everything; nothing may be used afterwards.
    pub(crate) fn unmap_all(&mut self, hooks: &dyn Segments) {
        for i in 0..self.segments.len() as u32 {
            if self.segments[i as usize].is_mapped() {
                self.unmap(hooks, i);
            }
        }
        self.drop_spare(hooks);
    }
}
