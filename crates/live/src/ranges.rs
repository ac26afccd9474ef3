//! Sets of ranges of addresses.

use std::collections::BTreeMap;

/// Ranges, none of which overlap: start to end. Neighbours are one.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// Takes a range into the set.
    pub fn insert(&mut self, start: usize, len: usize) {
        let (mut from, mut to) = (start, start + len);
        self.remove(start, len);
        if let Some((&low, _)) = self.0.range(..start).next_back().filter(|r| *r.1 == start) {
            from = low;
        }
        if let Some(high) = self.0.remove(&to) {
            to = high;
        }
        self.0.insert(from, to);
    }

    /// Takes a range out of the set; parts of it may not be in it.
    pub fn remove(&mut self, start: usize, len: usize) {
        let end = start.saturating_add(len);
        let hit = |(from, to): (&usize, &usize)| (*to > start).then_some((*from, *to));
        while let Some((from, to)) = self.0.range(..end).next_back().and_then(hit) {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if to > end {
                self.0.insert(end, to);
            }
        }
    }

    /// Whether all of a range is in the set.
    pub fn contains(&self, start: usize, len: usize) -> bool {
        let end = start.saturating_add(len);
        let last = self.0.range(..=start).next_back();
        last.is_some_and(|(_, to)| end <= *to && start < *to)
    }

    /// Whether a part of a range is in the set.
    pub fn touches(&self, start: usize, len: usize) -> bool {
        let end = start.saturating_add(len);
        let last = self.0.range(..end).next_back();
        last.is_some_and(|(_, to)| *to > start)
    }

    /// A range in parts: start, bytes, and whether the part is outside of the set.
    pub fn parts(&self, start: usize, len: usize) -> Vec<(usize, usize, bool)> {
        let end = start.saturating_add(len);
        let first = self.0.range(..=start).next_back().map_or(start, |r| *r.0);
        let (mut at, mut parts) = (start, Vec::new());
        for (&from, &to) in self.0.range(first..end.max(first)) {
            let (from, to) = (from.max(at), to.min(end));
            if to <= from {
                continue;
            }
            if from > at {
                parts.push((at, from - at, true));
            }
            parts.push((from, to - from, false));
            at = to;
        }
        if at < end {
            parts.push((at, end - at, true));
        }
        parts
    }

    /// All of them: start, bytes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().map(|(from, to)| (*from, to - from))
    }
}
