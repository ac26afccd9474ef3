//! Segments that a fork has copied: who is charged for them.

use super::{SegmentSet, Segments, State};
use crate::share::Share;
use deckle_sys::mapping::Advice;

impl SegmentSet {
    fn share(&mut self, from: Share, to: Share) {
        for i in 0..self.segments.len() {
            let segment = &self.segments[i];
            let is_filed = segment.state == State::Filed;
            // Of what is in a file nobody knows here who reads it: see `unlend_file`.
            let stays = is_filed && (from, to) == (Share::Lent, Share::Own);
            if segment.state == State::Free || segment.share != from || stays {
                continue;
            }
            let mapped = u64::from(segment.is_mapped());
            let size = u64::from(segment.size) * mapped;
            let live = u64::from(segment.live) * mapped;
            self.unlink(i as u32);
            self.segments[i].share = to;
            self.link(i as u32);
            for (share, sign) in [(from, -1), (to, 1)] {
                let sum = &mut self.sums[share as usize];
                sum.mapped = sum.mapped.wrapping_add_signed(sign * size as i64);
                sum.live = sum.live.wrapping_add_signed(sign * live as i64);
            }
        }
    }

    /// Before a fork, by the parent: all there is is shared from now on, at its charge. Returns
    /// the number of the fork.
    pub(crate) fn lend(&mut self, hooks: &dyn Segments) -> u64 {
        // Or the child would have it, too, at nobody's charge.
        self.drop_spare(hooks);
        self.own();
        self.share(Share::Own, Share::Lent);
        self.filed.lend();
        self.ghosts.fork()
    }

    /// Only children of the fork of this number and later ones share anything still; `None`:
    /// nobody does.
    pub(crate) fn unlend(&mut self, oldest: Option<u64>) {
        self.ghosts.forget(oldest);
        if oldest.is_none() {
            self.share(Share::Lent, Share::Own);
        }
    }

    /// After a fork, by the child: what its parent lent is borrowed. The open segment, which
    /// the parent goes on writing, is sealed here, and ends where it is written.
    pub(crate) fn borrow_lent(&mut self, hooks: &dyn Segments) {
        self.ghosts.forget(None);
        self.filed.disown();
        self.share(Share::Lent, Share::Borrowed);
        let borrowed = self.segments.iter();
        self.borrowed = borrowed
            .filter(|s| s.share == Share::Borrowed && s.is_mapped())
            .map(|s| s.written())
            .sum();
        for open in core::mem::take(&mut self.open).into_iter().flatten() {
            self.cut(open);
            self.seal(hooks, open);
        }
    }

    /// Gives back what an open segment has no object in: a parent that goes on there writes pages
    /// of its own, and these would be zeros that the child alone has.
    fn cut(&mut self, i: u32) {
        let segment = &mut self.segments[i as usize];
        let (from, size) = (segment.written() as u32, segment.size);
        let Some(memory) = segment.memory.as_mut() else {
            return;
        };
        let rest = from as usize..size as usize;
        if memory.advise(rest, Advice::DontNeed).is_ok() {
            segment.size = from;
            self.sums[segment.share as usize].mapped -= u64::from(size - from);
        }
    }

    /// What is borrowed is charged here from now on.
    pub(crate) fn own(&mut self) {
        self.share(Share::Borrowed, Share::Own);
        self.borrowed = 0;
    }

    /// Whether a segment is lent or borrowed, and in memory: in a file it takes room of its own.
    pub(crate) fn is_shared(&self, segment: u32) -> bool {
        let segment = self.segments.get(segment as usize);
        segment.is_some_and(|s| s.share != Share::Own && s.is_mapped())
    }

    /// Bytes of borrowed segments that the parent is charged for.
    pub(crate) fn borrowed(&self) -> u64 {
        self.borrowed
    }

    /// Bytes of lent segments that are unmapped here but perhaps not by those who borrow them.
    pub(crate) fn ghost(&self) -> u64 {
        self.ghosts.bytes()
    }
}
