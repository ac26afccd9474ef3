//! Checks of the books, for tests.

use super::{NIL, Segment, SegmentSet, State};

impl SegmentSet {
    /// Checks lists and sums; `live[i]` is what the table says segment `i` should hold.
    pub(crate) fn verify(&self, live: &[u64]) -> Result<(), String> {
        let (mut mapped, mut mapped_bytes) = (0, 0);
        let mut sealed = 0;
        for (i, s) in self.segments.iter().enumerate() {
            let expected = live.get(i).copied().unwrap_or(0);
            if s.state == State::Free {
                if expected != 0 {
                    return Err(format!("segment {i} is free but holds {expected} bytes"));
                }
                continue;
            }
            mapped += 1;
            mapped_bytes += u64::from(s.size);
            sealed += u32::from(s.state == State::Sealed);
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
        if (mapped, mapped_bytes) != (self.mapped, self.mapped_bytes)
            || live.iter().sum::<u64>() != self.live
        {
            return Err(format!("{mapped} segments mapped, counted {}", self.mapped));
        }
        for (bucket, &head) in self.buckets.iter().enumerate() {
            let (mut i, mut prev) = (head, NIL);
            while i != NIL {
                let s = &self.segments[i as usize];
                if s.state != State::Sealed
                    || s.prev != prev
                    || self.bucket(s.live, s.used) != bucket
                {
                    return Err(format!("segment {i} does not belong in bucket {bucket}"));
                }
                if sealed == 0 {
                    return Err(format!("bucket {bucket} has a segment twice"));
                }
                sealed -= 1;
                (prev, i) = (i, s.next);
            }
        }
        if sealed == 0 {
            Ok(())
        } else {
            Err(format!("{sealed} sealed segments in no bucket"))
        }
    }
}
