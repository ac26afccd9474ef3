//! The S001 experiment: what larger folios for anonymous memory bring, and what they cost.
//! `docs/fault-order.md` has the workloads and what was measured.

use deckle_mm::{FaultOrder, SizeMode, Sizes, ThpMode, Tunables};

use crate::experiment::{Experiment, Lab, Tell, runs, something};
use crate::host::Guard;
use crate::host::thp::set_sizes;
use crate::machines::Machines;
use crate::model::stages::StageRow;
use crate::program::anon::Workload;
use crate::steps::steps;
use crate::{LabError, Side, model};

mod measure;
mod report;

use measure::Bench;
pub use report::AnonRow;

named! {
    /// How large folios are.
    pub enum Policy {
        /// One page.
        Base = "base",
        /// Up to 64 KiB.
        K64 = "64k",
        /// What the faults have shown to pay, up to the PMD's size.
        Adaptive = "adaptive",
        /// The PMD's size wherever it fits, else one page.
        Pmd = "pmd",
    }
}

/// Sizes of 64 KiB and below, in KiB.
const SMALL: [u32; 3] = [16, 32, 64];
/// Those between them and the PMD's.
const MIDDLE: [u32; 4] = [128, 256, 512, 1024];

impl Policy {
    /// The manager's knobs.
    pub fn tunables(self) -> Tunables {
        let t = Tunables::default();
        let (thp, sizes, fault_order) = match self {
            Self::Base => (ThpMode::Never, Sizes::NEVER, FaultOrder::Fixed),
            Self::K64 => (ThpMode::Never, t.sizes, FaultOrder::Fixed),
            Self::Adaptive => (t.thp, t.sizes, FaultOrder::Auto),
            Self::Pmd => {
                let pmd = Sizes::NEVER.with(9, SizeMode::Inherit);
                (t.thp, pmd, FaultOrder::Fixed)
            }
        };
        Tunables {
            thp,
            sizes,
            fault_order,
            ..t
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
        let middle = MIDDLE
            .iter()
            .filter(|_| self == Self::Pmd)
            .map(|kib| (kib, "never"));
        for (kib, enabled) in SMALL.iter().map(|kib| (kib, small)).chain(middle) {
            toml += &format!("hugepages-{kib}kB.enabled = \"{enabled}\"\n");
        }
        toml
    }

    /// Sets the host's knobs for a kernel row.
    fn set(self, guard: &mut Guard) -> Result<(), LabError> {
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

/// The experiment. Live and kernel runs alternate.
#[derive(Clone, Debug, clap::Args)]
pub struct AnonFolio {
    /// Where to run it, separated by commas.
    #[arg(long = "on", value_delimiter = ',', default_values_t = Side::ALL)]
    pub sides: Vec<Side>,
    /// Which workloads, separated by commas.
    #[arg(long = "workload", value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Workload::ALL)]
    pub workloads: Vec<Workload>,
    /// Which sizes of folios, separated by commas.
    #[arg(long = "policy", value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Policy::ALL)]
    pub policies: Vec<Policy>,
    /// Timed runs of each row; the one in the middle counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = runs())]
    pub runs: u32,
}

impl Experiment for AnonFolio {
    fn measure(&self, lab: &Lab) -> Result<(Vec<AnonRow>, Vec<StageRow>), LabError> {
        let lists = [self.workloads.len(), self.policies.len()];
        something(self.runs, &self.sides, &lists)?;
        let mut machines = Machines::new(lab, Self::NAME, &self.sides, None)?;
        let pairs: Vec<(Side, Policy)> = (self.policies.iter())
            .flat_map(|p| machines.sides.iter().map(|side| (*side, *p)))
            .filter(|(side, policy)| policy.is_on(*side))
            .collect();
        let modelled: &[Policy] = match self.sides.contains(&Side::Model) {
            true => &self.policies,
            false => &[],
        };
        // Timed ones, those that look for the peak, and those of the model, whose stages are one.
        let each = (self.runs as usize + 1) * pairs.len() + modelled.len();
        let all = self.workloads.len() * each + usize::from(!modelled.is_empty());
        let bar = steps(all as u64, Self::NAME);
        let mut rows = Vec::new();
        for &workload in &self.workloads {
            let mut benches: Vec<(Bench, Vec<_>)> = Vec::new();
            for &(side, policy) in &pairs {
                benches.push((Bench::new(workload, side, policy)?, Vec::new()));
            }
            // In turns, so that what slows the machine down for a while slows all of them down.
            for _ in 0..self.runs {
                for (bench, runs) in &mut benches {
                    bench.prepare(&mut machines)?;
                    runs.push(bench.timed(&machines)?);
                    machines.undisturbed()?;
                    bar.inc(1);
                }
            }
            for (bench, runs) in benches {
                bench.prepare(&mut machines)?;
                let peak = bench.peak(&machines)?;
                bar.inc(1);
                rows.extend(AnonRow::new(bench.side, workload, bench.policy, runs, peak));
            }
            for &policy in modelled {
                let run = model::anon::run(workload, policy.tunables())?;
                rows.extend(AnonRow::new(Side::Model, workload, policy, vec![run], None));
                bar.inc(1);
            }
        }
        let stages = match modelled {
            [] => Vec::new(),
            _ => model::stages::run()?,
        };
        bar.finish_and_clear();
        machines.finish()?;
        report::finish(&mut rows);
        Ok((rows, stages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn r150_policies_are_named_once_and_only_the_kernel_lacks_one() {
        for policy in Policy::ALL {
            assert_eq!(Policy::from_str(policy.name(), false).unwrap(), policy);
            let kernel = policy.is_on(Side::Kernel);
            assert_eq!(kernel, policy != Policy::Adaptive);
            assert!(policy.is_on(Side::Live) && policy.is_on(Side::Model));
            policy.tunables().validate().unwrap();
        }
        assert!(Policy::from_str("auto", false).is_err());
    }
}
