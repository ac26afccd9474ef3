//! The state of the machine behind its one lock, and the few ways to change it.
//!
//! Invariants: a frame's `maps` and `writers` count the entries of all page tables that point
//! to it; its `stale` counts its places in the `stale` map. Every change of an entry goes
//! through `set`, `set_huge` or `set_in_place`, which keep the first; `mark_stale` and
//! `flush_run` keep the second.

use crate::frames::Frames;
use crate::inject::{Chance, Injection};
use crate::model::Counters;
use crate::rng::Rng;
use crate::table::{Block, Pte, Space, Target};
use crate::tlb::Tlb;
use crate::unseen::Moving;
use crate::violation::{Broken, Violation};
use deckle_mm::{BLOCK_PAGES, BlockNr, FrameRun, PageRun, Pfn, Prot, SpaceId, Vpn};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) struct State {
    pub frames: Frames,
    pub spaces: BTreeMap<SpaceId, Space>,
    pub tlbs: Vec<Tlb>,
    /// Pages whose translation changed since the last flush, and the frames behind before.
    pub stale: BTreeMap<(SpaceId, Vpn), Vec<Stale>>,
    pub pins: BTreeSet<(SpaceId, Vpn)>,
    /// Pages that were unmapped, or are held, and that the program has not discarded since.
    pub remembered: BTreeSet<(SpaceId, Vpn)>,
    /// Pages that the program has unmapped, of which the core has not been told.
    pub gone: BTreeSet<(SpaceId, Vpn)>,
    /// A move by the program that the core does not follow yet.
    pub moving: Option<Moving>,
    /// Pages that are left to the system, with their rights.
    pub open: BTreeMap<(SpaceId, Vpn), Prot>,
    /// Frames that are the system's own, none where the zones have all there is.
    pub own: Range<u32>,
    /// Where the next of them is looked for.
    pub own_next: u32,
    pub rng: Rng,
    pub injection: Injection,
    pub violations: Vec<Violation>,
    pub panic_on_violation: bool,
    pub counters: Counters,
}

/// A translation that CPUs may hold still.
#[derive(Clone, Copy)]
pub(crate) struct Stale {
    /// `None`: the zero page.
    pfn: Option<Pfn>,
    writer: bool,
}

/// Where a violation happened, as far as known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    pub space: Option<SpaceId>,
    pub vpn: Option<Vpn>,
    pub pfn: Option<Pfn>,
}

impl Place {
    pub fn space(space: SpaceId) -> Place {
        Place {
            space: Some(space),
            ..Place::default()
        }
    }
    pub fn page(space: SpaceId, vpn: Vpn) -> Place {
        Place {
            space: Some(space),
            vpn: Some(vpn),
            pfn: None,
        }
    }
    pub fn frame(pfn: Pfn) -> Place {
        Place {
            pfn: Some(pfn),
            ..Place::default()
        }
    }
    pub fn with(self, pfn: Pfn) -> Place {
        Place {
            pfn: Some(pfn),
            ..self
        }
    }
}

impl State {
    pub fn broken(&mut self, op: &'static str, broken: Broken, place: Place) {
        let violation = Violation {
            op,
            broken,
            space: place.space,
            vpn: place.vpn,
            pfn: place.pfn,
        };
        self.violations.push(violation);
        if self.panic_on_violation && !std::thread::panicking() {
            panic!("broken pre-condition: {violation}");
        }
    }

    /// At which page of a run of `pages` an injected failure strikes, if it does.
    pub fn inject(&mut self, chance: Chance, pages: u32) -> Option<u32> {
        let hit = chance.roll(&mut self.rng);
        hit.then(|| self.rng.below(pages as u64) as u32)
    }

    /// Whether the run lies in one block; else a violation.
    pub fn check_run(&mut self, op: &'static str, run: PageRun) -> bool {
        let ok = run.pages >= 1 && run.start.index() + run.pages <= BLOCK_PAGES;
        if !ok {
            self.broken(op, Broken::BadRun, Place::page(run.space, run.start));
        }
        ok
    }

    /// Whether the frames exist and are `1..=most`; else a violation.
    pub fn check_frames(&mut self, op: &'static str, run: FrameRun, most: u32) -> bool {
        if run.pages == 0 || run.pages > most {
            self.broken(op, Broken::BadRun, Place::frame(run.start));
            return false;
        }
        // The system's own are nobody's to name.
        let ok = self.frames.has(run.start, run.pages) && run.start.0 + run.pages <= self.own.start;
        if !ok {
            self.broken(op, Broken::NoSuchFrame, Place::frame(run.start));
        }
        ok
    }

