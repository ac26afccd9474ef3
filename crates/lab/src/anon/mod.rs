//! The S001 experiment: what larger folios for anonymous memory bring, and what they cost.
//!
//! The same programs run with folios of one page, of up to 64 KiB, of adaptive size and of the
//! PMD's size, on the live pager, on the host kernel (which has no adaptive size) and, as
//! accesses, on the model. `docs/fault-order.md` has the workloads and what was measured.

use std::ffi::OsString;
use std::path::PathBuf;

use deckle_mm::{FaultOrder, SizeMode, Sizes, ThpMode, Tunables};
use serde::Serialize;

use crate::host::cgroup::Cgroup;
use crate::host::{Guard, is_root};
use crate::model::ModelSide;
use crate::program::anon::Workload;
use crate::program::fill::progress;
use crate::{LabError, Side};

mod measure;
mod plot;
mod report;

use measure::Bench;
pub use report::{AnonReport, AnonRow, Target};

/// How large folios are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub enum Policy {
    /// One page.
    #[serde(rename = "base")]
    Base,
    /// Up to 64 KiB.
    #[serde(rename = "64k")]
    K64,
    /// What the faults have shown to pay, up to the PMD's size.
    #[serde(rename = "adaptive")]
    Adaptive,
    /// The PMD's size wherever it fits, else one page.
    #[serde(rename = "pmd")]
    Pmd,
}

/// Sizes of 64 KiB and below, in KiB.
const SMALL: [u32; 3] = [16, 32, 64];

impl Policy {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Base, Self::K64, Self::Adaptive, Self::Pmd];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::K64 => "64k",
            Self::Adaptive => "adaptive",
            Self::Pmd => "pmd",
        }
    }

    /// Parses a name.
    ///
    /// # Errors
    /// [`LabError::Option`] for a name that there is not.
    pub fn parse(name: &str) -> Result<Self, LabError> {
        let found = Self::ALL.into_iter().find(|p| p.name() == name);
        found.ok_or_else(|| {
            LabError::Option(format!(
                "unknown policy '{name}' (known: base, 64k, adaptive, pmd)"
            ))
        })
    }

    /// The manager's knobs.
    pub fn tunables(self) -> Tunables {
        let t = Tunables::default();
        let never = Tunables {
            thp: ThpMode::Never,
            fault_order: FaultOrder::Fixed,
            ..t
        };
        let pmd = Sizes::NEVER.with(9, SizeMode::Inherit);
        match self {
            Self::Base => Tunables {
                sizes: Sizes::NEVER,
                ..never
            },
            Self::K64 => never,
            Self::Adaptive => Tunables {
                fault_order: FaultOrder::Auto,
                ..t
            },
            Self::Pmd => Tunables {
                sizes: pmd,
                fault_order: FaultOrder::Fixed,
                ..t
            },
        }
    }

    /// The same as settings of `deckle run`.
    fn config(self) -> String {
        let (enabled, order, small) = match self {
            Self::Base => ("never", "fixed", "never"),
            Self::K64 => ("never", "fixed", "always"),
            Self::Adaptive => ("always", "auto", "always"),
            Self::Pmd => ("always", "fixed", "never"),
        };
        let mut toml =
            format!("[transparent_hugepage]\nenabled = \"{enabled}\"\nfault_order = \"{order}\"\n");
        for kib in SMALL {
            toml += &format!("hugepages-{kib}kB.enabled = \"{small}\"\n");
        }
        if self == Self::Pmd {
            for kib in [128, 256, 512, 1024] {
                toml += &format!("hugepages-{kib}kB.enabled = \"never\"\n");
            }
        }
        toml
    }

    /// Sets the host's knobs for a kernel row.
    fn set(self, guard: &mut Guard) -> Result<(), LabError> {
        use crate::host::thp::set_sizes;
        match self {
            Self::Base | Self::Adaptive => set_sizes(guard, "never", &[]),
            Self::K64 => set_sizes(guard, "never", &SMALL.map(|kib| (kib, "always"))),
            Self::Pmd => set_sizes(guard, "always", &[(2048, "inherit")]),
        }
    }

    /// Whether a side has it.
    fn is_on(self, side: Side) -> bool {
        side != Side::Kernel || self != Self::Adaptive
    }
}

