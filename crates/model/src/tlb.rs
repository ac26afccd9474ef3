//! The translations that one CPU has cached.
//!
//! An entry is used without a look at the page table. Only two things make a CPU walk again:
//! a right that the entry lacks, and a dirty bit that it knows it must set. So a
//! translation that was taken away lives on here until it is flushed or happens to be
//! replaced.

use crate::rng::Rng;
use deckle_mm::{BLOCK_PAGES, Pfn, SpaceId, Vpn};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub space: SpaceId,
    /// The page; the first of its block if huge.
    pub vpn: Vpn,
    pub huge: bool,
    /// The (first) frame; `None` for the shared zero page.
    pub pfn: Option<Pfn>,
    pub read: bool,
    pub write: bool,
    /// The page table's dirty bit is known to be set.
    pub dirty: bool,
}

impl Entry {
    fn pages(&self) -> u64 {
        if self.huge { BLOCK_PAGES as u64 } else { 1 }
    }
    fn touches(&self, space: SpaceId, start: Vpn, pages: u64) -> bool {
        let end = start.0.saturating_add(pages);
        self.space == space && self.vpn.0 < end && start.0 < self.vpn.0 + self.pages()
    }
    /// The frame of page `vpn`, which the entry covers.
    pub fn frame(&self, vpn: Vpn) -> Option<Pfn> {
        self.pfn.map(|p| p.add((vpn.0 - self.vpn.0) as u32))
    }
}

pub(crate) struct Tlb {
    entries: Vec<Entry>,
    capacity: usize,
}

impl Tlb {
    pub fn new(capacity: usize) -> Tlb {
        Tlb {
            entries: Vec::new(),
            capacity,
        }
    }
    pub fn find(&mut self, space: SpaceId, vpn: Vpn) -> Option<(usize, Entry)> {
        let i = (self.entries.iter()).position(|e| e.touches(space, vpn, 1))?;
        Some((i, self.entries[i]))
    }
    pub fn remove(&mut self, i: usize) {
        self.entries.swap_remove(i);
    }
    /// Adds an entry, in the place of a random one if the TLB is full.
    pub fn insert(&mut self, entry: Entry, rng: &mut Rng) {
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
        } else if self.capacity > 0 {
            let victim = rng.below(self.capacity as u64) as usize;
            self.entries[victim] = entry;
        }
    }
    /// Drops every entry that covers a page of the run.
    pub fn flush(&mut self, space: SpaceId, start: Vpn, pages: u64) {
        self.entries.retain(|e| !e.touches(space, start, pages));
    }
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