    pub fn check_space(&mut self, op: &'static str, space: SpaceId) -> bool {
        let ok = self.spaces.contains_key(&space);
        if !ok {
            self.broken(op, Broken::NoSuchSpace, Place::space(space));
        }
        ok
    }

    /// Records a violation if the frame may still be reached by an unflushed translation.
    pub fn check_flushed(&mut self, op: &'static str, pfn: Pfn) {
        if self.frames.get(pfn).stale > 0 {
            self.broken(op, Broken::UnflushedFrame, Place::frame(pfn));
        }
    }

    pub fn lookup(&self, space: SpaceId, vpn: Vpn) -> Option<(Pte, bool)> {
        self.spaces.get(&space)?.lookup(vpn)
    }

    fn count(&mut self, pte: Pte, up: bool) {
        let Target::Frame(pfn) = pte.target else {
            return;
        };
        let writer = pte.can_write() as u32;
        let frame = self.frames.get(pfn);
        if up {
            frame.maps += 1;
            frame.writers += writer;
        } else {
            frame.maps -= 1;
            frame.writers -= writer;
        }
    }

    fn check_shared(&mut self, op: &'static str, space: SpaceId, vpn: Vpn, pte: Pte) {
        let Target::Frame(pfn) = pte.target else {
            return;
        };
        let frame = self.frames.get(pfn);
        if frame.maps > 1 && frame.writers > 0 {
            let place = Place::page(space, vpn).with(pfn);
            self.broken(op, Broken::SharedWritable, place);
        }
    }

    /// Sets the small entry of `vpn`; a huge mapping there is split. The space exists.
    pub fn set(&mut self, op: &'static str, space: SpaceId, vpn: Vpn, new: Option<Pte>) {
        if let Some((old, _)) = self.lookup(space, vpn) {
            self.count(old, false);
        }
        let table = self.spaces.get_mut(&space).expect("the space exists");
        if table.set(vpn, new) {
            self.counters.huge_splits += 1;
        }
        if let Some(pte) = new {
            self.count(pte, true);
            self.check_shared(op, space, vpn, pte);
        }
    }

    /// Makes the block one huge mapping, or changes it, or takes it away with its entry.
    pub fn set_huge(&mut self, op: &'static str, space: SpaceId, block: BlockNr, new: Option<Pte>) {
        let table = self.spaces.get_mut(&space).expect("the space exists");
        let old = table.huge(block);
        match new {
            Some(pte) => table.blocks.insert(block.0, Block::Huge(pte)),
            None => table.blocks.remove(&block.0),
        };
        for i in 0..BLOCK_PAGES {
            if let Some(pte) = old {
                self.count(pte.part(i), false);
            }
            if let Some(pte) = new {
                self.count(pte.part(i), true);
                self.check_shared(op, space, block.start().add(i as u64), pte.part(i));
            }
        }
    }

    /// The huge mapping that the run covers wholly.
    pub fn whole_huge(&self, run: PageRun) -> Option<Pte> {
        if !run.is_block() {
            return None;
        }
        self.spaces.get(&run.space)?.huge(run.start.block())
    }

    /// Notes that CPUs may hold the former translation of the page.
    pub fn mark_stale(&mut self, space: SpaceId, vpn: Vpn, old: Pte) {
        let writer = old.can_write();
        let pfn = match old.target {
            Target::Frame(pfn) => Some(pfn),
            Target::Zero => None,
        };
        if let Some(pfn) = pfn {
            let frame = self.frames.get(pfn);
            frame.stale += 1;
            frame.stale_writers += u32::from(writer);
        }
        let stale = Stale { pfn, writer };
        self.stale.entry((space, vpn)).or_default().push(stale);
    }

    /// Removes the translations of the run from every TLB.
    pub fn flush_run(&mut self, space: SpaceId, start: Vpn, pages: u64) {
        for tlb in &mut self.tlbs {
            tlb.flush(space, start, pages);
        }
        let end = Vpn(start.0.saturating_add(pages));
        let keys: Vec<_> = (self.stale.range((space, start)..(space, end)))
            .map(|(&k, _)| k)
            .collect();
        for key in keys {
            for stale in self.stale.remove(&key).into_iter().flatten() {
                if let Some(pfn) = stale.pfn {
                    let frame = self.frames.get(pfn);
                    frame.stale -= 1;
                    frame.stale_writers -= u32::from(stale.writer);
                }
            }
        }
        self.counters.flushes += 1;
    }
}
