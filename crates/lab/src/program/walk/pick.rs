//! Which record is accessed next.

use crate::content::next;

/// Exponent of [`Pattern::Zipf`]: that of the YCSB benchmark.
const THETA: f64 = 0.99;
/// Terms of the zeta sum that are added up; the rest is its integral, off by less than 1e-6.
const TERMS: usize = 1000;
/// Spreads neighbouring ranks over all records: a prime, next to 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c55;
/// One access of so many is anywhere in [`Pattern::Phases`].
const STRAY: u64 = 16;
/// A phase takes so many accesses for each record of its hot part.
const STAY: usize = 4;

named! {
    /// In which order records are accessed.
    pub enum Pattern {
        /// Each as likely as any other.
        Uniform = "uniform",
        /// By rank, with exponent 0.99; the ranks are scattered over the records.
        Zipf = "zipf",
        /// One after the other, over and over.
        Sequential = "sequential",
        /// The same within the first part, the *reach*.
        Loop = "loop",
        /// Nearly all within a part half as large as the reach, which moves on.
        Phases = "phases",
    }
}

/// An access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    /// The record.
    pub record: usize,
    /// Whether it is written, as a quarter of all are; else only read.
    pub write: bool,
}

/// Picks records of one pattern; the same seed picks the same.
pub(crate) struct Picker {
    pattern: Pattern,
    records: usize,
    /// Records that a loop covers.
    reach: usize,
    zipf: Zipf,
    random: u64,
    /// Accesses until now.
    done: usize,
}

impl Picker {
    /// For records 0 to `records` (not 0), of which a loop covers `reach` (1 to `records`).
    pub fn new(pattern: Pattern, records: usize, reach: usize, seed: u64) -> Self {
        Self {
            pattern,
            records,
            reach: reach.clamp(1, records),
            zipf: Zipf::new(records),
            random: seed,
            done: 0,
        }
    }

    /// The next access.
    pub fn pick(&mut self) -> Access {
        let random = next(&mut self.random);
        let record = match self.pattern {
            Pattern::Uniform => below(random, self.records),
            Pattern::Zipf => scattered(self.zipf.rank(random), self.records),
            Pattern::Sequential => self.done % self.records,
            Pattern::Loop => self.done % self.reach,
            Pattern::Phases => self.in_phase(random),
        };
        self.done += 1;
        let write = next(&mut self.random).is_multiple_of(4);
        Access { record, write }
    }

    fn in_phase(&mut self, random: u64) -> usize {
        let anywhere = below(random, self.records);
        if next(&mut self.random).is_multiple_of(STRAY) {
            return anywhere;
        }
        let hot = (self.reach / 2).max(1);
        let phase = self.done / (hot * STAY);
        (phase * hot + below(random, hot)) % self.records
    }
}

/// A number below `n`, from a random one.
fn below(random: u64, n: usize) -> usize {
    ((u128::from(random) * n as u128) >> 64) as usize
}

/// Another record for each rank: [`SPREAD`] is prime and larger than any number of records, so
/// it has no divisor in common with it.
fn scattered(rank: usize, records: usize) -> usize {
    (rank as u128 * u128::from(SPREAD) % records as u128) as usize
}

