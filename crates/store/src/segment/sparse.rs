//! What compaction takes: the sealed segments by their share of live bytes.

use super::{NIL, Segment, SegmentSet, Share, State, Sum};

/// Sealed segments stand in buckets by their share of live bytes, in 1/64.
const BUCKETS: usize = 64;

/// The first segment of each bucket: own ones, and lent ones.
pub(super) type Buckets = [[u32; BUCKETS + 1]; 2];

/// Without any segment.
pub(super) const NO_BUCKETS: Buckets = [[NIL; BUCKETS + 1]; 2];

/// One in so many bytes may be dead for each live one before it is worth compaction at once. To
/// keep it so costs up to as many bytes copied for each that is freed (a log-structured file
/// system's price, uniform churn being the worst); what that memory holds otherwise is pages,
/// which cost a fault each.
pub(crate) const LIVE_PER_DEAD: u64 = 12;

/// A segment of which less than one part in so many would be gained is left alone.
const WORTH: usize = 16;

// Where too much is dead, a segment that is worth it is found.
const _: () = assert!(LIVE_PER_DEAD + 1 < WORTH as u64);

impl Segment {
    /// The list that compaction finds it in, if it may, with so many live bytes. By the share of
    /// what was appended: an unused tail is not won back by copying. To copy what is shared
    /// takes memory and gives none back before the children have ended: of what was lent what
    /// is half empty is worth it, of what is borrowed nothing is.
    pub(super) fn list(&self, live: u32) -> Option<(usize, usize)> {
        let bucket = u64::from(live) * BUCKETS as u64 / u64::from(self.used.max(1));
        let listed = match self.share {
            Share::Own => true,
            Share::Lent => bucket <= BUCKETS as u64 / 2,
            Share::Borrowed => false,
        };
        let listed = listed && self.state == State::Sealed;
        listed.then_some((self.share as usize, bucket as usize))
    }
}

impl SegmentSet {
    /// Bytes of segments that no live object uses and none can be appended to.
    pub(crate) fn dead_bytes(&self) -> u64 {
        let each = [Share::Own, Share::Lent, Share::Borrowed];
        each.iter().map(|&share| self.dead(share)).sum()
    }

    fn dead(&self, share: Share) -> u64 {
        let open = self.open.iter().flatten();
        let open = open.map(|&i| &self.segments[i as usize]);
        let room = open
            .filter(|s| s.share == share)
            .map(|s| u64::from(s.room()));
        let Sum { mapped, live } = self.sums[share as usize];
        mapped - live - room.sum::<u64>()
    }

    /// Whether so much is dead that it is worth compaction at once: of what is not shared since
    /// a fork a thirteenth, of what was lent a half. Whatever is live, a segment's bytes may be:
    /// compaction does not reach the open one.
    pub(crate) fn is_sparse(&self) -> bool {
        let most = self.sums[Share::Own as usize].live / LIVE_PER_DEAD + self.allowance();
        self.dead(Share::Own) > most || self.lent_is_sparse()
    }

    fn lent_is_sparse(&self) -> bool {
        self.dead(Share::Lent) > self.sums[Share::Lent as usize].live + self.allowance()
    }

    fn allowance(&self) -> u64 {
        let open = self.open.iter().flatten();
        let open = open.map(|&i| self.segments[i as usize].size);
        u64::from(open.fold(self.sizes[0], u32::max))
    }

    pub(super) fn link(&mut self, i: u32) {
        let segment = &self.segments[i as usize];
        let Some((share, bucket)) = segment.list(segment.live) else {
            return;
        };
        let head = self.buckets[share][bucket];
        self.segments[i as usize].prev = NIL;
        self.segments[i as usize].next = head;
        if head != NIL {
            self.segments[head as usize].prev = i;
        }
        self.buckets[share][bucket] = i;
        self.filed.far_waiting += u32::from(self.segments[i as usize].goes_first);
    }

    pub(super) fn unlink(&mut self, i: u32) {
        let segment = &self.segments[i as usize];
        let Some((share, bucket)) = segment.list(segment.live) else {
            return;
        };
        let (prev, next) = (segment.prev, segment.next);
        self.filed.far_waiting -= u32::from(segment.goes_first);
        if next != NIL {
            self.segments[next as usize].prev = prev;
        }
        if prev != NIL {
            self.segments[prev as usize].next = next;
        } else {
            self.buckets[share][bucket] = next;
        }
    }

    /// The sealed segment with the smallest share of live bytes, give or take 1/64, if at
    /// least 1/16 of it would be gained. Of what was lent only while much of that is dead.
    pub(crate) fn emptiest(&self) -> Option<u32> {
        let first = |share: Share| {
            let worth = &self.buckets[share as usize][..BUCKETS - BUCKETS / WORTH];
            worth.iter().copied().find(|&i| i != NIL)
        };
        let lent = self.lent_is_sparse().then(|| first(Share::Lent)).flatten();
        lent.or_else(|| first(Share::Own))
    }

    /// Takes a segment out of compaction for good.
    pub(crate) fn mark_damaged(&mut self, i: u32) {
        if self.segments[i as usize].state == State::Sealed {
            self.unlink(i);
            self.segments[i as usize].state = State::Damaged;
        }
    }
}
