//! Huge page faults beside a cache, after thpchallenge of mmtests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use deckle_model::{self, cpu};

use super::load::{Area, Oldest, Taker};
use super::stage::Stage;
use super::{Job, Outcome};
use crate::LabError;

/// Of 100 pages of memory, those that are faulted.
const REGION_PCT: u64 = 80;
/// CPUs that read files.
const READERS: usize = 2;
/// Pages of the files, in percent of the memory.
const FILES_PCT: u64 = 150;
/// Rounds of reclaim for a huge page.
const ROUNDS: u32 = 1;

pub(super) fn run(job: &Job) -> Result<Outcome, LabError> {
    let stage = job.stage(READERS)?;
    let (blocks, threads) = (stage.blocks() * REGION_PCT / 100, job.threads as u64);
    let left = AtomicUsize::new(job.threads);
    let mut parts: Vec<Part> = (0..threads)
        .map(|i| Part {
            blocks: blocks * (i + 1) / threads - blocks * i / threads,
            ..Part::default()
        })
        .collect();
    let mut readers: Vec<Taker> = (0..READERS as u64)
        .map(|i| Taker::new(&stage, stage.seed_of_cpu(i)))
        .collect();
    let (stage_, left_) = (&stage, &left);
    let mut jobs: Vec<deckle_model::Job<'_>> = Vec::new();
    for part in &mut parts {
        jobs.push(cpu(move || {
            part.fault(stage_);
            left_.fetch_sub(1, Relaxed);
        }));
    }
    let files = job.pages * FILES_PCT / 100 / READERS as u64;
    for reader in &mut readers {
        jobs.push(cpu(move || {
            for _ in (0..files).take_while(|_| left_.load(Relaxed) > 0) {
                reader.take();
            }
        }));
    }
    stage.play(jobs)?;
    let wrong = readers.into_iter().filter_map(|r| r.wrong);
    let short = parts.iter().filter_map(|p| p.wrong.clone());
    stage.end(wrong.chain(short).next())?;
    let mut outcome = Outcome::default();
    let mut base = 0;
    for part in parts {
        outcome.blocks += part.huge;
        base += part.base;
        outcome.latency.extend(part.latency);
    }
    let all = (outcome.blocks + base).max(1);
    outcome.success_pct = 100.0 * outcome.blocks as f64 / all as f64;
    Ok(outcome)
}

/// The part of the region that one CPU faults.
#[derive(Default)]
struct Part {
    blocks: u64,
    /// Blocks faulted as a whole, and with single pages.
    huge: u64,
    base: u64,
    /// Steps until each block was there.
    latency: Vec<u64>,
    wrong: Option<String>,
}

impl Part {
    fn fault(&mut self, stage: &Stage) {
        let mut area = Area::new(stage, None, ROUNDS);
        let mut oldest = Oldest::new(stage);
        for block in 0..self.blocks {
            let start = stage.machine.steps();
            if area.block().is_some() {
                self.huge += 1;
            } else {
                for page in 0..stage.block_pages() {
                    let Some(pfn) = oldest.page() else {
                        let what = format!("no memory for page {page} of block {block}");
                        self.wrong.get_or_insert(what);
                        return;
                    };
                    // Memory of programs: it can be swapped.
                    stage.make_reclaimable(pfn);
                }
                self.base += 1;
            }
            self.latency.push(stage.machine.steps() - start);
        }
    }
}
