//! Warmed runs of the program, on either side.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use super::equal::{self, Found};
use super::{Case, Overcommit};
use crate::child::{Finished, Running};
use crate::experiment::words;
use crate::host::cgroup::Cgroup;
use crate::host::{vmstat, zram};
use crate::live_stats::{LiveStats, TempFile};
use crate::machines::Machines;
use crate::program::walk::{SETTLED_LINE, WALKED_LINE, Walked};
use crate::{LabError, Side};

/// A run that was killed for lack of memory is repeated so often.
pub(super) const REPEATS: usize = 3;
/// Seconds of a run by which the kernel's limit is found, and that of its first part.
const SHORT: (f64, f64) = (0.3, 0.1);
/// A run that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);

/// What one run came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// Accesses that were counted, of all threads.
    pub ops: u64,
    /// The same in a second.
    pub sum_per_s: f64,
    /// Those of the slowest thread in a second, times the number of threads.
    pub ops_per_s: f64,
    /// Seconds that the fill took.
    pub fill_s: f64,
    /// CPU time in the time that counts of all processes, in seconds, with what manages their
    /// memory; the kernel's own threads are not in it. None where nobody counts it.
    pub cpu_s: Option<f64>,
    /// Page faults of the program in the time that counts.
    pub faults: u64,
    /// Pages that were stored, in the whole run.
    pub stored: u64,
    /// Pages that were read back, in the whole run.
    pub read: u64,
    /// The limit, in bytes.
    pub limit: u64,
    /// RAM that was used for pages that are stored, in bytes: at most for live, for the kernel
    /// that of zram before or after the time that counts, whichever is more.
    pub store: u64,
    /// RAM in bytes: of live the most that was charged, of the kernel the limit and zram.
    pub ram: u64,
    /// What the host has charged for all processes after the time that counts, in bytes, with
    /// zram. None without a cgroup.
    pub held: Option<u64>,
}

/// One case on both sides.
pub(super) struct Bench<'a> {
    pub options: &'a Overcommit,
    pub case: Case,
    pub machines: &'a Machines<'a>,
}

impl Bench<'_> {
    /// Looks for the kernel's limit, beginning with `limit`; counts what is killed.
    pub fn find_limit(&self, limit: u64, killed: &mut usize) -> Result<Found, LabError> {
        equal::search(self.options.set.memory(), limit, |limit| {
            let run = self.run(Side::Kernel, limit, SHORT, killed)?;
            Ok(run.map(|run| run.store))
        })
    }

    /// One run that counts; none, if it was killed however often it was repeated.
    pub fn timed_run(
        &self,
        side: Side,
        limit: u64,
        killed: &mut usize,
    ) -> Result<Option<Run>, LabError> {
        let seconds = self.options.set.seconds;
        self.run(side, limit, (seconds, seconds / 4.0), killed)
    }

    /// A run, repeated while it is killed for lack of memory.
    fn run(
        &self,
        side: Side,
        limit: u64,
        seconds: (f64, f64),
        killed: &mut usize,
    ) -> Result<Option<Run>, LabError> {
        for _ in 0..=REPEATS {
            let memory = self.options.set.memory() as usize;
            self.machines.lab.warm(memory + memory / 8)?;
            match self.run_once(side, limit, seconds)? {
                Some(run) => return Ok(Some(run)),
                None => *killed += 1,
            }
        }
        Ok(None)
    }

    fn run_once(
        &self,
        side: Side,
        limit: u64,
        seconds: (f64, f64),
    ) -> Result<Option<Run>, LabError> {
        let (kernel, machines) = (side == Side::Kernel, self.machines);
        if let Some(cgroup) = &machines.cgroup {
            cgroup.limit(kernel.then_some(limit))?;
        }
        let stats = TempFile::new("stats.json");
        let before = (vmstat("pswpout")?, vmstat("pswpin")?);
        let zram = || if kernel { zram::used() } else { Ok(0) };
        let mut run = self.start(side, limit, seconds, &stats)?;
        if !run.wait_for(SETTLED_LINE)? {
            return early(run.finish()?);
        }
        let (cpu_before, mut store) = (machines.cpu()?, zram()?);
        run.go_on()?;
        if !run.wait_for(WALKED_LINE)? {
            return early(run.finish()?);
        }
        let cpu = machines
            .cpu()?
            .zip(cpu_before)
            .map(|(now, then)| now - then);
        let used = zram()?;
        store = store.max(used);
        let held = machines.cgroup.as_ref().map(Cgroup::held).transpose()?;
        run.go_on()?;
        let end = run.finish()?;
        if !end.status.success() {
            return early(end);
        }
        let walked: Walked = end.figures()?;
        let mut run = Run {
            ops: walked.ops,
            sum_per_s: walked.ops as f64 / walked.seconds,
            ops_per_s: (walked.fewest * self.case.threads as u64) as f64 / walked.seconds,
            fill_s: walked.fill_s,
            cpu_s: cpu,
            faults: walked.faults,
            stored: vmstat("pswpout")?.saturating_sub(before.0),
            read: vmstat("pswpin")?.saturating_sub(before.1),
            limit,
            store,
            ram: limit + store,
            held: held.map(|held| held + used),
        };
        if !kernel {
            let live = LiveStats::read(stats.path())?;
            (run.stored, run.read) = (live.counters.pswpout, live.counters.pswpin);
            (run.store, run.ram) = (live.peak.stored_bytes, live.peak.memory_bytes);
        }
        Ok(Some(run))
    }

    fn start(
        &self,
        side: Side,
        limit: u64,
        (count, settle): (f64, f64),
        stats: &TempFile,
    ) -> Result<Running, LabError> {
        let Case {
            pattern,
            threads,
            record,
        } = self.case;
        let (size, reach) = (self.options.set.size >> 20, self.options.reach() >> 20);
        let program = format!(
            "walk {size} {pattern} {threads} --steps --record {record} --reach {reach} --seconds \
             {count} --settle {settle}"
        );
        let options = format!("--quiet --memory-max {limit}");
        let (what, live, stats) = (self.case.to_string(), words(&options), Some(stats.path()));
        let run = self.machines.start(&what, side, live, stats, &program)?;
        Ok(run.within(DEADLINE))
    }
}

/// A run that ended before it should: none if it was killed, by the kernel or by the manager at
/// its limit.
fn early(end: Finished) -> Result<Option<Run>, LabError> {
    let killed = end.status.signal() == Some(libc::SIGKILL);
    match killed || end.status.code() == Some(128 + libc::SIGKILL) {
        true => Ok(None),
        false => Err(end.failure("failed")),
    }
}
