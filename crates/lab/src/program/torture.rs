//! `torture [SIZE] [--threads N] [--seconds S] [--seed N] [--no-fork] [--rest S]`: threads write,
//! read, advise and fork over patterned pages and check every one. `--rest`: then stands still
//! for so long, so that what memory is used can be read.
//!
//! Each thread owns every n-th page. A page begins with a word that counts its writes; the rest
//! follows from seed, page number and that word, so that a page from another place, an older
//! state of the page, or a page of zeros is told from a right one. The content is compressible
//! about 8:1. A forked child checks pages it shares with its parent, writes some of them, checks
//! again, and ends; the parent's must not have changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deckle_sys::mapping::{Advice, Words};

use super::{Failure, in_child, in_threads, pages_of, parse, say, seconds};
use crate::content::{mix, next};
use crate::region::{self, failed};
use crate::size::{self, PAGE};

/// Words of a page that differ from page to page and from write to write; the rest repeats one.
const NOISE: usize = 44;
const WORDS: usize = PAGE / 8;

#[derive(Clone, Copy, clap::Parser)]
#[command(name = "torture", no_binary_name = true)]
struct Plan {
    #[arg(value_name = "SIZE", default_value = "512M", value_parser = pages_of)]
    pages: usize,
    #[arg(long, default_value_t = 4)]
    threads: usize,
    #[arg(long = "seconds", default_value = "10", value_parser = seconds)]
    time: Duration,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long)]
    no_fork: bool,
    #[arg(long, default_value = "0", value_parser = seconds)]
    rest: Duration,
}

pub(super) fn main(args: &[&str]) -> Result<(), Failure> {
    let mut plan: Plan = parse(args)?;
    plan.threads = plan.threads.max(1);
    run(plan)
}

fn run(plan: Plan) -> Result<(), Failure> {
    let mut region = region::map(plan.pages * PAGE)?;
    let memory = region.words();
    let counts = Counts::default();
    let work = |thread| Worker::new(plan, thread, &memory, &counts).run();
    let results = in_threads(0..plan.threads, work);
    results.into_iter().collect::<Result<Vec<()>, Failure>>()?;
    let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
    say(format_args!(
        "torture: {} in {} threads: {} writes, {} checks, {} advices, {} forks; every page right",
        size::human((plan.pages * PAGE) as u64),
        plan.threads,
        n(&counts.writes),
        n(&counts.checks),
        n(&counts.advices),
        n(&counts.forks)
    ))?;
    if !plan.rest.is_zero() {
        say(format_args!("torture: at rest"))?;
        std::thread::sleep(plan.rest);
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    checks: AtomicU64,
    advices: AtomicU64,
    forks: AtomicU64,
}

struct Worker<'a> {
    plan: Plan,
    thread: usize,
    /// The region; each thread touches its own pages only.
    memory: &'a Words<'a>,
    counts: &'a Counts,
    random: u64,
    /// Writes of each of our pages; 0: reads as zeros.
    versions: Vec<u32>,
}

