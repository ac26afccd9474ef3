//! Checks of the books, for tests.

use super::{NIL, Segment, SegmentSet, Share, State, Sum};

impl SegmentSet {
    /// Checks lists and sums; `live[i]` is what the table says segment `i` should hold.
    pub(crate) fn verify(&self, live: &[u64]) -> Result<(), String> {
        let (mut mapped, mut sums) = (0, [Sum::default(); 3]);
        let (mut listed, mut borrowed) = (0, 0);
        for (i, s) in self.segments.iter().enumerate() {
            let expected = live.get(i).copied().unwrap_or(0);
            if s.state == State::Free {
                if expected != 0 {
                    return Err(format!("segment {i} is free but holds {expected} bytes"));
                }
                continue;
            }
            mapped += 1;
            let sum = &mut sums[s.share as usize];
            sum.mapped += u64::from(s.size);
            sum.live += u64::from(s.live);
            listed += u32::from(s.list(s.live).is_some());
            borrowed += if s.share == Share::Borrowed {
                s.written()
            } else {
                0
            };
            if u64::from(s.live) != expected || s.live > s.used || s.used > s.size {
                let Segment { live, used, .. } = s;
                return Err(format!(
                    "segment {i}: live {live} of {used}, table: {expected}"
                ));
            }
            if (s.state == State::Open) != (self.open == Some(i as u32)) {
                return Err(format!(
                    "segment {i} is {:?}, open is {:?}",
                    s.state, self.open
                ));
            }
            if s.live == 0 && s.state != State::Open {
                return Err(format!("segment {i} is mapped for nothing"));
            }
        }
        if (mapped, sums, borrowed) != (self.mapped, self.sums, self.borrowed) {
            let counted = (self.mapped, self.sums, self.borrowed);
            let found = (mapped, sums, borrowed);
            return Err(format!("segments mapped {found:?}, counted {counted:?}"));
        }
        for (share, buckets) in self.buckets.iter().enumerate() {
            for (bucket, &head) in buckets.iter().enumerate() {
                let (mut i, mut prev) = (head, NIL);
                while i != NIL {
                    let s = &self.segments[i as usize];
                    if s.prev != prev || s.list(s.live) != Some((share, bucket)) {
                        return Err(format!("segment {i} does not belong in bucket {bucket}"));
                    }
                    if listed == 0 {
                        return Err(format!("bucket {bucket} has a segment twice"));
                    }
                    listed -= 1;
                    (prev, i) = (i, s.next);
                }
            }
        }
        if listed == 0 {
            Ok(())
        } else {
            Err(format!("{listed} sealed segments in no bucket"))
        }
    }
}
