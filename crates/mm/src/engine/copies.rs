//! The swap cache: a page that was read back keeps its slot, and if it is evicted unchanged it
//! is not stored again.
//!
//! Which pages are unchanged is found by comparing bytes at the eviction, when nobody can write
//! them. So the cache is a hint: whatever happens to a frame meanwhile (written, split, moved
//! away and back), a wrong hint costs a comparison and never a byte. The other way, installing
//! the page write-protected and giving its slot up at the first write, costs a fault for each
//! page that is written (66 to 72 us, where a comparison takes 2.9 to 3.9 and storing 3.7 to 4.0:
//! cheaper only while fewer than one page in twenty is written), and knows nothing any more once
//! the page was unmapped to learn whether it is in use (a page that is moved back comes without
//! its protection).
//!
//! With lz4 a comparison costs three quarters of what storing costs (`swap_cache` of the live
//! crate's benchmarks), so it is for stores that are slow to write: the tunable
//! `swap_cache` says where it is on.
//!
//! A copy takes memory that a resident page could have, so there are few of them:
//! - Only a page that was *read* keeps its slot; one that came back to be written will change.
//! - They may take an eighth of `memory.max`, as long as the whole store takes no more than
//!   three quarters of it (the idea of Linux's `vm_swap_full`: a slot is kept while there is
//!   plenty). When there is no room, new pages keep none, and old copies stay: in a loop over
//!   more than fits, the oldest copy is the next one to be used.
//! - If most copies turn out stale, only one read in sixteen keeps any, to see whether that has
//!   changed.
//! - They go first when memory or slots are short: before a round of reclaim evicts what needs
//!   more room, when `memory.swap.max` refuses a slot, and before anything is said to be out.

use crate::charge::Charge;
use crate::engine::Engine;
use crate::env::Env;
use crate::scratch::PORTION;
use crate::stat::{Item, Stats};
use crate::store::Store;
use crate::units::{BLOCK_PAGES, FrameRun, PAGE_SIZE, PageMask, Pfn, Slot};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Copies may take one part in so many of `memory.max`.
const SHARE: u64 = 8;
/// Per cent of compared copies that must be good. A comparison reads the copy, which costs from a
/// tenth (zstd) to most (lz4, pages that hardly compress) of what storing costs: with fewer hits
/// it may be a loss.
const PAYS: u64 = 40;
/// Comparisons that make up one look.
const LOOK: u64 = 256;
/// When copies do not pay, one swap-in of so many keeps them.
const SAMPLE: u64 = 16;

/// Pages of a folio by index, with their slots.
type Places = Vec<(u32, Slot)>;

/// Who has a slot that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// This manager alone.
    Own,
    /// Others too, since a fork; and how many times a family had been left then.
    Family { left: u64 },
}

/// Which slot holds what a frame held when it was filled. Each is a user of its slot.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// frame -> slot
    slots: BTreeMap<u32, u32>,
    /// The same, of slots that several processes have since a fork, or will: they take memory once
    /// for all of these, and none comes back when one gives them up.
    family: BTreeMap<u32, u32>,
}

impl Copies {
    pub const fn new() -> Copies {
        Copies {
            slots: BTreeMap::new(),
            family: BTreeMap::new(),
        }
    }

    /// Removes and returns those of `pages` frames from `first` on, as (index, slot).
    fn take(&mut self, first: Pfn, pages: u32) -> Vec<(u32, Slot)> {
        let range = first.0..first.0.saturating_add(pages);
        let mut found = Vec::new();
        for map in [&mut self.slots, &mut self.family] {
            let old = found.len();
            let here = map.range(range.clone());
            found.extend(here.map(|(&p, &s)| (p - first.0, Slot(s))));
            for (k, _) in &found[old..] {
                map.remove(&(first.0 + k));
            }
        }
        found.sort_unstable_by_key(|&(k, _)| k);
        found
    }

    /// Every frame and its slot.
    pub fn iter(&self) -> impl Iterator<Item = (Pfn, Slot)> {
        let all = self.slots.iter().chain(&self.family);
        all.map(|(&p, &s)| (Pfn(p), Slot(s)))
    }
}

