//! One row on a side that runs the real program: timed runs, and its memory at the peak.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{AnonOptions, Policy};
use crate::child::{Running, warm};
use crate::host::thp::set_sizes;
use crate::host::{Guard, cgroup::Cgroup, pss};
use crate::program::anon::{Figures, RESULT_LINE, Workload};
use crate::{LabError, Side};

/// How often memory is looked at where a program cannot do it itself.
const SAMPLE: Duration = Duration::from_millis(2);

pub(super) struct Bench<'a, 'o> {
    options: &'a AnonOptions<'o>,
    workload: Workload,
    pub side: Side,
    pub policy: Policy,
    cgroup: Option<&'a Cgroup>,
    config: Config,
}

impl<'a, 'o> Bench<'a, 'o> {
    pub fn new(
        options: &'a AnonOptions<'o>,
        workload: Workload,
        side: Side,
        policy: Policy,
        cgroup: Option<&'a Cgroup>,
    ) -> Result<Self, LabError> {
        Ok(Self {
            options,
            workload,
            side,
            policy,
            cgroup,
            config: Config::new(policy)?,
        })
    }

    /// Sets the host's knobs for a run. Where the kernel has no rows (`kernel` is false) they
    /// stay as found.
    pub fn prepare(&self, kernel: bool, guard: Option<&mut Guard>) -> Result<(), LabError> {
        match (self.side, guard) {
            (Side::Kernel, Some(guard)) => self.policy.set(guard),
            // Huge pages where they are asked for, which the manager does for itself.
            (Side::Live, Some(guard)) if kernel => {
                set_sizes(guard, "madvise", &[(2048, "inherit")])
            }
            _ => Ok(()),
        }
    }

    /// One timed run, right after as much memory as it will use was touched and freed.
    pub fn timed(&self) -> Result<Figures, LabError> {
        let size = self.workload.bytes() + (64 << 20);
        warm(&self.options.program_cmd, size)?;
        let end = self.start(Vec::new())?.finish()?;
        if !end.status.success() {
            return Err(end.failure("failed"));
        }
        let figures = end.line(RESULT_LINE).and_then(Figures::parse);
        figures.ok_or_else(|| end.failure("did not say what it had done"))
    }

    /// The most anonymous memory of a run's process tree in bytes, for a workload that is more
    /// than one process; `None` for one that looks at its memory itself.
    pub fn peak(&self) -> Result<Option<u64>, LabError> {
        if self.workload != Workload::Compile {
            return Ok(None);
        }
        let doors = self.cgroup.map_or(Ok(Vec::new()), Cgroup::doors)?;
        let mut run = self.start(doors)?;
        let mut peak = 0;
        while !run.ended_within(SAMPLE)? {
            let now = match self.cgroup {
                Some(cgroup) => cgroup.anon()?,
                None => pss::anon_of_tree(run.pid())?,
            };
            peak = peak.max(now);
        }
        let end = run.finish()?;
        match end.status.success() {
            true => Ok(Some(peak)),
            false => Err(end.failure("failed")),
        }
    }

    fn start(&self, doors: Vec<fs::File>) -> Result<Running, LabError> {
        let mut command: Vec<OsString> = Vec::new();
        if self.side == Side::Live {
            command.push(self.options.deckle.clone().into());
            let fixed = ["run", "--quiet", "--memory-max", "max", "--config"];
            command.extend(fixed.map(OsString::from));
            command.extend([self.config.0.clone().into(), "--".into()]);
        }
        command.extend(self.options.program_cmd.iter().cloned());
        command.extend(["anon".into(), self.workload.name().into()]);
        let (workload, policy, side) = (self.workload.name(), self.policy.name(), self.side);
        Running::start(&format!("{workload}, {policy} on {side}"), &command, doors)
    }
}

/// The settings of live runs; removed when dropped.
struct Config(PathBuf);

impl Config {
    fn new(policy: Policy) -> Result<Self, LabError> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("deckle-lab-anon-{}-{n}.toml", std::process::id());
        let config = Self(std::env::temp_dir().join(name));
        fs::write(&config.0, policy.config())
            .map_err(|e| LabError::file("writing", config.0.clone(), e))?;
        Ok(config)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
