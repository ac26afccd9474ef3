//! Segments that are in a file: sealed ones are written there, the oldest first, and their memory
//! is given back.
//!
//! What a fork has shared is neither written, since that would give nothing back, nor is its place
//! in the file used anew while a child may read it.

use super::{Segment, SegmentSet, Segments, Share, State, footprint};
use crate::swapfile::{BLOCK, Extent};
use deckle_sys::memory::Lent;
use std::collections::VecDeque;

/// Bytes of a segment that goes to the file first: little is won with one before it is written.
pub(super) const FAR_BYTES: u32 = 256 << 10;

/// A place in this process's file that holds nothing any more.
pub(crate) struct Vacant {
    pub(crate) block: u32,
    /// Bytes of the segment that was there.
    pub(crate) size: u32,
}

/// What is in files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InFile {
    /// Bytes of the segments.
    pub(crate) bytes: u64,
    /// Pages that are not freed.
    pub(crate) pages: u64,
}

/// The books of what is in files.
#[derive(Default)]
pub(super) struct Filed {
    pub(super) now: InFile,
    /// Segments that go first, are sealed, and may be written.
    pub(super) far_waiting: u32,
    /// Segments that were sealed until now.
    sealed: u64,
    /// Number of the own file.
    own: u64,
    /// Forks until now.
    forks: u64,
    /// Places that hold nothing any more, for who has no lock to give back.
    vacant: Vec<Vacant>,
    /// Such that children may read, by the number of forks when they became so.
    lent: VecDeque<(u64, Vacant)>,
}

impl Filed {
    pub(super) fn next_age(&mut self) -> u64 {
        self.sealed += 1;
        self.sealed
    }

    /// Notes that a place holds nothing; without memory for that it is lost, as is room on the
    /// disk.
    fn vacate(&mut self, extent: Extent, size: u32, share: Share) {
        let vacant = Vacant {
            block: extent.block,
            size,
        };
        match share {
            _ if extent.file != self.own => {}
            Share::Lent if self.lent.try_reserve(1).is_ok() => {
                self.lent.push_back((self.forks, vacant));
            }
            Share::Own if self.vacant.try_reserve(1).is_ok() => self.vacant.push(vacant),
            _ => {}
        }
    }

    fn forget_lent(&mut self, oldest: u64) {
        while self.lent.front().is_some_and(|(forks, _)| *forks < oldest)
            && self.vacant.try_reserve(1).is_ok()
            && let Some((_, vacant)) = self.lent.pop_front()
        {
            self.vacant.push(vacant);
        }
    }

    /// Before a fork.
    pub(super) fn lend(&mut self) {
        self.forks += 1;
    }

    /// In a child: the parent's file is not its own.
    pub(super) fn disown(&mut self) {
        self.own = 0;
        self.vacant.clear();
        self.lent.clear();
    }
}

/// A segment that is being written.
pub(crate) struct Outgoing {
    pub(crate) segment: u32,
    /// Its memory, which stays and does not change until [`SegmentSet::sent`].
    pub(crate) memory: Lent,
    /// Bytes to be written, whole blocks.
    pub(crate) bytes: u32,
    /// Bytes of the segment.
    pub(crate) size: u32,
}

/// A segment in the file, to be emptied.
#[derive(Clone, Copy)]
pub(crate) struct Sparse {
    pub(crate) segment: u32,
    pub(crate) extent: Extent,
    age: u64,
    /// Bytes that were appended.
    pub(crate) used: u32,
    pub(crate) size: u32,
}

impl SegmentSet {
    /// Takes the oldest segment for writing, of those that go first if there is one.
    pub(crate) fn send(&mut self) -> Option<Outgoing> {
        let all = (0..).zip(&self.segments);
        let sealed = all.filter(|(_, s)| s.state == State::Sealed && s.share == Share::Own);
        let (segment, _) = sealed.min_by_key(|(_, s)| (!s.goes_first, s.age))?;
        self.unlink(segment);
        let s = &mut self.segments[segment as usize];
        s.state = State::Leaving;
        Some(Outgoing {
            segment,
            memory: s.memory.as_mut()?.lend()?,
            bytes: s.used.next_multiple_of(BLOCK).min(s.size),
            size: s.size,
        })
    }

    /// It was written there, and its memory is not needed any more; or was not, and it is as
    /// before. Returns how many pages of it are in the file now.
    pub(crate) fn sent(&mut self, hooks: &dyn Segments, out: Outgoing, to: Option<Extent>) -> u64 {
        let i = out.segment;
        let s = &mut self.segments[i as usize];
        debug_assert_eq!(s.state, State::Leaving);
        s.state = State::Sealed;
        if let Some(memory) = &mut s.memory {
            memory.take_back(out.memory);
        }
        self.filed.own = to.map_or(self.filed.own, |extent| extent.file);
        // Nobody appends to it, but all of it may have been freed, or lent, meanwhile.
        if s.live > 0
            && s.share == Share::Own
            && let Some(extent) = to
        {
            return self.file(hooks, i, extent);
        }
        if let Some(extent) = to {
            self.filed.vacate(extent, out.size, Share::Own);
        }
        match self.segments[i as usize].live {
            0 => self.unmap(hooks, i),
            _ => self.link(i),
        }
        0
    }

