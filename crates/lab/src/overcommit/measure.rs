//! Warmed runs of the program, on either side.

use std::ffi::OsString;
use std::time::Duration;

use super::equal::{self, Found};
use super::{Case, OvercommitOptions};
use crate::child::{Finished, Running, warm};
use crate::host::{cgroup::Cgroup, vmstat, zram};
use crate::live_stats::{LiveStats, StatsFile};
use crate::program::walk::{FIGURES_LINE, SETTLED_LINE, WALKED_LINE, Walked};
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
pub(super) struct Bench<'a, 'o> {
    pub options: &'a OvercommitOptions<'o>,
    pub case: Case,
    pub cgroup: Option<&'a Cgroup>,
}

impl Bench<'_, '_> {
    /// Looks for the kernel's limit, beginning with `limit`; counts what is killed.
    pub fn find_limit(&self, limit: u64, killed: &mut usize) -> Result<Found, LabError> {
        equal::search(self.options.memory(), limit, |limit| {
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
        let seconds = self.options.seconds;
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
            let memory = self.options.memory() as usize;
            warm(&self.options.program_cmd, memory + memory / 8)?;
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
        let kernel = side == Side::Kernel;
        if let Some(cgroup) = self.cgroup {
            cgroup.limit(kernel.then_some(limit))?;
        }
        let stats = StatsFile::new();
        let before = (vmstat("pswpout")?, vmstat("pswpin")?);
        let zram = || if kernel { zram::used() } else { Ok(0) };
        let mut run = self.start(side, limit, seconds, &stats)?;
        if !run.wait_for(SETTLED_LINE)? {
            return early(run.finish()?);
        }
        let (cpu_before, mut store) = (self.cpu()?, zram()?);
        run.go_on()?;
        if !run.wait_for(WALKED_LINE)? {
            return early(run.finish()?);
        }
        let cpu = self.cpu()?.zip(cpu_before).map(|(now, then)| now - then);
        let used = zram()?;
        store = store.max(used);
        let held = self.cgroup.map(Cgroup::held).transpose()?;
        run.go_on()?;
        let end = run.finish()?;
        if !end.status.success() {
            return early(end);
        }
        let walked = end.line(FIGURES_LINE).and_then(Walked::parse);
        let walked = walked.ok_or_else(|| end.failure("did not print its figures"))?;
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
            (run.stored, run.read) = (live.stored_pages, live.read_pages);
            (run.store, run.ram) = (live.stored_bytes, live.memory_bytes);
        }
        Ok(Some(run))
    }

    fn start(
        &self,
        side: Side,
        limit: u64,
        (count, settle): (f64, f64),
        stats: &StatsFile,
    ) -> Result<Running, LabError> {
        let mut command: Vec<OsString> = Vec::new();
        if side == Side::Live {
            command.push(self.options.deckle.clone().into());
            command.extend(["run", "--quiet", "--memory-max"].map(OsString::from));
            let limit = limit.to_string().into();
            command.extend([limit, "--stats".into(), stats.path().into(), "--".into()]);
        }
        command.extend(self.options.program_cmd.iter().cloned());
        let Case {
            pattern,
            threads,
            record,
        } = self.case;
        let mib = |bytes: u64| (bytes >> 20).to_string();
        let words = [
            "walk".to_owned(),
            mib(self.options.size),
            pattern.name().into(),
            threads.to_string(),
            "--steps".into(),
            "--record".into(),
            record.to_string(),
            "--reach".into(),
            mib(self.options.reach()),
            "--seconds".into(),
            count.to_string(),
            "--settle".into(),
            settle.to_string(),
        ];
        command.extend(words.map(OsString::from));
        let doors = self.cgroup.map_or(Ok(Vec::new()), Cgroup::doors)?;
        let what = format!("{} on {side}", self.case);
        Ok(Running::start(&what, &command, doors)?.within(DEADLINE))
    }

    fn cpu(&self) -> Result<Option<f64>, LabError> {
        self.cgroup.map_or(Ok(None), Cgroup::cpu_seconds)
    }
}

/// A run that ended before it should: none if it was killed, by the kernel or by the manager at
/// its limit.
fn early(end: Finished) -> Result<Option<Run>, LabError> {
    use std::os::unix::process::ExitStatusExt;
    let killed = end.status.signal() == Some(libc::SIGKILL);
    match killed || end.status.code() == Some(128 + libc::SIGKILL) {
        true => Ok(None),
        false => Err(end.failure("failed")),
    }
}
