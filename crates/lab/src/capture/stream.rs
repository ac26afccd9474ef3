//! The stream: one CPU asks for large blocks while others take single pages.

use deckle_model::{self, cpu};

use super::load::{Area, Pace, Taker};
use super::stage::Stage;
use super::{Job, Outcome};
use crate::LabError;

/// Requests that must fail in a row before the stream ends.
pub const FAILURES: u32 = 3;
/// Rounds of reclaim for each request.
pub const ROUNDS: u32 = 5;

pub(super) fn run(job: &Job, quarters: u64) -> Result<Outcome, LabError> {
    let stage = job.stage(1)?;
    let pace = Pace::new(job.threads, quarters);
    let mut takers: Vec<Taker> = (0..job.threads as u64)
        .map(|i| Taker::new(&stage, stage.seed_of_cpu(i + 1)))
        .collect();
    let mut outcome = Outcome::default();
    let (outcome_, pace_, stage_) = (&mut outcome, &pace, &stage);
    let mut jobs: Vec<deckle_model::Job<'_>> = vec![cpu(move || {
        ask(stage_, pace_, outcome_);
        pace_.end(&stage_.machine);
    })];
    for (i, taker) in takers.iter_mut().enumerate() {
        jobs.push(cpu(move || taker.keep_pace(pace_, i)));
    }
    stage.play(jobs)?;
    stage.end(takers.into_iter().filter_map(|t| t.wrong).next())?;
    outcome.capture = stage.zone().capture_stats(&stage.machine);
    Ok(outcome)
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