/// Faults and memory of one run on the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Page faults.
    pub faults: u64,
    /// Pages that base pages would have faulted for.
    pub pages: u64,
    /// Memory mapped at the peak, in bytes.
    pub peak_bytes: u64,
    /// What the workload had touched of it, in bytes.
    pub touched_bytes: u64,
}

/// What to run.
pub struct AnonOptions<'a> {
    /// The workloads, in the order of the report.
    pub workloads: Vec<Workload>,
    /// The policies.
    pub policies: Vec<Policy>,
    /// The sides. Live and kernel runs alternate in this order.
    pub sides: Vec<Side>,
    /// Timed runs of each row.
    pub runs: usize,
    /// The `deckle` binary, for the live side.
    pub deckle: PathBuf,
    /// Command in front of a workload's name and arguments, e.g. `deckle lab program`.
    pub program_cmd: Vec<OsString>,
    /// The model, if its side is asked for.
    pub model: Option<&'a mut dyn ModelSide>,
}

/// Runs the experiment.
///
/// # Errors
/// Options that make no sense, a side that cannot be run here, a workload that fails, settings
/// that were disturbed or could not be given back.
pub fn run(mut options: AnonOptions<'_>) -> Result<AnonReport, LabError> {
    if options.runs == 0
        || options.workloads.is_empty()
        || options.policies.is_empty()
        || options.sides.is_empty()
    {
        let why = "nothing to run: at least one run, workload, policy and side are needed";
        return Err(LabError::Option(why.into()));
    }
    let mut model = options.model.take();
    if options.sides.contains(&Side::Model) && model.is_none() {
        return Err(LabError::Model("not part of this build".into()));
    }
    let machines: Vec<Side> = (options.sides.iter().copied())
        .filter(|side| *side != Side::Model)
        .collect();
    let kernel = machines.contains(&Side::Kernel);
    let mut guard = match !machines.is_empty() && (kernel || is_root()) {
        true => Some(Guard::new(&options.program_cmd)?),
        false => None,
    };
    // It tells the peak of a whole tree; without one, the processes are asked.
    let cgroup = Cgroup::if_any(guard.as_mut(), "anon-folio", kernel)?;
    let columns = |side: &Side| options.policies.iter().filter(|p| p.is_on(*side)).count();
    let steps =
        options.workloads.len() * options.runs * machines.iter().map(columns).sum::<usize>();
    let bar = progress(steps as u64, "anon-folio");
    let mut report = AnonReport::default();
    for &workload in &options.workloads {
        let mut rows = Vec::new();
        for &policy in &options.policies {
            for &side in machines.iter().filter(|side| policy.is_on(**side)) {
                let bench = Bench::new(&options, workload, side, policy, cgroup.as_ref())?;
                rows.push((bench, Vec::new()));
            }
        }
        // In turns, so that what slows the machine down for a while slows all of them down.
        for _ in 0..options.runs {
            for (bench, runs) in &mut rows {
                bench.prepare(kernel, guard.as_mut())?;
                runs.push(bench.timed()?);
                guard.as_ref().map_or(Ok(()), Guard::undisturbed)?;
                bar.inc(1);
            }
        }
        for (bench, runs) in rows {
            bench.prepare(kernel, guard.as_mut())?;
            let peak = bench.peak()?;
            report.add(bench.side, workload, bench.policy, runs, peak);
        }
        for &policy in &options.policies {
            if let (Some(model), true) = (&mut model, options.sides.contains(&Side::Model))
                && let Some(counts) = model.anon(workload, policy.tunables())?
            {
                report.add_model(workload, policy, counts);
            }
        }
    }
    bar.finish_and_clear();
    guard.map_or(Ok(()), Guard::finish)?;
    report.finish();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r150_policies_are_named_once_and_only_the_kernel_lacks_one() {
        for policy in Policy::ALL {
            assert_eq!(Policy::parse(policy.name()).unwrap(), policy);
            let kernel = policy.is_on(Side::Kernel);
            assert_eq!(kernel, policy != Policy::Adaptive);
            assert!(policy.is_on(Side::Live) && policy.is_on(Side::Model));
            policy.tunables().validate().unwrap();
        }
        assert!(Policy::parse("auto").is_err());
    }
}
