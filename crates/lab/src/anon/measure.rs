//! One row on a side that runs the real program: timed runs, and its memory at the peak.

use std::fs;
use std::time::Duration;

use super::Policy;
use crate::child::Running;
use crate::experiment::words;
use crate::host::pss;
use crate::host::thp::set_sizes;
use crate::live_stats::TempFile;
use crate::machines::Machines;
use crate::program::anon::{Figures, Workload};
use crate::{LabError, Side};

/// How often memory is looked at where a program cannot do it itself.
const SAMPLE: Duration = Duration::from_millis(2);

pub(super) struct Bench {
    workload: Workload,
    pub side: Side,
    pub policy: Policy,
    /// Settings of live runs.
    config: TempFile,
}

impl Bench {
    pub fn new(workload: Workload, side: Side, policy: Policy) -> Result<Self, LabError> {
        let config = TempFile::new("anon.toml");
        fs::write(config.path(), policy.config())
            .map_err(|e| LabError::file("writing", config.path(), e))?;
        Ok(Self {
            workload,
            side,
            policy,
            config,
        })
    }

    /// Sets the host's knobs for a run. Where the kernel has no rows they stay as found.
    pub fn prepare(&self, machines: &mut Machines<'_>) -> Result<(), LabError> {
        match (self.side, machines.host()) {
            (Side::Kernel, Some(guard)) => self.policy.set(guard),
            // Huge pages where they are asked for, which the manager does for itself.
            (Side::Live, Some(guard)) => set_sizes(guard, "madvise", &[(2048, "inherit")]),
            _ => Ok(()),
        }
    }

    /// One timed run, right after as much memory as it will use was touched and freed.
    pub fn timed(&self, machines: &Machines<'_>) -> Result<Figures, LabError> {
        machines.lab.warm(self.workload.bytes() + (64 << 20))?;
        self.start(machines)?.succeed()?.figures()
    }

    /// The most anonymous memory of a run's process tree in bytes, for a workload that is more
    /// than one process; `None` for one that looks at its memory itself.
    pub fn peak(&self, machines: &Machines<'_>) -> Result<Option<u64>, LabError> {
        if self.workload != Workload::Compile {
            return Ok(None);
        }
        let mut run = self.start(machines)?;
        let mut peak = 0;
        while !run.ended_within(SAMPLE)? {
            let now = match &machines.cgroup {
                Some(cgroup) => cgroup.anon()?,
                None => pss::anon_of_tree(run.pid())?,
            };
            peak = peak.max(now);
        }
        run.succeed()?;
        Ok(Some(peak))
    }

    fn start(&self, machines: &Machines<'_>) -> Result<Running, LabError> {
        let live = words("--quiet --memory-max max --config").chain([self.config.path().into()]);
        let what = format!("{}, {}", self.workload, self.policy);
        let program = format!("anon {}", self.workload);
        machines.start(&what, self.side, live, None, &program)
    }
}
