//! The zone as the experiment finds it: aged, so that no block of the order asked for is free.

use std::sync::OnceLock;

use deckle_mm::frame::{Flags, FrameLookup, Link, List, Zone, ZoneConfig, Zonelist};
use deckle_mm::platform::FrameSpan;
use deckle_mm::sync::Lock;
use deckle_mm::{LockClass, Pfn};
use deckle_model::{Job, ModelMachine, Rng};

use crate::LabError;

/// Of 100 pages, those that reclaim can free.
pub const RECLAIMABLE_PCT: u64 = 70;
/// Of 100 pages, those that nobody can free or move.
pub const UNMOVABLE_PCT: u64 = 5;
/// One block in this many holds all of the unmovable pages.
pub const UNMOVABLE_BLOCKS_OF: u64 = 3;

/// The scheduler draws anew who runs once in this many preempt sites.
const SWITCH_OF: u32 = 64;
/// Steps after which a run counts as one that does not end.
const MAX_STEPS: u64 = 1 << 40;

/// FrameLookup, who may be reclaimed next, and the CPUs.
pub(super) struct Stage {
    pub machine: ModelMachine,
    zone: [Zone; 1],
    /// Reclaimable pages, the next to go at the tail.
    lru: Lock<List>,
    seed: u64,
    pub order: u8,
    /// The first release that the zone refused.
    wrong: OnceLock<String>,
}

impl Stage {
    /// A zone of `pages` pages, laid out by `seed`: reclaimable, unmovable and free pages in
    /// the shares above.
    pub fn new(cpus: usize, pages: u64, order: u8, seed: u64) -> Result<Stage, LabError> {
        let mut rng = Rng::new(seed);
        let machine = ModelMachine::new(cpus, rng.next_u64());
        let span = FrameSpan {
            first: Pfn(0),
            frames: pages as u32,
        };
        let stage = Stage {
            machine,
            zone: [Zone::with(span, ZoneConfig::contiguous(cpus))],
            lru: Lock::new(LockClass::Lru, 0, List::new(Link::Lru)),
            order,
            seed: rng.next_u64(),
            wrong: OnceLock::new(),
        };
        stage.machine.set_switch_of(SWITCH_OF);
        stage.machine.set_max_steps(MAX_STEPS);
        stage.lay_out(&mut rng)?;
        Ok(stage)
    }

    /// The zone.
    pub fn zone(&self) -> &Zone {
        &self.zone[0]
    }

