//! What the program tells of itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::{Part, Sum, Sums};
use crate::figures::percentile;

/// What a thread has seen of its faults.
#[derive(Default)]
pub(super) struct Seen {
    /// Accesses.
    pub ops: u64,
    /// CPU time of the thread, in nanoseconds.
    pub cpu: u64,
    /// ... within those accesses that were faults and had it looked at, and how many these were.
    pub cpu_in_faults: u64,
    pub cpu_looked_at: u64,
    /// Nanoseconds of each fault: until somebody serves it, until the page is installed, until the
    /// thread goes on.
    pub faults: Vec<[u32; 3]>,
}

/// What the program tells of itself. Times are in nanoseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Accesses.
    pub ops: u64,
    /// Seconds in which they were counted.
    pub seconds: f64,
    /// CPU time of the process.
    pub cpu: u64,
    /// ... of the threads that access, within their faults.
    pub cpu_in_faults: u64,
    /// ... and beside them.
    pub cpu_beside: u64,
    /// Faults that were followed.
    pub faults: u64,
    /// Of a fault on average: until somebody serves it, until the page is installed, until the
    /// thread goes on.
    pub latency: [f64; 3],
    /// The fault in the middle.
    pub median: u64,
    /// 1 % take longer.
    pub p99: u64,
    /// Pages that were read back.
    pub read: u64,
    /// Pages that were evicted.
    pub evicted: u64,
    /// CPU time of the clocks.
    pub clocks: u64,
    /// In the order of [`Part::ALL`]: calls, time, CPU time.
    pub parts: Vec<[u64; 3]>,
}

impl Told {
    /// Of what the threads have seen and the parts have come to. `pages`: read back and evicted.
    pub(super) fn new(
        seen: Vec<Seen>,
        elapsed: Duration,
        cpu: u64,
        sums: &Sums,
        pages: [u64; 2],
    ) -> Self {
        let all = |of: fn(&Seen) -> u64| -> u64 { seen.iter().map(of).sum() };
        let faults = || seen.iter().flat_map(|s| &s.faults);
        let count = faults().count() as u64;
        let mean = |stage: usize| {
            let sum: u64 = faults().map(|f| u64::from(f[stage])).sum();
            sum as f64 / count.max(1) as f64
        };
        let mut whole: Vec<u64> = faults()
            .map(|f| f.iter().map(|ns| u64::from(*ns)).sum())
            .collect();
        // Of some, for all.
        let looked_at = all(|s| s.cpu_looked_at).max(1);
        let clocks = looked_at * sums.cost();
        let cpu_in_faults = all(|s| s.cpu_in_faults).saturating_sub(clocks) * count / looked_at;
        Self {
            ops: all(|s| s.ops),
            seconds: elapsed.as_secs_f64(),
            cpu,
            cpu_in_faults,
            cpu_beside: all(|s| s.cpu).saturating_sub(cpu_in_faults),
            faults: count,
            latency: [0, 1, 2].map(mean),
            median: percentile(&mut whole, 50.0),
            p99: percentile(&mut whole, 99.0),
            read: pages[0],
            evicted: pages[1],
            clocks: sums.clocks(),
            parts: (sums.parts().iter())
                .map(|sum| [sum.calls, sum.wall, sum.cpu])
                .collect(),
        }
    }

    /// What a part came to.
    pub fn part(&self, part: Part) -> Sum {
        let [calls, wall, cpu] = self.parts.get(part as usize).copied().unwrap_or_default();
        Sum { calls, wall, cpu }
    }
}