    fn file(&mut self, hooks: &dyn Segments, i: u32, extent: Extent) -> u64 {
        let s = &mut self.segments[i as usize];
        let filed = Segment {
            state: State::Filed,
            memory: None,
            extent,
            ..*s
        };
        let before = core::mem::replace(s, filed);
        let pages = u64::from(before.pages);
        self.filed.now.bytes += u64::from(before.size);
        self.filed.now.pages += pages;
        let sum = &mut self.sums[Share::Own as usize];
        sum.mapped -= u64::from(before.size);
        sum.live -= u64::from(before.live);
        self.give_back(hooks, before);
        pages
    }

    /// Drops an object of a segment in the file.
    pub(super) fn release_filed(&mut self, i: u32, bytes: u32) {
        let s = &mut self.segments[i as usize];
        s.live -= bytes;
        s.pages -= 1;
        self.filed.now.pages -= 1;
        if s.live == 0 {
            let (extent, size, share) = (s.extent, s.size, s.share);
            (s.state, s.share, s.next) = (State::Free, Share::Own, self.free);
            self.free = i;
            self.filed.now.bytes -= u64::from(size);
            self.filed.vacate(extent, size, share);
        }
    }

    /// The file that an object is in, and the byte of it; `None`: it is not in one.
    pub(crate) fn spot(&self, place: crate::table::Place) -> Option<(u64, u64)> {
        let s = self.segments.get(place.segment as usize)?;
        let end = u64::from(place.offset) + u64::from(footprint(place.len));
        let there = s.state == State::Filed && end <= u64::from(s.used);
        there.then(|| (s.extent.file, s.extent.at() + u64::from(place.offset)))
    }

    /// What is in files.
    pub(crate) fn in_file(&self) -> InFile {
        self.filed.now
    }

    /// Whether others may read what is in the own file, or its places that hold nothing here.
    pub(crate) fn lends_file(&self) -> bool {
        let lent = |s: &Segment| s.state == State::Filed && s.share == Share::Lent;
        !self.filed.lent.is_empty() || self.segments.iter().any(lent)
    }

    /// Only processes that came by the fork of this number or a later one read the own file;
    /// `None`: nobody does. The children's children are among them.
    pub(crate) fn unlend_file(&mut self, oldest: Option<u64>) {
        self.filed.forget_lent(oldest.unwrap_or(u64::MAX));
        let segments = self.segments.iter_mut().filter(|_| oldest.is_none());
        for s in segments.filter(|s| s.state == State::Filed && s.share == Share::Lent) {
            s.share = Share::Own;
        }
    }

    /// Whether segments that go first wait to be written.
    pub(crate) fn far_waits(&self) -> bool {
        self.filed.far_waiting > 0
    }

    /// The places in the file that hold nothing any more; asked for until there is none.
    pub(crate) fn take_vacant(&mut self) -> Option<Vacant> {
        self.filed.vacant.pop()
    }

    pub(crate) fn has_vacant(&self) -> bool {
        !self.filed.vacant.is_empty()
    }

    /// Numbers of the files in which something is, some more than once.
    pub(crate) fn files(&self) -> impl Iterator<Item = u64> {
        let filed = self.segments.iter().filter(|s| s.state == State::Filed);
        filed.map(|s| s.extent.file)
    }

    /// Bytes of live objects in the own file that may be moved.
    pub(crate) fn own_filed_live(&self) -> u64 {
        let own = self.segments.iter().filter(|s| self.is_own_filed(s));
        own.map(|s| u64::from(s.live)).sum()
    }

    fn is_own_filed(&self, s: &Segment) -> bool {
        s.state == State::Filed && s.share == Share::Own && s.extent.file == self.filed.own
    }

    /// Of the segments in the own file the one with the fewest live bytes, if they are at most so
    /// many quarters of it.
    pub(crate) fn emptiest_filed(&self, quarters: u32) -> Option<Sparse> {
        let all = (0..).zip(&self.segments);
        let own = all.filter(|(_, s)| self.is_own_filed(s) && !s.stuck);
        let (segment, s) = own.min_by_key(|(_, s)| s.live)?;
        if s.live > s.used / 4 * quarters {
            return None;
        }
        Some(Sparse {
            segment,
            extent: s.extent,
            age: s.age,
            used: s.used,
            size: s.size,
        })
    }

    /// Whether it is where it was.
    pub(crate) fn is_still(&self, sparse: &Sparse) -> bool {
        let s = &self.segments[sparse.segment as usize];
        s.state == State::Filed && s.age == sparse.age
    }

    /// It could not be emptied, and is not tried again.
    pub(crate) fn leave(&mut self, sparse: &Sparse) {
        if self.is_still(sparse) {
            self.segments[sparse.segment as usize].stuck = true;
        }
    }
}
