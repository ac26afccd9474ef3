//! Timed runs, warm or repeated, and the run that is checked and not timed.

use super::{Case, LEFT, PageoutRow};
use crate::child::{Finished, Running};
use crate::experiment::words;
use crate::host::{pss, vmstat, zram};
use crate::live_stats::{LiveStats, TempFile};
use crate::machines::Machines;
use crate::program::pageout::{FAULTS_LINE, PAGED_OUT_LINE};
use crate::program::warm::WARM_LINE;
use crate::{LabError, Side};

/// A run whose first huge page faults average above this many microseconds was cold, unless the
/// machine is slower than that (see [`Bench::warm`]). A cold fault takes milliseconds.
const WARM_US: f64 = 200.0;
/// Cold runs in a row before the machine is given up.
const ATTEMPTS: usize = 10;

/// Timed runs of one row.
#[derive(Default, Debug)]
pub(super) struct Measured {
    /// Wall times in seconds.
    pub wall_s: Vec<f64>,
    /// CPU times of the tree in seconds.
    pub cpu_s: Vec<f64>,
    /// Runs discarded as cold.
    pub discarded: usize,
}

/// What became of the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Zero-filled pages that were dropped.
    pub zero_pages: u64,
    /// Pages that were compressed and kept.
    pub stored_pages: u64,
    /// Their size in the store, in bytes.
    pub stored_bytes: u64,
}

impl Stored {
    /// What the kernel has counted until now. The device holds its swap header from the start.
    fn of_kernel() -> Result<Self, LabError> {
        let zram = zram::stored()?;
        Ok(Self {
            zero_pages: vmstat("swpout_zero")? + zram.same_filled,
            stored_pages: zram.pages,
            stored_bytes: zram.bytes,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            zero_pages: self.zero_pages.saturating_sub(before.zero_pages),
            stored_pages: self.stored_pages.saturating_sub(before.stored_pages),
            stored_bytes: self.stored_bytes.saturating_sub(before.stored_bytes),
        }
    }

    fn of_live(stats: &TempFile) -> Result<Self, LabError> {
        let live = LiveStats::read(stats.path())?;
        Ok(Self {
            zero_pages: live.counters.swpout_zero,
            stored_pages: live.counters.pswpout,
            stored_bytes: live.peak.stored_bytes,
        })
    }
}

/// One case on the sides that run the real program.
pub(super) struct Bench<'a> {
    pub size: usize,
    pub case: Case,
    pub machines: &'a Machines<'a>,
}

impl Bench<'_> {
    /// One timed run, repeated while it is cold.
    pub fn timed_run(&self, side: Side, measured: &mut Measured) -> Result<(), LabError> {
        let mut best_us = f64::INFINITY;
        for _ in 0..ATTEMPTS {
            let warm_us = self.warm()?;
            let stats = TempFile::new("stats.json");
            let before = self.machines.cpu()?;
            let end = self.start(side, &stats, "")?.succeed()?;
            let fault_us = end.told(FAULTS_LINE, |us| us.parse().ok())?;
            if fault_us <= warm_us {
                measured.wall_s.push(end.wall_s);
                let tree = self.machines.cpu()?.zip(before);
                measured
                    .cpu_s
                    .push(tree.map_or(end.cpu_s, |(after, before)| after - before));
                return Ok(());
            }
            best_us = best_us.min(fault_us);
            measured.discarded += 1;
        }
        Err(LabError::Cold {
            attempts: ATTEMPTS,
            best_us,
        })
    }

    /// The row, with the figures of one more run that is checked and not timed.
    pub fn checked_row(&self, side: Side, measured: Measured) -> Result<PageoutRow, LabError> {
        let stats = TempFile::new("stats.json");
        let kernel = || (side == Side::Kernel).then(Stored::of_kernel).transpose();
        let before = kernel()?;
        let mut run = self.start(side, &stats, " --check")?;
        if !run.wait_for(PAGED_OUT_LINE)? {
            let end = run.finish()?;
            return Err(end.failure("ended before its memory was paged out"));
        }
        let anon = match &self.machines.cgroup {
            Some(cgroup) => cgroup.anon()?,
            None => pss::anon_of_tree(run.pid())?,
        };
        let after = kernel()?;
        run.go_on()?;
        let end = run.finish()?;
        let right = end.status.success() && end.line("checked: ").is_some();
        let (stored, left) = match (after.zip(before), right) {
            (Some((after, before)), _) => (after.since(before), anon),
            // A live run that failed may have written no statistics; its own error says more.
            (None, false) => (Stored::default(), 0),
            (None, true) => {
                let stored = Stored::of_live(&stats)?;
                (stored, anon.saturating_sub(stored.stored_bytes))
            }
        };
        let error = self.wrong(&end, right, left);
        Ok(PageoutRow::new(side, self.case, measured, stored, error))
    }

    /// Why a checked run does not count.
    fn wrong(&self, end: &Finished, right: bool, left: u64) -> Option<String> {
        let most = (self.size as f64 * LEFT) as u64;
        if !right {
            return Some(end.failure("the check after paging out failed").to_string());
        }
        (left > most).then(|| {
            format!(
                "after MADV_PAGEOUT {left} bytes of anonymous memory are left beside the store, \
                 more than {most}"
            )
        })
    }

    /// Touches and frees as much memory as the run will use, so that the run finds it at hand.
    /// Returns what huge page faults may take, on average, in microseconds: twice what one takes
    /// in memory that was just freed, if that is more than [`WARM_US`].
    fn warm(&self) -> Result<f64, LabError> {
        let end = self.machines.lab.warm(self.size + self.size / 16)?;
        let best: f64 = end.told(WARM_LINE, |us| us.parse().ok())?;
        Ok(WARM_US.max(2.0 * best))
    }

    fn start(&self, side: Side, stats: &TempFile, check: &str) -> Result<Running, LabError> {
        // No limit, also where one would be taken from a container.
        let live = words("--memory-max max --thp always");
        let (mib, content) = (self.size >> 20, self.case.content().words());
        let program = format!("pageout {mib} {content}{check}");
        let what = format!("pageout, {}", self.case);
        self.machines
            .start(&what, side, live, Some(stats.path()), &program)
    }
}