    /// Where allocations look: the zone alone.
    pub fn zones(&self) -> Zonelist<'_> {
        Zonelist::new(&self.zone)
    }

    /// Pages of a block of the order asked for.
    pub fn block_pages(&self) -> u64 {
        1 << self.order
    }

    /// Blocks of the zone.
    pub fn blocks(&self) -> u64 {
        self.zone().span().frames as u64 >> self.order
    }

    fn lay_out(&self, rng: &mut Rng) -> Result<(), LabError> {
        let pages = self.zone().span().frames as u64;
        let mut all = vec![Pfn(0); pages as usize];
        let got = self.zone().alloc_bulk(&self.machine, &mut all);
        if got as u64 != pages {
            return Err(LabError::Model(format!(
                "{got} of {pages} frames to be had"
            )));
        }
        let unmovable = self.choose_unmovable(rng, pages * UNMOVABLE_PCT / 100);
        let mut rest: Vec<Pfn> = (0..pages)
            .filter(|i| !unmovable[*i as usize])
            .map(|i| Pfn(i as u32))
            .collect();
        shuffle(rng, &mut rest);
        let lru = (pages * RECLAIMABLE_PCT / 100).min(rest.len() as u64);
        let (reclaimable, free) = rest.split_at(lru as usize);
        let mut list = self.lru.lock(&self.machine);
        for &pfn in reclaimable {
            list.push_head(self.zone(), pfn);
        }
        drop(list);
        self.zone()
            .free_bulk(&self.machine, free)
            .map_err(|e| LabError::Model(e.to_string()))
    }

    /// Deals `count` pages to a third of the blocks, one to each block in turn.
    fn choose_unmovable(&self, rng: &mut Rng, count: u64) -> Vec<bool> {
        let (blocks, each) = (self.blocks(), self.block_pages());
        let mut chosen: Vec<u64> = (0..blocks).collect();
        shuffle(rng, &mut chosen);
        chosen.truncate((blocks / UNMOVABLE_BLOCKS_OF).max(1) as usize);
        let mut unmovable = vec![false; (blocks * each) as usize];
        let count = count.min(chosen.len() as u64 * each);
        for n in 0..count {
            let block = chosen[(n % chosen.len() as u64) as usize];
            loop {
                let page = block * each + rng.below(each);
                if !std::mem::replace(&mut unmovable[page as usize], true) {
                    break;
                }
            }
        }
        unmovable
    }

    /// Takes the oldest page off the LRU, and with it all others that are on the LRU and in
    /// its block, in the order of their addresses. (Reclaim of areas, as Linux had it when
    /// capture was written: one page alone never makes a block.)
    pub fn isolate_block(&self, out: &mut Vec<Pfn>) {
        out.clear();
        let mut list = self.lru.lock(&self.machine);
        let Some(tail) = list.tail() else { return };
        let first = tail.0 & !(self.block_pages() as u32 - 1);
        for pfn in (first..first + self.block_pages() as u32).map(Pfn) {
            if self.zone().get(pfn).is_some_and(|m| m.has(Flags::LRU)) {
                list.remove(self.zone(), pfn);
                out.push(pfn);
            }
        }
    }

    /// Takes up to `n` of the oldest pages off the LRU.
    pub fn isolate_oldest(&self, n: usize, out: &mut Vec<Pfn>) {
        out.clear();
        let mut list = self.lru.lock(&self.machine);
        while out.len() < n {
            let Some(pfn) = list.pop_tail(self.zone()) else {
                break;
            };
            out.push(pfn);
        }
    }

    /// A page becomes reclaimable, as the youngest.
    pub fn make_reclaimable(&self, pfn: Pfn) {
        self.lru.lock(&self.machine).push_head(self.zone(), pfn);
    }

    /// Frees pages that were isolated; how many.
    pub fn release(&self, pages: &[Pfn]) -> u64 {
        match self.zone().free_bulk(&self.machine, pages) {
            Ok(()) => pages.len() as u64,
            Err(e) => {
                self.wrong.get_or_init(|| e.to_string());
                e.done as u64
            }
        }
    }

    /// How whole the free memory is, 0 to 1: free blocks of the order asked for, as a part of
    /// those that the free pages could form (the score of LLFree's replay). `None` if they
    /// could form none.
    pub fn whole(&self) -> Option<f64> {
        let free = self.zone().free_by_order();
        let wanted = self.order as usize;
        let blocks: u64 = (wanted..free.len()).map(|o| free[o] << (o - wanted)).sum();
        let pages: u64 = free.iter().enumerate().map(|(o, n)| n << o).sum();
        (pages >= self.block_pages())
            .then(|| blocks as f64 * self.block_pages() as f64 / pages as f64)
    }

    /// A seed for what CPU `cpu` draws.
    pub fn seed_of_cpu(&self, cpu: u64) -> u64 {
        Rng::new(self.seed ^ (cpu << 32)).next_u64()
    }

    /// Runs simulated CPUs to their end.
    pub fn play(&self, cpus: Vec<Job<'_>>) -> Result<(), LabError> {
        let done = self.machine.run(cpus);
        done.map(|_| ()).map_err(|e| LabError::Model(e.to_string()))
    }

    /// After a run: that nothing went wrong, and that the zone's books are right.
    pub fn end(&self, wrong: Option<String>) -> Result<(), LabError> {
        match wrong.or_else(|| self.wrong.get().cloned()) {
            Some(wrong) => Err(LabError::Model(wrong)),
            None => self.zone().verify().map_err(LabError::Model),
        }
    }
}

fn shuffle<T>(rng: &mut Rng, all: &mut [T]) {
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
}
