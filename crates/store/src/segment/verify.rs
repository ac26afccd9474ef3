//! Checks of the books, for tests.

use super::filed::InFile;
use super::{NIL, Segment, SegmentSet, Share, State, Sum};

impl SegmentSet {
    /// Checks lists and sums; `live[i]` is what the table says segment `i` should hold.
    pub(crate) fn verify(&self, live: &[u64]) -> Result<(), String> {
        let (mut mapped, mut sums) = (0, [Sum::default(); 3]);
        let (mut listed, mut borrowed, mut far_waiting) = (0, 0, 0);
        let mut filed = InFile::default();
        for (i, s) in self.segments.iter().enumerate() {
            let expected = live.get(i).copied().unwrap_or(0);
            if s.state == State::Free {
                if expected != 0 {
                    return Err(format!("segment {i} is free but holds {expected} bytes"));
                }
                continue;
            }
            if s.is_mapped() {
                mapped += 1;
                let sum = &mut sums[s.share as usize];
                sum.mapped += u64::from(s.size);
                sum.live += u64::from(s.live);
            } else {
                filed.bytes += u64::from(s.size);
                filed.pages += u64::from(s.pages);
            }
            let is_listed = s.list(s.live).is_some();
            far_waiting += u32::from(is_listed && s.goes_first);
            listed += u32::from(is_listed);
            borrowed += if s.share == Share::Borrowed && s.is_mapped() {
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
            let is_open = self.open[usize::from(s.goes_first)] == Some(i as u32);
            if (s.state == State::Open) != is_open {
                return Err(format!(
                    "segment {i} is {:?}, open is {:?}",
                    s.state, self.open
                ));
            }
            if s.live == 0 && !matches!(s.state, State::Open | State::Leaving) {
                return Err(format!("segment {i} is mapped for nothing"));
            }
        }
        if (mapped, sums, borrowed) != (self.mapped, self.sums, self.borrowed) {
            let counted = (self.mapped, self.sums, self.borrowed);
            let found = (mapped, sums, borrowed);
            return Err(format!("segments mapped {found:?}, counted {counted:?}"));
        }
        if (filed, far_waiting) != (self.filed.now, self.filed.far_waiting) {
            let counted = (self.filed.now, self.filed.far_waiting);
            return Err(format!(
                "in the file {filed:?}, {far_waiting} waiting, counted {counted:?}"
            ));
        }
        self.verify_lists(listed)
    }

    /// Checks that `listed` segments are each in the bucket that is theirs.
    fn verify_lists(&self, mut listed: u32) -> Result<(), String> {
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