/// Ranks by Zipf's law, after Gray and others, "Quickly generating billion-record synthetic
/// databases" (SIGMOD 1994).
struct Zipf {
    n: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(n: usize) -> Self {
        let term = |i: usize| (i as f64).powf(-THETA);
        let terms = n.min(TERMS);
        let sum = |n: usize| (1..=n).map(term).sum::<f64>();
        // Euler and Maclaurin: the integral, and half of the terms at its ends.
        let power = |x: usize| (x as f64).powf(1.0 - THETA) / (1.0 - THETA);
        let rest = power(n) - power(terms) + (term(n) - term(terms)) / 2.0;
        let zeta = sum(terms) + rest;
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - THETA)) / (1.0 - sum(2) / zeta);
        Self {
            n: n as f64,
            zeta,
            eta,
        }
    }

    /// A rank from 0.
    fn rank(&self, random: u64) -> usize {
        let u = (random >> 11) as f64 / (1u64 << 53) as f64;
        let at = u * self.zeta;
        let rank = if at < 1.0 {
            0.0
        } else if at < 1.0 + 0.5f64.powf(THETA) {
            1.0
        } else {
            self.n * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA))
        };
        // Rounding may reach n; with one or two records the formula has no meaning beyond them.
        rank.min(self.n - 1.0).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use std::collections::HashSet;

    const RECORDS: usize = 1000;
    const REACH: usize = 300;
    const PICKS: usize = 100_000;

    fn picks(pattern: Pattern) -> Vec<Access> {
        let mut picker = Picker::new(pattern, RECORDS, REACH, 7);
        (0..PICKS).map(|_| picker.pick()).collect()
    }

    fn counts(pattern: Pattern) -> Vec<usize> {
        let mut counts = vec![0; RECORDS];
        for access in picks(pattern) {
            counts[access.record] += 1;
        }
        counts
    }

    #[test]
    fn r150_a_quarter_of_the_accesses_of_each_pattern_writes() {
        for pattern in Pattern::ALL {
            let writes = picks(pattern).iter().filter(|a| a.write).count();
            let part = writes as f64 / PICKS as f64;
            assert!((part - 0.25).abs() < 0.01, "{}: {part}", pattern.name());
        }
    }

    #[test]
    fn r150_uniform_picks_are_even() {
        let counts = counts(Pattern::Uniform);
        let mean = (PICKS / RECORDS) as f64;
        let chi: f64 = (counts.iter())
            .map(|n| (*n as f64 - mean).powi(2) / mean)
            .sum();
        // 999 degrees of freedom: mean 999, standard deviation 45.
        assert!((800.0..1200.0).contains(&chi), "chi squared {chi}");
    }

    #[test]
    fn r150_zipf_picks_follow_the_law_and_are_scattered() {
        let mut counts = counts(Pattern::Zipf);
        let neighbour = counts[0].abs_diff(counts[1]);
        assert!(neighbour > PICKS / 50, "the first rank is beside the next");
        counts.sort_by_key(|n| std::cmp::Reverse(*n));
        let zeta: f64 = (1..=RECORDS).map(|i| (i as f64).powf(-THETA)).sum();
        for (rank, tolerance) in [(1, 0.03), (2, 0.05), (10, 0.25), (100, 0.25)] {
            let want = PICKS as f64 * (rank as f64).powf(-THETA) / zeta;
            let found = counts[rank - 1] as f64;
            assert!((found / want - 1.0).abs() < tolerance, "{rank}: {found}");
        }
        let sums = [900usize, 5000, 131_072].map(|n| {
            let exact: f64 = (1..=n).map(|i| (i as f64).powf(-THETA)).sum();
            (Zipf::new(n).zeta / exact - 1.0).abs()
        });
        assert!(sums.iter().all(|miss| *miss < 1e-6), "{sums:?}");
    }

    #[test]
    fn r150_ranks_are_scattered_to_records_of_their_own() {
        for records in [1, 2, 3, 999, 1000, 1024] {
            let all: HashSet<usize> = (0..records).map(|r| scattered(r, records)).collect();
            assert_eq!(all.len(), records);
        }
    }

    #[test]
    fn r150_sequences_and_loops_come_back_to_their_beginning() {
        let of = |pattern, n: usize| picks(pattern)[n].record;
        assert_eq!(of(Pattern::Sequential, RECORDS - 1), RECORDS - 1);
        assert_eq!(of(Pattern::Sequential, RECORDS), 0);
        assert_eq!(of(Pattern::Loop, REACH - 1), REACH - 1);
        assert_eq!(of(Pattern::Loop, REACH), 0);
    }

    #[test]
    fn r150_phases_stay_in_one_part_and_move_on() {
        let all = picks(Pattern::Phases);
        let hot = REACH / 2;
        for (n, phase) in all.chunks_exact(hot * STAY).enumerate().take(20) {
            let inside = |a: &&Access| (a.record + RECORDS - n * hot % RECORDS) % RECORDS < hot;
            let part = phase.iter().filter(inside).count() as f64 / phase.len() as f64;
            assert!(part > 0.9 && part < 1.0, "phase {n}: {part}");
        }
    }

    #[test]
    fn r150_few_records_are_all_picked_and_none_beyond() {
        for pattern in Pattern::ALL {
            for records in [1, 2, 3] {
                let mut picker = Picker::new(pattern, records, records, 1);
                let all: HashSet<usize> = (0..1000).map(|_| picker.pick().record).collect();
                assert_eq!(all.len(), records, "{} of {records}", pattern.name());
            }
        }
    }

    #[test]
    fn r150_patterns_are_named_once() {
        for pattern in Pattern::ALL {
            assert_eq!(Pattern::from_str(pattern.name(), false).unwrap(), pattern);
        }
        assert!(Pattern::from_str("random", false).is_err());
    }
}