/// How many of the copies that were compared were good, lately.
#[derive(Debug)]
pub(crate) struct Worth {
    good: AtomicU64,
    stale: AtomicU64,
    percent: AtomicU64,
    tries: AtomicU64,
}

impl Worth {
    pub const fn new() -> Worth {
        Worth {
            good: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            percent: AtomicU64::new(100),
            tries: AtomicU64::new(0),
        }
    }

    /// Whether a swap-in should keep copies.
    fn pays(&self, stats: &Stats) -> bool {
        let (good, stale) = (
            stats.get(Item::SwpoutUnchanged),
            stats.get(Item::SwpoutStale),
        );
        let hit = good.saturating_sub(self.good.load(Relaxed));
        let all = hit + stale.saturating_sub(self.stale.load(Relaxed));
        if all >= LOOK {
            // Two callers may take the same look: it weighs more then, and is not wrong.
            self.good.store(good, Relaxed);
            self.stale.store(stale, Relaxed);
            let before = self.percent.load(Relaxed);
            self.percent
                .store((before + hit * 100 / all).div_ceil(2), Relaxed);
        }
        self.percent.load(Relaxed) >= PAYS
            || self.tries.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
    }
}

/// Runs (first index, first slot, pages) of what is in a row both ways.
pub(crate) fn slot_runs(list: &[(u32, Slot)]) -> Vec<(u32, Slot, u32)> {
    let mut runs: Vec<(u32, Slot, u32)> = Vec::new();
    for &(k, slot) in list {
        match runs.last_mut() {
            Some((first, from, n)) if *first + *n == k && from.add(*n) == slot => *n += 1,
            _ => runs.push((k, slot, 1)),
        }
    }
    runs
}

impl<E: Env> Engine<E> {
    /// Copies that may be kept now, in pages.
    fn copies_allowed(&self) -> u64 {
        let (max, store) = (self.charge().max(), self.store_charged());
        if store > max / 4 * 3 {
            return 0;
        }
        // A copy takes what the average stored page takes.
        let stored = self.store().stored_pages();
        let (stored, store) = match stored {
            0 => (1, 1),
            _ => (u128::from(stored), u128::from(store.max(1))),
        };
        let room = u128::from(max / SHARE) * stored / store;
        u64::try_from(room).unwrap_or(u64::MAX)
    }

    /// Whether pages that a read brings back now from these slots should keep them, and as whose.
    pub(crate) fn wants_copies(&self, slots: &[(u32, Slot)]) -> Option<Whose> {
        // Before the question: who leaves a family takes its slots back first.
        let left = self.swap.families_left.load(Acquire);
        if slots.iter().all(|&(_, slot)| self.store().is_shared(slot)) {
            return Some(Whose::Family { left });
        }
        let pages = slots.len() as u64;
        let have = self.stats().get(Item::NrSwapcached);
        let wants = self.tunables().swap_cache
            && have + pages <= self.copies_allowed()
            && self.swap.worth.pays(self.stats());
        wants.then_some(Whose::Own)
    }

    /// The frames from `pfn` on were filled from these slots; each use of a slot is the cache's
    /// from now on. The caller owns the frames. False, and nothing is kept, if the family has been
    /// left since it was asked who wants them.
    pub(crate) fn keep_copies(&self, pfn: Pfn, slots: &[(u32, Slot)], whose: Whose) -> bool {
        let mut copies = self.swap.copies.lock(self.machine());
        let map = match whose {
            Whose::Family { left } if left != self.swap.families_left.load(Relaxed) => {
                return false;
            }
            Whose::Family { .. } => &mut copies.family,
            Whose::Own => &mut copies.slots,
        };
        map.extend(slots.iter().map(|(k, slot)| (pfn.0 + k, slot.0)));
        drop(copies);
        self.stats().add(Item::NrSwapcached, slots.len() as u64);
        true
    }

    /// A frame will be shared by a fork, with its copy; the use of the slot is the cache's from now
    /// on. The caller owns the frame.
    pub(crate) fn keep_for_family(&self, pfn: Pfn, slot: Slot) {
        let mut copies = self.swap.copies.lock(self.machine());
        copies.family.insert(pfn.0, slot.0);
        drop(copies);
        self.stats().add(Item::NrSwapcached, 1);
    }

