//! What each stage of large folios brings: a program that meets all four kinds of write faults, on
//! bare hardware, where all four are the manager's own.

use deckle_mm::{Item, Profile, SizeMode, Sizes, Stages, ThpMode, Tunables};
use deckle_model::{ModelCharge, RamCoreCow};
use deckle_store::Disabled;
use serde::Serialize;

use super::process::{Paths, Process};
use super::{PER_PAGE, fits};
use crate::LabError;
use crate::program::anon::FORK_EACH;
use crate::size::PAGE;

/// Pages of the program. It writes one half as it is, and of the other it has read one page in
/// every 64 KiB before.
const PAGES: usize = 4096;
const WINDOW: usize = 16;

named! {
    /// How far the series has come.
    pub enum Stage {
        /// One page for each fault.
        Base = "base",
        /// Several for a write on a hole.
        Alloc = "alloc",
        /// And for a write on what nobody else has any more.
        Reuse = "reuse",
        /// And for one on what others have, too.
        Copy = "copy",
        /// And for one on the zero page.
        ZeroAlloc = "zero-alloc",
    }
}

impl Stage {
    /// Folios of up to 64 KiB, and Linux's decisions otherwise.
    fn tunables(self) -> Tunables {
        let large = (2..=4).fold(Sizes::NEVER, |s, o| s.with(o, SizeMode::Always));
        let (sizes, stages) = match self {
            Self::Base => (Sizes::NEVER, Stages::Alloc),
            Self::Alloc => (large, Stages::Alloc),
            Self::Reuse => (large, Stages::Reuse),
            Self::Copy => (large, Stages::Copy),
            Self::ZeroAlloc => (large, Stages::Zero),
        };
        // The last one is in the series and not in Linux 6.18, so profile `linux` has it not.
        let profile = match self {
            Self::ZeroAlloc => Profile::Deckle,
            _ => Profile::Linux,
        };
        Tunables {
            profile,
            thp: ThpMode::Never,
            sizes,
            stages,
            ..Tunables::of_profile(Profile::Linux)
        }
    }
}

/// One stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StageRow {
    /// How far.
    pub stage: Stage,
    /// Write faults of parent and child.
    pub faults: u64,
    /// Pages copied.
    pub copied: u64,
    /// The most memory of both, in bytes.
    pub peak_bytes: u64,
    /// The faults by their kinds: how often so many pages.
    pub paths: Paths,
}

/// All stages.
///
/// # Errors
/// [`LabError::Model`]: an access that is not served, or books that do not add up.
pub fn run() -> Result<Vec<StageRow>, LabError> {
    Stage::ALL.into_iter().map(run_one).collect()
}

fn run_one(stage: Stage) -> Result<StageRow, LabError> {
    let bytes = PAGES * PAGE;
    let ram = 3 * bytes as u64;
    fits("stages", ram + ram / PAGE as u64 * PER_PAGE)?;
    let (charge, tunables) = (ModelCharge::unlimited(), stage.tunables());
    let program = Process::<_, RamCoreCow>::new(ram, charge, Disabled, tunables, 2 * bytes)?;
    let at = program.map(bytes)?;
    let mut peak = 0;
    for page in 0..PAGES {
        if page >= PAGES / 2 && page % WINDOW == 0 {
            program.read(at + page * PAGE, &mut [0])?;
        }
        program.write(at + page * PAGE, &[1])?;
    }
    // A child writes to a part of what it shares, and ends; then all is the parent's alone.
    let child = program.fork()?;
    for page in (0..PAGES).step_by(FORK_EACH) {
        program.write_in(child, at + page * PAGE, &[2])?;
        peak = peak.max(program.charged());
    }
    program.end(child)?;
    for page in 0..PAGES {
        program.write(at + page * PAGE, &[3])?;
        peak = peak.max(program.charged());
    }
    program.verify(true)?;
    let paths = program.paths();
    let faults = |path: &std::collections::BTreeMap<u64, u64>| path.values().sum::<u64>();
    let all = [
        &paths.anonymous,
        &paths.zero_page,
        &paths.copy,
        &paths.reuse,
    ];
    Ok(StageRow {
        stage,
        faults: all.into_iter().map(faults).sum(),
        copied: program.count(Item::Pgcopy),
        peak_bytes: peak * PAGE as u64,
        paths,
    })
}
