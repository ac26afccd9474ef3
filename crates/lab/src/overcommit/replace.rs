//! Which page to evict: how often the manager has to read a page back for an access, on the
//! software machine, beside known policies that see the same accesses and have as many pages.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use super::Case;
use crate::program::walk::Pattern;

/// What the accesses of one case came to. Misses are told for each access that counts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Replacement {
    /// In which order records were accessed.
    pub pattern: Pattern,
    /// Bytes of a record.
    pub record: usize,
    /// Accesses that count.
    pub accesses: u64,
    /// Pages that the manager had resident in the mean, and each of the policies always.
    pub resident_pages: u64,
    /// Accesses for which the manager had to read a page back.
    pub deckle: f64,
    /// Pages that it read back, those ahead of need too.
    pub deckle_read: f64,
    /// Who was read first goes first.
    pub fifo: f64,
    /// Who was used longest ago goes first.
    pub lru: f64,
    /// Who will be used last goes first (Belady): what is not to be had without knowing what comes.
    pub min: f64,
}

/// The accesses of one case, as pages, and what the manager made of them.
#[derive(Clone, Default, Debug)]
pub struct Trace {
    /// The page of each access, the fill's before all.
    pub pages: Vec<u32>,
    /// So many at the start do not count.
    pub warm: usize,
    /// Pages resident in the mean while they counted.
    pub resident: u64,
    /// Accesses that waited for a page to be read back.
    pub missed: u64,
    /// Pages read back.
    pub read: u64,
}

impl Replacement {
    pub(super) fn of(case: Case, trace: &Trace) -> Self {
        let accesses = (trace.pages.len() - trace.warm) as u64;
        let part = |n: u64| n as f64 / accesses.max(1) as f64;
        let room = trace.resident.max(1) as usize;
        Self {
            pattern: case.pattern,
            record: case.record,
            accesses,
            resident_pages: trace.resident,
            deckle: part(trace.missed),
            deckle_read: part(trace.read),
            fifo: part(fifo(trace, room)),
            lru: part(lru(trace, room)),
            min: part(min(trace, room)),
        }
    }
}

fn fifo(trace: &Trace, room: usize) -> u64 {
    misses(trace, room, |n, since| since.unwrap_or(n))
}

fn lru(trace: &Trace, room: usize) -> u64 {
    misses(trace, room, |n, _| n)
}

fn min(trace: &Trace, room: usize) -> u64 {
    // When each access's page is used again.
    let (mut next, mut seen) = (vec![usize::MAX; trace.pages.len()], HashMap::new());
    for (n, page) in trace.pages.iter().enumerate().rev() {
        next[n] = seen.insert(*page, n).unwrap_or(usize::MAX);
    }
    misses(trace, room, |n, _| usize::MAX - next[n])
}

/// Misses of a policy that evicts the page of the least rank: what `rank` says at each access, by
/// the number of that and the rank that the page has had, if it was there.
fn misses(trace: &Trace, room: usize, rank: impl Fn(usize, Option<usize>) -> usize) -> u64 {
    let (mut held, mut by_rank) = (HashMap::new(), BTreeSet::new());
    let mut missed = 0;
    for (n, page) in trace.pages.iter().enumerate() {
        let before = held.get(page).copied();
        let now = rank(n, before);
        match before {
            Some(before) => {
                by_rank.remove(&(before, *page));
            }
            None => missed += u64::from(n >= trace.warm),
        }
        held.insert(*page, now);
        by_rank.insert((now, *page));
        if by_rank.len() > room {
            by_rank.pop_first().map(|(_, gone)| held.remove(&gone));
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(pages: &[u32], warm: usize) -> Trace {
        Trace {
            pages: pages.to_vec(),
            warm,
            ..Trace::default()
        }
    }

    /// The reference string of Belady, Nelson and Shedler (1969), with its anomaly of FIFO.
    const BELADY: [u32; 12] = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];

    #[test]
    fn policies_miss_as_often_as_is_known_of_them() {
        let t = trace(&BELADY, 0);
        assert_eq!((fifo(&t, 3), fifo(&t, 4)), (9, 10));
        assert_eq!((lru(&t, 3), lru(&t, 4)), (10, 8));
        assert_eq!((min(&t, 3), min(&t, 4)), (7, 6));
        let t = trace(&BELADY, 7);
        assert_eq!((fifo(&t, 3), lru(&t, 3), min(&t, 3)), (2, 3, 2));
    }

    #[test]
    fn no_policy_beats_min_and_room_for_all_misses_nothing() {
        let mut seed = 1u64;
        let random = (0..20_000).map(|_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 40) as u32 % 200 % (1 + (seed >> 34) as u32 % 200)
        });
        let pages: Vec<u32> = (0..200).chain(random).collect();
        let t = trace(&pages, 2000);
        for room in [1, 10, 50, 150] {
            let best = min(&t, room);
            assert!(best <= lru(&t, room) && best <= fifo(&t, room), "{room}");
            assert!(best > 0);
        }
        assert_eq!((fifo(&t, 200), lru(&t, 200), min(&t, 200)), (0, 0, 0));
    }
}
