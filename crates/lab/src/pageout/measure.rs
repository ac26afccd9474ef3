//! Timed runs, warm or repeated, and the run that is checked and not timed.

use std::ffi::OsString;

use super::{Case, LEFT, PageoutOptions, PageoutRow};
use crate::child::{Finished, Running, warm};
use crate::host::{cgroup::Cgroup, pss, vmstat, zram};
use crate::live_stats::{LiveStats, StatsFile};
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

/// One case on the sides that run the real program.
pub(super) struct Bench<'a, 'o> {
    pub options: &'a PageoutOptions<'o>,
    pub case: Case,
    pub cgroup: Option<&'a Cgroup>,
}

/// What a checked run found.
struct Checked {
    zero_pages: u64,
    stored_pages: u64,
    stored_bytes: u64,
    /// Anonymous memory left beside the store.
    left: u64,
}

impl Bench<'_, '_> {
    /// One timed run, repeated while it is cold.
    pub fn timed_run(&self, side: Side, measured: &mut Measured) -> Result<(), LabError> {
        let mut best_us = f64::INFINITY;
        for _ in 0..ATTEMPTS {
            let warm_us = self.warm()?;
            let stats = StatsFile::new();
            let cpu_before = self.cgroup_cpu()?;
            let end = self.start(side, &stats, false)?.finish()?;
            if !end.status.success() {
                return Err(end.failure("failed"));
            }
            let fault_us = first_faults(&end)?;
            if fault_us <= warm_us {
                measured.wall_s.push(end.wall_s);
                let tree = self
                    .cgroup_cpu()?
                    .zip(cpu_before)
                    .map(|(after, before)| after - before);
                measured.cpu_s.push(tree.unwrap_or(end.cpu_s));
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
        let stats = StatsFile::new();
        // The device holds its swap header already, and nothing else.
        let before = match side {
            Side::Kernel => Some((zram::stored()?, vmstat("swpout_zero")?)),
            _ => None,
        };
        let mut run = self.start(side, &stats, true)?;
        if !run.wait_for(PAGED_OUT_LINE)? {
            return Err(run
                .finish()?
                .failure("ended before its memory was paged out"));
        }
        let anon = match self.cgroup {
            Some(cgroup) => cgroup.anon()?,
            None => pss::anon_of_tree(run.pid())?,
        };
        let kernel = match before {
            Some((stored, zero)) => Some((
                zram::stored()?.since(stored),
                vmstat("swpout_zero")?.saturating_sub(zero),
            )),
            None => None,
        };
        run.go_on()?;
        let end = run.finish()?;
        let wrong = (!end.status.success() || end.line("checked: ").is_none())
            .then(|| end.failure("the check after paging out failed").to_string());
        let figures = match (kernel, wrong.is_some()) {
            (Some((stored, zero)), _) => Checked {
                zero_pages: zero + stored.same_filled,
                stored_pages: stored.pages,
                stored_bytes: stored.bytes,
                left: anon,
            },
            // A live run that failed may have written no statistics; its own error says more.
            (None, true) => Checked {
                zero_pages: 0,
                stored_pages: 0,
                stored_bytes: 0,
                left: 0,
            },
            (None, false) => {
                let live = LiveStats::read(stats.path())?;
                Checked {
                    zero_pages: live.zero_pages,
                    stored_pages: live.stored_pages,
                    stored_bytes: live.stored_bytes,
                    left: anon.saturating_sub(live.stored_bytes),
                }
            }
        };
        let most = (self.options.size as f64 * LEFT) as u64;
        let error = wrong.or_else(|| {
            (figures.left > most).then(|| {
                format!(
                    "after MADV_PAGEOUT {} bytes of anonymous memory are left beside the store, \
                     more than {most}",
                    figures.left
                )
            })
        });
        let Checked {
            zero_pages,
            stored_pages,
            stored_bytes,
            ..
        } = figures;
        Ok(PageoutRow::new(
            side,
            self.case,
            measured,
            zero_pages,
            stored_pages,
            stored_bytes,
            error,
        ))
    }

    /// Touches and frees as much memory as the run will use, so that the run finds it at hand.
    /// Returns what huge page faults may take, on average, in microseconds: twice what one takes
    /// in memory that was just freed, if that is more than [`WARM_US`].
    fn warm(&self) -> Result<f64, LabError> {
        let size = self.options.size + self.options.size / 16;
        let end = warm(&self.options.program_cmd, size)?;
        let printed = end.line(WARM_LINE).and_then(|us| us.parse::<f64>().ok());
        let best = printed.ok_or_else(|| end.failure("did not print how long a fault took"))?;
        Ok(WARM_US.max(2.0 * best))
    }

    fn start(&self, side: Side, stats: &StatsFile, check: bool) -> Result<Running, LabError> {
        let mut command: Vec<OsString> = Vec::new();
        if side == Side::Live {
            command.push(self.options.deckle.clone().into());
            // No limit, also where one would be taken from a container.
            let fixed = ["run", "--memory-max", "max", "--thp", "always", "--stats"];
            command.extend(fixed.map(OsString::from));
            command.extend([stats.path().into(), "--".into()]);
        }
        command.extend(self.options.program_cmd.iter().cloned());
        command.push("pageout".into());
        command.push((self.options.size >> 20).to_string().into());
        let words = self.case.content().words();
        command.extend(words.into_iter().map(OsString::from));
        if check {
            command.push("--check".into());
        }
        let doors = self.cgroup.map_or(Ok(Vec::new()), Cgroup::doors)?;
        Running::start(
            &format!("pageout, {} on {side}", self.case.name()),
            &command,
            doors,
        )
    }

    fn cgroup_cpu(&self) -> Result<Option<f64>, LabError> {
        self.cgroup.map_or(Ok(None), Cgroup::cpu_seconds)
    }
}

/// Average of the first huge page faults in microseconds, as the program printed it.
fn first_faults(end: &Finished) -> Result<f64, LabError> {
    let printed = end.line(FAULTS_LINE).and_then(|us| us.parse().ok());
    printed.ok_or_else(|| end.failure("did not print how long its first faults took"))
}
