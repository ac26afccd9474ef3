//! The stream: one CPU asks for large blocks while others take single pages.

use deckle_mm::frame::{CapturePolicy, CaptureStats};
use deckle_model::{Job, cpu};

use super::load::{Area, Pace, Taker};
use super::stage::Stage;
use crate::LabError;

/// Requests that must fail in a row before the stream ends.
pub const FAILURES: u32 = 3;
/// Rounds of reclaim for each request.
pub const ROUNDS: u32 = 5;

/// What one run of the stream is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// CPUs that take single pages.
    pub threads: usize,
    pub pages: u64,
    pub order: u8,
    /// Quarters of a page that they take for each page reclaimed.
    pub quarters: u64,
    pub policy: CapturePolicy,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Default, Debug)]
pub(super) struct Outcome {
    /// Blocks obtained, and those of them that came from the capture list.
    pub blocks: u64,
    pub from_capture: u64,
    /// Percent of the memory that they are.
    pub success_pct: f64,
    /// Steps that each request took.
    pub latency: Vec<u64>,
    /// How whole the free memory was after each request, 0 to 1, averaged.
    pub fragmentation: f64,
    /// Pages reclaimed by who asks for blocks.
    pub reclaimed: u64,
    pub capture: CaptureStats,
    /// Steps and percent of memory obtained, after each request.
    pub progress: Vec<(u64, f64)>,
}

impl Stream {
    pub fn run(&self) -> Result<Outcome, LabError> {
        let stage = Stage::new(self.threads + 1, self.pages, self.order, self.seed)?;
        stage.zone().set_capture(&stage.machine, self.policy);
        let pace = Pace::new(self.threads, self.quarters);
        let mut takers: Vec<Taker> = (0..self.threads as u64)
            .map(|i| Taker::new(&stage, stage.seed_of_cpu(i + 1)))
            .collect();
        let mut outcome = Outcome::default();
        let (outcome_, pace_, stage_) = (&mut outcome, &pace, &stage);
        let mut jobs: Vec<Job<'_>> = vec![cpu(move || {
            ask(stage_, pace_, outcome_);
            pace_.end(&stage_.machine);
        })];
        for (i, taker) in takers.iter_mut().enumerate() {
            jobs.push(cpu(move || taker.keep_pace(pace_, i)));
        }
        stage
            .machine
            .run(jobs)
            .map_err(|e| LabError::Model(e.to_string()))?;
        stage.end(takers.into_iter().filter_map(|t| t.wrong).next())?;
        outcome.capture = stage.zone().capture_stats(&stage.machine);
        Ok(outcome)
    }
}

/// Asks for blocks until no more are to be had.
fn ask(stage: &Stage, pace: &Pace, outcome: &mut Outcome) {
    let mut area = Area::new(stage, Some(pace), ROUNDS);
    let (mut failures, mut whole) = (0, Vec::new());
    while failures < FAILURES {
        let start = stage.machine.steps();
        let got = area.block();
        let now = stage.machine.steps();
        outcome.latency.push(now - start);
        match got {
            Some((_, captured)) => {
                failures = 0;
                outcome.blocks += 1;
                outcome.from_capture += u64::from(captured);
            }
            None => failures += 1,
        }
        let pct = 100.0 * outcome.blocks as f64 / stage.blocks() as f64;
        outcome.success_pct = pct;
        outcome.progress.push((now, pct));
        whole.extend(stage.whole());
    }
    outcome.reclaimed = area.freed;
    outcome.fragmentation = whole.iter().sum::<f64>() / whole.len().max(1) as f64;
}
