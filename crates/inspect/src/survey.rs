//! All processes together.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::error::InspectError;
use crate::folios::Folios;
use crate::knobs::Knobs;
use crate::look::{Found, How, Looked, find};
use crate::pace::Pace;
use crate::process::Target;
use crate::sample::{Estimate, Rng};
use crate::tally::Tally;
use crate::verdict::{Finding, verdict};

/// How processes are looked at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Per cent of the huge pages that are read; 100: all.
    pub sample: f64,
    /// Most per cent of one CPU; 100: no bound.
    pub cpu: u32,
    /// Chooses the sample.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        let (sample, cpu, seed) = (100.0, 100, 0);
        Options { sample, cpu, seed }
    }
}

/// How far a survey is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Huge pages that were found, of which so many per cent will be read.
    pub all: u64,
    /// Of these, read.
    pub done: u64,
}

/// What a machine, or a part of it, wastes in huge pages.
#[derive(Clone, PartialEq, Debug)]
pub struct Survey {
    /// What is in force.
    pub knobs: Knobs,
    /// The verdict on that.
    pub findings: Vec<Finding>,
    /// How it was done.
    pub options: Options,
    /// Whether all processes were meant.
    pub of_all: bool,
    /// Processes that have large folios, the most wasteful first.
    pub looked: Vec<Looked>,
    /// Processes whose memory was not shown to us.
    pub refused: u64,
    /// Whether huge pages that are not mapped as a whole were seen, too.
    pub told_frames: bool,
    /// CPU time that it took.
    pub cpu: Duration,
    /// Time that it took.
    pub wall: Duration,
}

impl Survey {
    /// Looks at all processes of `target`. `before`: the settings some time ago.
    ///
    /// # Errors
    /// There is no such process, or none that is shown to us.
    pub fn take(
        target: &Target,
        options: Options,
        before: Option<&Knobs>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Survey, InspectError> {
        let (begun, pace) = (Instant::now(), Pace::new(options.cpu));
        let knobs = Knobs::read();
        let mut folios = Folios::open();
        let told_frames = folios.is_some();
        let (mut found, mut refused, mut why) = (Vec::new(), 0, None);
        for process in target.processes()? {
            match find(&process, folios.as_mut()) {
                Ok(one) if found.iter().any(|other: &Found| other.is_same(&one)) => {}
                Ok(one) => found.push(one),
                Err(e @ InspectError::Refused { .. }) => {
                    refused += 1;
                    why = why.or(Some(e));
                }
                // One that was listed and has ended wastes nothing any more.
                Err(InspectError::Gone(_)) if !matches!(target, Target::Pid(_)) => {}
                Err(e) => return Err(e),
            }
            pace.rest();
        }
        if let (true, Some(why)) = (found.is_empty(), why) {
            return Err(why);
        }
        Ok(Survey {
            findings: verdict(&knobs, before),
            knobs,
            options,
            of_all: *target == Target::All,
            looked: read(found, options, &pace, progress),
            refused,
            told_frames,
            cpu: pace.used(),
            wall: begun.elapsed(),
        })
    }

    /// Huge pages that all of them have, each once.
    pub fn huge(&self) -> u64 {
        let once = self.looked.iter().flat_map(Looked::once);
        once.map(|tally| tally.all).sum()
    }

    /// Those that were looked at.
    pub fn seen(&self) -> u64 {
        self.looked.iter().map(Looked::seen).sum()
    }

    fn sum(&self, of: impl Fn(&Looked) -> Estimate) -> Estimate {
        Estimate::sum(self.looked.iter().map(of))
    }

    /// Zero-filled bytes in huge pages, each page once.
    pub fn zeros(&self) -> Estimate {
        self.sum(|one| Estimate::sum(one.once().map(Tally::zeros)))
    }

    /// Bytes that huge pages waste: zeros, and what is held and mapped nowhere.
    pub fn waste(&self) -> Estimate {
        let unmapped = self.looked.iter().map(|one| one.unmapped).sum::<u64>();
        Estimate::sum([self.zeros(), Estimate::exact(unmapped as f64)])
    }

    /// Bytes that the kernel frees at this threshold when memory is short.
    pub fn freed_at(&self, max_ptes_none: u32) -> Estimate {
        let freed = |one: &Looked| {
            let shared = one.first_freed_at(max_ptes_none);
            Estimate::sum([one.freed_at(max_ptes_none), shared])
        };
        self.sum(freed)
    }

    /// Huge pages that are split for it.
    pub fn split_at(&self, max_ptes_none: u32) -> Estimate {
        let split = |one: &Looked| {
            let shared = one.first_split_at(max_ptes_none);
            Estimate::sum([one.split_at(max_ptes_none), shared])
        };
        self.sum(split)
    }

    /// Zero-filled bytes that no threshold frees, since they are locked into memory.
    pub fn locked(&self) -> Estimate {
        self.sum(Looked::locked)
    }

    /// All that was looked at, as one.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        let parts = self.looked.iter().flat_map(|one| one.tallies.values());
        parts.for_each(|tally| all.merge(tally));
        all
    }
}

fn read(
    found: Vec<Found>,
    options: Options,
    pace: &Pace,
    progress: &mut dyn FnMut(Progress),
) -> Vec<Looked> {
    let all = found.iter().map(|one| one.huge() as u64).sum();
    let mut done = 0;
    let mut met = HashSet::new();
    let mut how = How {
        percent: options.sample,
        rng: Rng(options.seed),
        pace,
        step: &mut |n| {
            done += n;
            progress(Progress { all, done });
        },
    };
    let of = |one: Found| one.look(&mut how, &mut met);
    let has_any = |one: &Looked| one.huge() > 0 || !one.sizes.is_empty();
    let mut looked: Vec<Looked> = found.into_iter().map(of).filter(has_any).collect();
    looked.sort_by(|a, b| b.waste().value.total_cmp(&a.waste().value));
    looked
}