    /// The copies of the frames of a folio; each use of a slot is the caller's.
    fn take_copies(&self, pfn: Pfn, pages: u32) -> Vec<(u32, Slot)> {
        if self.stats().get(Item::NrSwapcached) == 0 {
            return Vec::new();
        }
        let found = self.swap.copies.lock(self.machine()).take(pfn, pages);
        self.stats().sub(Item::NrSwapcached, found.len() as u64);
        found
    }

    /// The copy of one frame; its use of the slot is the caller's.
    pub(crate) fn take_copy(&self, pfn: Pfn) -> Option<Slot> {
        self.take_copies(pfn, 1).pop().map(|(_, slot)| slot)
    }

    /// Whether a frame has a copy, good or stale.
    pub(crate) fn has_copy(&self, pfn: Pfn) -> bool {
        let copies = self.swap.copies.lock(self.machine());
        copies.slots.contains_key(&pfn.0) || copies.family.contains_key(&pfn.0)
    }

    /// Whether there may be `pages` copies more.
    pub(crate) fn has_room_for_copies(&self, pages: u64) -> bool {
        let have = self.stats().get(Item::NrSwapcached);
        have + pages <= self.copies_allowed()
    }

    /// Whether a slot holds these bytes, of one page.
    pub(crate) fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        let mut buffer = self.swap.scratch.take(self.machine(), PAGE_SIZE);
        let got = self.store().get(slot, &mut buffer[..PAGE_SIZE]);
        let same = got.is_ok() && buffer[..PAGE_SIZE] == *page;
        self.swap.scratch.give_back(self.machine(), buffer);
        same
    }

    /// Frames are about to be free: what was kept for them goes. The caller settles the store.
    pub(crate) fn forget_copies(&self, pfn: Pfn, pages: u32) {
        for (_, slot, n) in slot_runs(&self.take_copies(pfn, pages)) {
            self.drop_swapped(slot, n);
        }
    }

    /// No other manager has any copy together with this one any more, or this one pays for all of
    /// them: those go that it would not have kept alone. The caller settles the store.
    pub fn leave_family(&self) {
        let mut copies = self.swap.copies.lock(self.machine());
        self.swap.families_left.fetch_add(1, Release);
        if self.tunables().swap_cache {
            let family = core::mem::take(&mut copies.family);
            copies.slots.extend(family);
            return;
        }
        drop(copies);
        self.shrink_family(u64::MAX);
    }

    /// Gives up to `most` copies back that are this manager's alone; returns how many.
    pub(crate) fn shrink_copies(&self, most: u64) -> u64 {
        self.drop_copies(most, |copies| &mut copies.slots)
    }

    /// The same of those that others have, too, which gives back slots, and no memory.
    pub(crate) fn shrink_family(&self, most: u64) -> u64 {
        self.drop_copies(most, |copies| &mut copies.family)
    }

    fn drop_copies(
        &self,
        most: u64,
        which: impl Fn(&mut Copies) -> &mut BTreeMap<u32, u32>,
    ) -> u64 {
        let have = self.stats().get(Item::NrSwapcached);
        let mut gone = Vec::new();
        if have > 0 && most > 0 {
            let mut copies = self.swap.copies.lock(self.machine());
            while (gone.len() as u64) < most
                && let Some((_, slot)) = which(&mut copies).pop_last()
            {
                gone.push(Slot(slot));
            }
        }
        if gone.is_empty() {
            return 0;
        }
        self.stats().sub(Item::NrSwapcached, gone.len() as u64);
        // Popped from the end: in order again, slots are in rows.
        gone.reverse();
        let list: Vec<(u32, Slot)> = (0..).zip(gone).collect();
        for (_, slot, n) in slot_runs(&list) {
            self.drop_swapped(slot, n);
        }
        list.len() as u64
    }

    /// Gives back what is more than may be kept now; returns how many copies that were.
    pub(crate) fn trim_copies(&self) -> u64 {
        let have = self.stats().get(Item::NrSwapcached);
        if have == 0 {
            return 0;
        }
        self.shrink_copies(have.saturating_sub(self.copies_allowed()))
    }

    /// Which of the pages of `filled` of a folio at rest are in the store already, byte for
    /// byte: their slots, whose use is the caller's. Then the slots of those that changed, which
    /// hold nothing any more and are the caller's to fill again. By index.
    pub(crate) fn unchanged(&self, pfn: Pfn, pages: u32, filled: PageMask) -> (Places, Places) {
        let (mut same, mut stale) = (Vec::new(), Vec::new());
        let mut list = self.take_copies(pfn, pages);
        list.retain(|&(k, slot)| {
            // Of zeros, and of what is not evicted, no copy is needed. A huge page's slots are
            // one row, and it was not filled from the store.
            let wanted = filled.get(k) && pages < BLOCK_PAGES;
            if !wanted {
                self.drop_swapped(slot, 1);
            }
            wanted
        });
        if list.is_empty() {
            return (same, stale);
        }
        for (first, slot, n) in slot_runs(&list) {
            let equal = self.compare(pfn.add(first), slot, n);
            for k in 0..n {
                match equal.get(k) {
                    true => same.push((first + k, slot.add(k))),
                    false => stale.push((first + k, slot.add(k))),
                }
            }
        }
        self.stats().add(Item::SwpoutUnchanged, same.len() as u64);
        self.stats().add(Item::SwpoutStale, stale.len() as u64);
        // What others use, too, is theirs.
        stale.retain(|&(_, slot)| {
            let alone = self.swap.slots.lock(self.machine()).users(slot) == 1;
            match alone {
                true => self.store().free(slot, 1),
                false => self.drop_swapped(slot, 1),
            }
            alone
        });
        (same, stale)
    }

    /// Which frames of a run at rest hold what the slots hold. A slot that cannot be read counts
    /// as different: what is in memory is right.
    fn compare(&self, pfn: Pfn, slot: Slot, pages: u32) -> PageMask {
        let mut equal = PageMask::EMPTY;
        let bytes = pages.min(PORTION) as usize * PAGE_SIZE;
        let mut buffer = self.swap.scratch.take(self.machine(), bytes);
        for at in (0..pages).step_by(PORTION as usize) {
            let n = PORTION.min(pages - at);
            let buffer = &mut buffer[..n as usize * PAGE_SIZE];
            let read = match self.store().get(slot.add(at), buffer) {
                Ok(()) => n,
                Err(e) => e.done.min(n),
            };
            if read == 0 {
                continue;
            }
            let run = FrameRun::new(pfn.add(at), read);
            self.with_bytes(run, &mut |now| {
                let both = now.chunks(PAGE_SIZE).zip(buffer.chunks(PAGE_SIZE));
                for (k, (now, stored)) in both.take(read as usize).enumerate() {
                    if now == stored {
                        equal.set(at + k as u32);
                    }
                }
            });
        }
        self.swap.scratch.give_back(self.machine(), buffer);
        equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_taken_once_and_in_rows() {
        let mut copies = Copies::new();
        for (p, s) in [(10, 100), (11, 101), (12, 200), (14, 202), (40, 1)] {
            copies.slots.insert(p, s);
        }
        let found = copies.take(Pfn(8), 8);
        let want = [(2, 100), (3, 101), (4, 200), (6, 202)];
        assert_eq!(found, want.map(|(k, s)| (k, Slot(s))));
        assert_eq!(
            slot_runs(&found),
            [(2, Slot(100), 2), (4, Slot(200), 1), (6, Slot(202), 1)]
        );
        assert!(copies.take(Pfn(8), 8).is_empty());
        assert_eq!(copies.iter().count(), 1);
    }

    #[test]
    fn copies_that_go_stale_are_kept_rarely_until_they_are_good_again() {
        let (stats, worth) = (Stats::new(), Worth::new());
        let kept = || (0..160).filter(|_| worth.pays(&stats)).count();
        assert_eq!(kept(), 160);
        for _ in 0..4 {
            stats.add(Item::SwpoutStale, LOOK);
            worth.pays(&stats);
        }
        assert_eq!(kept(), 10);
        for _ in 0..4 {
            stats.add(Item::SwpoutUnchanged, LOOK);
            worth.pays(&stats);
        }
        assert_eq!(kept(), 160);
    }
}
