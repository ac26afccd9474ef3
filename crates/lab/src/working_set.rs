//! A working set that does not fit into memory.

use crate::LabError;
use crate::experiment::bad;
use crate::host;
use crate::program::walk::RATIO;
use crate::size::{self, human};

/// The smallest: in less memory what the program needs beside it counts.
const SMALLEST: u64 = 32 << 20;

/// How large it is, in how much memory, and for how long it is used.
#[derive(Clone, Copy, PartialEq, Debug, clap::Args)]
pub struct WorkingSet {
    /// Memory, as a part of the working set: 0.39 to 1.
    #[arg(long, default_value_t = 0.5, value_name = "R")]
    pub ratio: f64,
    /// Size of the working set, 32M or more.
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    #[arg(value_parser = |text: &str| size::parse(text).map(|bytes| bytes as u64))]
    pub size: u64,
    /// For how long accesses are counted in a run; a fourth of it before that they are not.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub seconds: f64,
}

impl WorkingSet {
    /// RAM that it may use, in bytes.
    pub fn memory(&self) -> u64 {
        (self.size as f64 * self.ratio) as u64 >> 20 << 20
    }

    /// Refuses what makes no sense: at most so many threads, at most one for each MiB.
    pub(crate) fn check(&self, threads: &[usize], most: usize) -> Result<(), LabError> {
        let (size, seconds) = (self.size, self.seconds);
        if size < SMALLEST || !size.is_multiple_of(1 << 20) {
            let least = human(SMALLEST);
            return bad(format!(
                "size of {size} bytes: must be a multiple of 1 MiB, and {least} at least"
            ));
        }
        // Compressed whole it takes a third, and something must be left to work with.
        let least = 1.0 / RATIO + 0.05;
        if !(least..=1.0).contains(&self.ratio) {
            // Rounded up, or the value that is told were itself refused.
            let (ratio, told) = (self.ratio, (least * 100.0).ceil() / 100.0);
            return bad(format!(
                "--ratio {ratio}: must be from {told}, below which content of {RATIO}:1 does not \
                 fit, to 1"
            ));
        }
        if !(0.1..=600.0).contains(&seconds) {
            return bad(format!("--seconds {seconds}: must be 0.1 to 600"));
        }
        let most = most.min((size >> 20) as usize);
        if let Some(threads) = threads.iter().find(|n| !(1..=most).contains(n)) {
            return bad(format!("--threads {threads}: must be 1 to {most}"));
        }
        // All of it is in memory, compressed or not, and a little more while the host warms.
        host::fits(size, size.saturating_add(size / 4))
    }
}