impl<'a> Worker<'a> {
    fn new(plan: Plan, thread: usize, memory: &'a Words<'a>, counts: &'a Counts) -> Worker<'a> {
        let ours = (plan.pages - thread).div_ceil(plan.threads);
        let random = mix(plan.seed ^ (thread as u64 + 1) << 40);
        Worker {
            plan,
            thread,
            memory,
            counts,
            random,
            versions: vec![0; ours],
        }
    }

    fn below(&mut self, n: usize) -> usize {
        (next(&mut self.random) % n as u64) as usize
    }

    /// Our `i`-th page in the region.
    fn page(&self, i: usize) -> usize {
        i * self.plan.threads + self.thread
    }

    fn word(&self, page: usize, version: u32, i: usize) -> u64 {
        if version == 0 {
            return 0;
        }
        if i == 0 {
            return version as u64 | (page as u64) << 32;
        }
        let salt = if i <= NOISE { i as u64 } else { 0 };
        mix(self.plan.seed ^ mix(page as u64 ^ (version as u64) << 32) ^ salt)
    }

    fn at(&self, page: usize, i: usize) -> &AtomicU64 {
        debug_assert!(page < self.plan.pages && i < WORDS);
        &self.memory[page * WORDS + i]
    }

    fn write(&mut self, i: usize) {
        let page = self.page(i);
        let version = self.versions[i] + 1;
        for w in 0..WORDS {
            let word = self.word(page, version, w);
            self.at(page, w).store(word, Ordering::Relaxed);
        }
        self.versions[i] = version;
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self, i: usize) -> Result<(), Failure> {
        let (page, version) = (self.page(i), self.versions[i]);
        for w in 0..WORDS {
            let found = self.at(page, w).load(Ordering::Relaxed);
            let want = self.word(page, version, w);
            if found != want {
                let byte = (found ^ want).trailing_zeros() as usize / 8;
                return Err(Failure::Mismatch {
                    page,
                    offset: w * 8 + byte,
                    found: (found >> (byte * 8)) as u8,
                    want: (want >> (byte * 8)) as u8,
                });
            }
        }
        self.counts.checks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn advise(&mut self, i: usize) -> Result<(), Failure> {
        let advices = [Advice::Cold, Advice::PageOut, Advice::WillNeed];
        let page = self.page(i);
        // Advice that keeps the contents may cover the pages of the others too.
        let (advice, pages) = match self.below(4) {
            3 => (Advice::DontNeed, 1),
            k => (advices[k], 1 + self.below(600)),
        };
        let pages = pages.min(self.plan.pages - page);
        let range = page * PAGE..(page + pages) * PAGE;
        self.memory
            .advise(range, advice)
            .map_err(failed("madvise"))?;
        if advice == Advice::DontNeed {
            self.versions[i] = 0;
        }
        self.counts.advices.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Forks; the child checks and writes a few pages and exits 0 if all were right.
    fn fork(&mut self) -> Result<(), Failure> {
        let from = self.below(self.versions.len());
        in_child(|| {
            (0..64).all(|k| {
                let i = (from + k) % self.versions.len();
                let right = self.check(i).is_ok();
                if k % 2 == 0 {
                    self.write(i);
                }
                right && self.check(i).is_ok()
            })
        })?;
        for k in 0..64 {
            self.check((from + k) % self.versions.len())?;
        }
        self.counts.forks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn run(mut self) -> Result<(), Failure> {
        for i in 0..self.versions.len() {
            self.write(i);
        }
        let end = Instant::now() + self.plan.time;
        let mut steps = 0u64;
        while Instant::now() < end {
            let i = self.below(self.versions.len());
            match self.below(100) {
                0..=39 => self.write(i),
                40..=97 => self.check(i)?,
                _ => self.advise(i)?,
            }
            steps += 1;
            if !self.plan.no_fork && steps.is_multiple_of(2000) {
                self.fork()?;
            }
        }
        (0..self.versions.len()).try_for_each(|i| self.check(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r148_torture_is_right_when_memory_is() {
        let time = Duration::from_millis(300);
        run(Plan {
            pages: 3000,
            threads: 3,
            time,
            seed: 5,
            no_fork: true,
            rest: Duration::ZERO,
        })
        .unwrap();
    }

    #[test]
    fn r148_torture_finds_one_flipped_bit() {
        let time = Duration::from_millis(1);
        let plan = Plan {
            pages: 8,
            threads: 1,
            time,
            seed: 5,
            no_fork: true,
            rest: Duration::ZERO,
        };
        let mut region = region::map(plan.pages * PAGE).unwrap();
        let memory = region.words();
        let counts = Counts::default();
        let mut worker = Worker::new(plan, 0, &memory, &counts);
        (0..8).for_each(|i| worker.write(i));
        (0..8).for_each(|i| worker.check(i).unwrap());
        memory[3 * WORDS + 100].fetch_xor(1 << 17, Ordering::Relaxed);
        match worker.check(3) {
            Err(Failure::Mismatch {
                page: 3,
                offset: 802,
                ..
            }) => {}
            other => panic!("not found: {other:?}"),
        }
    }
}
