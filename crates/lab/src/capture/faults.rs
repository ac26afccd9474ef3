//! Huge page faults beside a cache, after thpchallenge of mmtests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use deckle_mm::frame::CapturePolicy;
use deckle_model::{Job, cpu};

use super::load::{Area, Oldest, Taker};
use super::stage::Stage;
use crate::LabError;

/// Of 100 pages of memory, those that are faulted.
const REGION_PCT: u64 = 80;
/// CPUs that read files.
const READERS: usize = 2;
/// Pages of the files, in percent of the memory.
const FILES_PCT: u64 = 150;
/// Rounds of reclaim for a huge page.
const ROUNDS: u32 = 1;

/// What one run is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// CPUs that fault.
    pub threads: usize,
    pub pages: u64,
    pub order: u8,
    pub policy: CapturePolicy,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Default, Debug)]
pub(super) struct Outcome {
    /// Blocks faulted as a whole, and with single pages.
    pub huge: u64,
    pub base: u64,
    /// Steps until each block was there.
    pub latency: Vec<u64>,
}

impl Outcome {
    pub fn huge_pct(&self) -> f64 {
        100.0 * self.huge as f64 / (self.huge + self.base).max(1) as f64
    }
}

impl Faults {
    pub fn run(&self) -> Result<Outcome, LabError> {
        let cpus = self.threads + READERS;
        let stage = Stage::new(cpus, self.pages, self.order, self.seed)?;
        stage.zone().set_capture(&stage.machine, self.policy);
        let blocks = stage.blocks() * REGION_PCT / 100;
        let left = AtomicUsize::new(self.threads);
        let mut parts: Vec<Part> = (0..self.threads as u64)
            .map(|i| Part {
                blocks: blocks * (i + 1) / self.threads as u64 - blocks * i / self.threads as u64,
                ..Part::default()
            })
            .collect();
        let mut readers: Vec<Taker> = (0..READERS as u64)
            .map(|i| Taker::new(&stage, stage.seed_of_cpu(i)))
            .collect();
        let (stage_, left_) = (&stage, &left);
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for part in &mut parts {
            jobs.push(cpu(move || {
                part.fault(stage_);
                left_.fetch_sub(1, Relaxed);
            }));
        }
        let files = self.pages * FILES_PCT / 100 / READERS as u64;
        for reader in &mut readers {
            jobs.push(cpu(move || {
                for _ in 0..files {
                    if left_.load(Relaxed) == 0 {
                        break;
                    }
                    reader.take();
                }
            }));
        }
        stage
            .machine
            .run(jobs)
            .map_err(|e| LabError::Model(e.to_string()))?;
        let wrong = readers.into_iter().filter_map(|r| r.wrong);
        let short = parts.iter().filter_map(|p| p.wrong.clone());
        stage.end(wrong.chain(short).next())?;
        let mut outcome = Outcome::default();
        for part in parts {
            outcome.huge += part.outcome.huge;
            outcome.base += part.outcome.base;
            outcome.latency.extend(part.outcome.latency);
        }
        Ok(outcome)
    }
}

/// The part of the region that one CPU faults.
#[derive(Default)]
struct Part {
    blocks: u64,
    outcome: Outcome,
    wrong: Option<String>,
}

impl Part {
    fn fault(&mut self, stage: &Stage) {
        let mut area = Area::new(stage, None, ROUNDS);
        let mut oldest = Oldest::new(stage);
        for block in 0..self.blocks {
            let start = stage.machine.steps();
            if area.block().is_some() {
                self.outcome.huge += 1;
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
                self.outcome.base += 1;
            }
            self.outcome.latency.push(stage.machine.steps() - start);
        }
    }
}
