//! The sides that run programs, and what they need of the host.

use std::ffi::OsString;
use std::path::Path;

use crate::child::Running;
use crate::experiment::Lab;
use crate::host::cgroup::Cgroup;
use crate::host::{Guard, is_root, zram};
use crate::{LabError, Side};

/// Sides that run programs, with a cgroup around each run where one can be had.
pub(crate) struct Machines<'a> {
    pub lab: &'a Lab,
    /// Live, the kernel, both or none.
    pub sides: Vec<Side>,
    /// Whether the kernel is one of them.
    pub kernel: bool,
    guard: Option<Guard>,
    /// It counts the CPU time and the memory of a whole tree; without one, processes are asked.
    pub cgroup: Option<Cgroup>,
}

impl<'a> Machines<'a> {
    /// Of the sides of an experiment. `swap`: bytes of zram that the kernel needs.
    pub fn new(
        lab: &'a Lab,
        name: &str,
        sides: &[Side],
        swap: Option<usize>,
    ) -> Result<Self, LabError> {
        let sides: Vec<Side> = (sides.iter().copied())
            .filter(|s| *s != Side::Model)
            .collect();
        let kernel = sides.contains(&Side::Kernel);
        let mut guard = match !sides.is_empty() && (kernel || is_root()) {
            true => Some(Guard::new(&lab.program_cmd)?),
            false => None,
        };
        // Before the cgroup, so that it is given back after that, when what ran there is gone: of
        // a program at its limit swapoff could not bring the pages back.
        if let (Some(guard), Some(bytes), true) = (&mut guard, swap, kernel) {
            zram::swap_on(guard, bytes)?;
        }
        let cgroup = Cgroup::if_any(guard.as_mut(), name, kernel)?;
        Ok(Self {
            lab,
            sides,
            kernel,
            guard,
            cgroup,
        })
    }

    /// The guard for settings of the host, which stay as found where the kernel has no rows.
    pub fn host(&mut self) -> Option<&mut Guard> {
        self.guard.as_mut().filter(|_| self.kernel)
    }

    /// Checks that every setting of the host still is what the guard set.
    pub fn undisturbed(&self) -> Result<(), LabError> {
        self.guard.as_ref().map_or(Ok(()), Guard::undisturbed)
    }

    /// CPU time of all runs until now, in seconds; none if nobody counts it.
    pub fn cpu(&self) -> Result<Option<f64>, LabError> {
        self.cgroup.as_ref().map_or(Ok(None), Cgroup::cpu_seconds)
    }

    /// Starts a program as [`Lab::command`] says, in the cgroup.
    pub fn start(
        &self,
        what: &str,
        side: Side,
        live: impl IntoIterator<Item = OsString>,
        stats: Option<&Path>,
        program: &str,
    ) -> Result<Running, LabError> {
        let doors = self.cgroup.as_ref().map_or(Ok(Vec::new()), Cgroup::doors)?;
        let command = self.lab.command(side, live, stats, program);
        Running::start(&format!("{what} on {side}"), &command, doors)
    }

    /// Gives everything back.
    pub fn finish(self) -> Result<(), LabError> {
        self.guard.map_or(Ok(()), Guard::finish)
    }
}
