//! One run of a program on a side that runs the real one.

use std::ffi::OsString;
use std::thread;
use std::time::Duration;

use super::pressure::Pressure;
use super::{Setting, UnderusedOptions};
use crate::child::{Running, warm};
use crate::host::{cgroup::Cgroup, pss, vmstat};
use crate::live_stats::{LiveStats, StatsFile};
use crate::program::underused::{Program, SETTLE_LINE, TOOK_LINE};
use crate::{LabError, Side};

/// How often memory is looked at.
const SAMPLE: Duration = Duration::from_millis(5);
/// From the pressure on waiting memory to the look at it.
const PAUSE: Duration = Duration::from_millis(100);

/// What one run came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// Its time without the wait, in seconds; none on the model, which has no speed.
    pub time_s: Option<f64>,
    /// The most memory, in bytes.
    pub peak: u64,
    /// Memory after pressure and a pause, in bytes.
    pub settled: u64,
    /// Of that, in huge pages.
    pub huge: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Huge pages split because they were underused.
    pub underused_splits: u64,
    /// Pages dropped by the shrinker that were soon written again; none where nobody counts them.
    pub retouches: Option<u64>,
}

pub(super) struct Bench<'a, 'o> {
    pub options: &'a UnderusedOptions<'o>,
    pub program: Program,
    pub cgroup: Option<&'a Cgroup>,
}

impl Bench<'_, '_> {
    /// One run, right after as much memory as it will use was touched and freed. There is
    /// pressure whenever it holds more than `high` bytes.
    pub fn run(&self, side: Side, setting: Setting, high: Option<u64>) -> Result<Run, LabError> {
        warm(&self.options.program_cmd, self.program.bytes())?;
        let stats = StatsFile::new();
        let before = Splits::of_host()?;
        let mut run = self.start(side, setting, &stats)?;
        let mut pressure = Pressure::new(side, run.pid(), self.cgroup, high);
        let mut peak = 0;
        let mut settled = None;
        while !run.listen(SAMPLE)? {
            if settled.is_none() && run.has_said(SETTLE_LINE) {
                pressure.settle()?;
                thread::sleep(PAUSE);
                settled = Some((pressure.held()?, pss::huge_of_tree(run.pid())?));
                run.go_on()?;
            }
            peak = peak.max(pressure.look()?);
        }
        let end = run.finish()?;
        if !end.status.success() {
            return Err(end.failure("failed"));
        }
        let took = end.line(TOOK_LINE).and_then(|s| s.parse().ok());
        let (Some(time_s), Some((settled, huge))) = (took, settled) else {
            return Err(end.failure("did not say how long it took"));
        };
        let (splits, retouches) = match side {
            Side::Kernel => (Splits::of_host()?.since(before), None),
            _ => {
                let live = LiveStats::read(stats.path())?;
                let splits = Splits {
                    all: live.splits,
                    underused: live.underused_splits,
                };
                (splits, Some(live.retouches))
            }
        };
        Ok(Run {
            time_s: Some(time_s),
            peak: peak.max(settled),
            settled,
            huge,
            splits: splits.all,
            underused_splits: splits.underused,
            retouches,
        })
    }

    fn start(&self, side: Side, setting: Setting, stats: &StatsFile) -> Result<Running, LabError> {
        let mut command: Vec<OsString> = Vec::new();
        if side == Side::Live {
            command.push(self.options.deckle.clone().into());
            // Nothing but zero pages can be given back, as on a host without swap.
            let fixed = ["run", "--quiet", "--memory-max", "max", "--swap", "none"];
            command.extend(fixed.map(OsString::from));
            command.extend(setting.options().into_iter().map(OsString::from));
            command.extend(["--stats".into(), stats.path().into(), "--".into()]);
        }
        command.extend(self.options.program_cmd.iter().cloned());
        command.extend(["underused".into(), self.program.name().into()]);
        let doors = self.cgroup.map_or(Ok(Vec::new()), Cgroup::doors)?;
        let what = format!("{}, {} on {side}", self.program.name(), setting.name());
        Running::start(&what, &command, doors)
    }
}

/// Splits that the host has counted.
#[derive(Clone, Copy)]
struct Splits {
    all: u64,
    underused: u64,
}

impl Splits {
    fn of_host() -> Result<Self, LabError> {
        Ok(Self {
            all: vmstat("thp_split_page")?,
            underused: vmstat("thp_underused_split_page")?,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            underused: self.underused.saturating_sub(before.underused),
        }
    }
}
