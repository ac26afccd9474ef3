//! The CPUs that take single pages, and how they are kept in step with reclaim.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use deckle_mm::frame::{AllocFlags, Goal, Reclaim, Request, alloc_pages};
use deckle_mm::{Machine, Pfn, Site};
use deckle_model::Rng;

use super::stage::Stage;

/// Pages that a CPU keeps before it lets the oldest of them go.
pub const HELD: usize = 64;
/// Of 100 pages that it lets go, those that it frees; the others stay, reclaimable.
pub const SHORT_LIVED_PCT: u32 = 75;
/// Pages that reclaim may be ahead of the CPUs that take pages.
pub const AHEAD: u64 = 2048;

/// Credit is counted in parts of a page, so that a quarter of a page can be owed to each CPU.
const QUARTERS: u64 = 4;

/// Keeps the rate: for each page reclaimed, each of the CPUs may take its share.
pub(super) struct Pace {
    /// Quarters of a page that may be taken for each page reclaimed, by all CPUs together.
    quarters: u64,
    /// What each CPU may take still. A page costs a quarter times the number of CPUs.
    credit: Vec<AtomicU64>,
    /// Changes when there is more credit, or when all is over.
    more: AtomicU32,
    /// Changes when a CPU has no credit left.
    dry: AtomicU32,
    over: AtomicBool,
}

impl Pace {
    pub fn new(cpus: usize, quarters: u64) -> Self {
        Self {
            quarters,
            credit: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            more: AtomicU32::new(0),
            dry: AtomicU32::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn cpus(&self) -> u64 {
        self.credit.len() as u64
    }

    fn owed(&self) -> u64 {
        self.credit.iter().map(|c| c.load(Relaxed)).sum()
    }

    /// `pages` were reclaimed. Waits for the others if they are too far behind.
    pub fn reclaimed<M: Machine>(&self, m: &M, pages: u64) {
        for credit in &self.credit {
            credit.fetch_add(pages * self.quarters, Relaxed);
        }
        self.more.fetch_add(1, Relaxed);
        m.unpark(&self.more, u32::MAX);
        if self.owed() <= AHEAD * self.quarters * self.cpus() {
            return;
        }
        loop {
            let seen = self.dry.load(Relaxed);
            // Less than a page is left to each.
            if self.owed() < QUARTERS * self.cpus() * self.cpus() {
                break;
            }
            m.park(&self.dry, seen);
        }
    }

    /// Waits until CPU `me` may take a page; false when all is over.
    fn next<M: Machine>(&self, m: &M, me: usize) -> bool {
        let price = QUARTERS * self.cpus();
        loop {
            let seen = self.more.load(Relaxed);
            if self.over.load(Relaxed) {
                return false;
            }
            if self.credit[me].load(Relaxed) >= price {
                self.credit[me].fetch_sub(price, Relaxed);
                return true;
            }
            self.dry.fetch_add(1, Relaxed);
            m.unpark(&self.dry, 1);
            m.park(&self.more, seen);
        }
    }

    /// Nobody has to take pages any more.
    pub fn end<M: Machine>(&self, m: &M) {
        self.over.store(true, Relaxed);
        self.more.fetch_add(1, Relaxed);
        m.unpark(&self.more, u32::MAX);
    }
}

/// A CPU that takes single pages, keeps each for a while, and lets it go.
pub(super) struct Taker<'a> {
    stage: &'a Stage,
    rng: Rng,
    held: VecDeque<Pfn>,
    oldest: Oldest<'a>,
    /// The first thing that went wrong.
    pub wrong: Option<String>,
}

impl<'a> Taker<'a> {
    pub fn new(stage: &'a Stage, seed: u64) -> Self {
        Self {
            stage,
            rng: Rng::new(seed),
            held: VecDeque::new(),
            oldest: Oldest::new(stage),
            wrong: None,
        }
    }

    /// Takes pages as CPU `me` of `pace`, until it is over.
    pub fn keep_pace(&mut self, pace: &Pace, me: usize) {
        while pace.next(&self.stage.machine, me) {
            self.take();
        }
    }

    /// Takes a page, and lets the oldest one go if there are enough.
    pub fn take(&mut self) {
        if let Some(pfn) = self.oldest.page() {
            self.held.push_back(pfn);
        }
        if self.held.len() <= HELD {
            return;
        }
        let Some(pfn) = self.held.pop_front() else {
            return;
        };
        if self.rng.chance(SHORT_LIVED_PCT, 100) {
            if let Err(e) = self.stage.zone().free(&self.stage.machine, pfn, 0) {
                self.wrong.get_or_insert(e.to_string());
            }
        } else {
            self.stage.make_reclaimable(pfn);
        }
    }
}

/// Reclaim of the oldest pages, whatever they lie next to: what a request for one page does.
pub(super) struct Oldest<'a> {
    stage: &'a Stage,
    isolated: Vec<Pfn>,
}

impl<'a> Oldest<'a> {
    pub fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            isolated: Vec::new(),
        }
    }

    /// A single page, with reclaim if there is none.
    pub fn page(&mut self) -> Option<Pfn> {
        let stage = self.stage;
        let flags = AllocFlags::DIRECT_RECLAIM | AllocFlags::NOWARN;
        let request = Request::new(0).with_flags(flags);
        let got = alloc_pages(&stage.machine, &stage.zones(), &request, Some(self));
        got.ok().map(|a| a.pfn)
    }
}

impl Reclaim for Oldest<'_> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        let m = &self.stage.machine;
        self.stage
            .isolate_oldest(goal.pages as usize, &mut self.isolated);
        let freed = self.stage.release(&self.isolated);
        m.preempt(Site::Released);
        freed
    }
}

/// Reclaim of the oldest page and of all others in its block: what a request for a block does.
pub(super) struct Area<'a> {
    stage: &'a Stage,
    pace: Option<&'a Pace>,
    rounds: u32,
    isolated: Vec<Pfn>,
    /// Pages freed so far.
    pub freed: u64,
}

/// Pages released at a time.
pub const BATCH: usize = 32;

impl<'a> Area<'a> {
    /// At most `rounds` rounds for each request; with `pace`, in step with others.
    pub fn new(stage: &'a Stage, pace: Option<&'a Pace>, rounds: u32) -> Self {
        Self {
            stage,
            pace,
            rounds,
            isolated: Vec::new(),
            freed: 0,
        }
    }

    /// A block, with reclaim if there is none, and whether it came from the capture list.
    pub fn block(&mut self) -> Option<(Pfn, bool)> {
        let stage = self.stage;
        let flags = AllocFlags::DIRECT_RECLAIM | AllocFlags::NOWARN;
        let request = Request {
            // Rounds are limited, not pages.
            reclaim_pages: u64::MAX,
            ..Request::new(stage.order).with_flags(flags)
        };
        let got = alloc_pages(&stage.machine, &stage.zones(), &request, Some(self));
        got.ok().map(|a| (a.pfn, a.captured))
    }
}

impl Reclaim for Area<'_> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        if goal.round >= self.rounds {
            return 0;
        }
        let m = &self.stage.machine;
        self.stage.isolate_block(&mut self.isolated);
        let mut freed = 0;
        for batch in self.isolated.chunks(BATCH) {
            freed += self.stage.release(batch);
            if let Some(pace) = self.pace {
                pace.reclaimed(m, batch.len() as u64);
            }
            m.preempt(Site::Released);
        }
        self.freed += freed;
        freed
    }
}
