//! One run of a program on a side that runs the real one.

use std::thread;
use std::time::Duration;

use super::Setting;
use super::pressure::Pressure;
use crate::experiment::words;
use crate::host::{pss, vmstat};
use crate::live_stats::{LiveStats, TempFile};
use crate::machines::Machines;
use crate::program::underused::{Program, SETTLE_LINE, TOOK_LINE};
use crate::{LabError, Side};

/// How often memory is looked at.
const SAMPLE: Duration = Duration::from_millis(5);
/// From the pressure on waiting memory to the look at it.
const PAUSE: Duration = Duration::from_millis(100);
/// Counters of the host: huge pages split, and those split because they were underused.
const SPLITS: [&str; 2] = ["thp_split_page", "thp_underused_split_page"];

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

/// One run, right after as much memory as it will use was touched and freed. There is pressure
/// whenever it holds more than `high` bytes.
pub(super) fn run(
    machines: &Machines<'_>,
    program: Program,
    side: Side,
    setting: Setting,
    high: Option<u64>,
) -> Result<Run, LabError> {
    machines.lab.warm(program.bytes())?;
    let stats = TempFile::new("stats.json");
    let before = [vmstat(SPLITS[0])?, vmstat(SPLITS[1])?];
    // Nothing but zero pages can be given back, as on a host without swap.
    let fixed = words("--quiet --memory-max max --swap none");
    let live = fixed.chain(setting.options().into_iter().map(Into::into));
    let what = format!("{program}, {setting}");
    let words = format!("underused {program}");
    let mut run = machines.start(&what, side, live, Some(stats.path()), &words)?;
    let mut pressure = Pressure::new(side, run.pid(), machines.cgroup.as_ref(), high);
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
    let end = run.succeed()?;
    let time_s = end.told(TOOK_LINE, |s| s.parse().ok())?;
    let (settled, huge) = settled.ok_or_else(|| end.failure("did not wait to be looked at"))?;
    let (splits, retouches) = match side {
        Side::Kernel => {
            let now = [vmstat(SPLITS[0])?, vmstat(SPLITS[1])?];
            ([0, 1].map(|i| now[i].saturating_sub(before[i])), None)
        }
        _ => {
            let live = LiveStats::read(stats.path())?.counters;
            let splits = [live.thp_split_page, live.thp_underused_split_page];
            (splits, Some(live.thp_underused_retouch))
        }
    };
    Ok(Run {
        time_s: Some(time_s),
        peak: peak.max(settled),
        settled,
        huge,
        splits: splits[0],
        underused_splits: splits[1],
        retouches,
    })
}
