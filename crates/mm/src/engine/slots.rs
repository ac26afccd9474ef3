//! The swap map: which slots of the store are in use.
//!
//! Slots are handed out in runs, so that a huge page that is swapped out whole needs one
//! number instead of 512. A slot has one user when it is handed out, and one more for each
//! fork that finds it in use: only for such slots a count is kept. A page that was read back
//! may keep its slot (`cache.rs`).

use crate::charge::{Charge, OverLimit};
use crate::engine::Engine;
use crate::env::Env;
use crate::store::Store;
use crate::units::Slot;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Free runs of slots below a growing end.
///
/// Invariant: free runs are disjoint, never adjacent, and all below `end`;
/// `used + sum(free runs) = end`.
pub struct SlotMap {
    /// first slot -> number of slots
    free: BTreeMap<u32, u32>,
    end: u32,
    used: u64,
    /// slot -> users beyond the first; never 0
    more: BTreeMap<u32, u32>,
}

impl SlotMap {
    /// No slot in use.
    pub const fn new() -> SlotMap {
        SlotMap {
            free: BTreeMap::new(),
            end: 0,
            used: 0,
            more: BTreeMap::new(),
        }
    }

    /// Adds `users` to each of a run of slots in use.
    pub fn share(&mut self, first: Slot, count: u32, users: u32) {
        if users > 0 {
            for slot in first.0..first.0 + count {
                *self.more.entry(slot).or_insert(0) += users;
            }
        }
    }

    /// Takes one user from each of a run of slots; the slots (first, count) that had no other
    /// are in use still, and the caller's to free.
    pub fn leave(&mut self, first: Slot, count: u32) -> Vec<(Slot, u32)> {
        let end = first.0 + count;
        let mut last = Vec::new();
        let mut at = first.0;
        let shared: Vec<u32> = self.more.range(at..end).map(|(&s, _)| s).collect();
        for slot in shared {
            if slot > at {
                last.push((Slot(at), slot - at));
            }
            at = slot + 1;
            if let Some(n) = self.more.get_mut(&slot) {
                *n -= 1;
                if *n == 0 {
                    self.more.remove(&slot);
                }
            }
        }
        if at < end {
            last.push((Slot(at), end - at));
        }
        last
    }

    /// Users of a slot in use.
    pub fn users(&self, slot: Slot) -> u32 {
        1 + self.more.get(&slot.0).copied().unwrap_or(0)
    }

    /// Slots in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// A run of `count` unused slots; `None` when the numbers are used up.
    pub fn alloc(&mut self, count: u32) -> Option<Slot> {
        // First fit; a long free list is only walked while it is fragmented into runs that
        // are too short, and then not for ever.
        let fit = self
            .free
            .iter()
            .take(64)
            .find(|&(_, &n)| n >= count)
            .map(|(&s, &n)| (s, n));
        let first = match fit {
            Some((start, n)) => {
                self.free.remove(&start);
                if n > count {
                    self.free.insert(start + count, n - count);
                }
                start
            }
            None => {
                let start = self.end;
                self.end = self.end.checked_add(count)?;
                start
            }
        };
        self.used += count as u64;
        Some(Slot(first))
    }

    /// Returns slots.
    pub fn free(&mut self, first: Slot, count: u32) {
        if count == 0 {
            return;
        }
        let (mut start, mut n) = (first.0, count);
        if let Some((&s, &c)) = self.free.range(..start).next_back()
            && s + c == start
        {
            self.free.remove(&s);
            (start, n) = (s, c + n);
        }
        if let Some(c) = self.free.remove(&(start + n)) {
            n += c;
        }
        if start + n == self.end {
            self.end = start;
        } else {
            self.free.insert(start, n);
        }
        self.used -= count as u64;
    }

    /// Checks the invariant.
    pub fn verify(&self) -> bool {
        let mut next = 0u32;
        let mut sum = 0u64;
        for (&s, &n) in &self.free {
            if n == 0 || s < next || (next > 0 && s == next) {
                return false;
            }
            next = s + n;
            sum += n as u64;
        }
        next < self.end.max(1) && sum + self.used == self.end as u64
    }
}

impl Default for SlotMap {
    fn default() -> SlotMap {
        SlotMap::new()
    }
}

impl<E: Env> Engine<E> {
    /// A run of slots, charged to `memory.swap.max`.
    pub(crate) fn alloc_slots(&self, count: u32) -> Result<Slot, OverLimit> {
        if let Err(over) = self.charge().try_charge_swap(count as u64) {
            // Slots that are only kept to save work go first.
            let n = u64::from(count);
            if self.shrink_copies(n) == 0 && self.shrink_family(n) == 0 {
                return Err(over);
            }
            self.charge().try_charge_swap(count as u64)?;
        }
        let slot = self.swap.slots.lock(self.machine()).alloc(count);
        slot.ok_or_else(|| {
            self.charge().uncharge_swap(count as u64);
            OverLimit {
                asked: count as u64,
                max: u32::MAX as u64,
                usage: u32::MAX as u64,
            }
        })
    }

    /// Returns slots that hold nothing in the store.
    pub(crate) fn free_slots(&self, first: Slot, count: u32) {
        if count > 0 {
            self.swap.slots.lock(self.machine()).free(first, count);
            self.charge().uncharge_swap(count as u64);
        }
    }

    /// Drops one use of each of a run of stored pages; those that nobody else uses leave the
    /// store, and their slots are free.
    pub(crate) fn drop_swapped(&self, first: Slot, count: u32) {
        if count == 0 {
            return;
        }
        let last = self.swap.slots.lock(self.machine()).leave(first, count);
        for (first, count) in last {
            self.store().free(first, count);
            self.free_slots(first, count);
        }
    }

    /// Adds `users` to each of a run of stored pages.
    pub(crate) fn share_swapped(&self, first: Slot, count: u32, users: u32) {
        self.swap
            .slots
            .lock(self.machine())
            .share(first, count, users);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_freed_by_its_last_user() {
        let mut map = SlotMap::new();
        let first = map.alloc(8).unwrap();
        map.share(first.add(2), 3, 1);
        map.share(first.add(3), 1, 1);
        let users: Vec<u32> = (0..8).map(|i| map.users(first.add(i))).collect();
        assert_eq!(users, [1, 1, 2, 3, 2, 1, 1, 1]);
        let left = map.leave(first, 8);
        assert_eq!(left, [(first, 2), (first.add(5), 3)]);
        assert_eq!(
            map.leave(first.add(2), 3),
            [(first.add(2), 1), (first.add(4), 1)]
        );
        assert_eq!(map.leave(first.add(3), 1), [(first.add(3), 1)]);
        assert!(map.more.is_empty() && map.used() == 8);
    }

    #[test]
    fn slot_runs_never_overlap_and_merge_back() {
        let mut map = SlotMap::new();
        let mut held: Vec<(Slot, u32)> = Vec::new();
        let mut seed = 12345u64;
        for _ in 0..5000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let r = (seed >> 33) as u32;
            if !r.is_multiple_of(3) || held.is_empty() {
                let n = r % 512 + 1;
                let s = map.alloc(n).unwrap();
                assert!(held.iter().all(|&(t, m)| t.0 + m <= s.0 || s.0 + n <= t.0));
                held.push((s, n));
            } else {
                let (s, n) = held.swap_remove(r as usize % held.len());
                map.free(s, n);
            }
            assert!(map.verify());
            assert_eq!(map.used(), held.iter().map(|h| h.1 as u64).sum::<u64>());
        }
        for (s, n) in held {
            map.free(s, n);
        }
        assert!(map.verify());
        assert_eq!((map.used(), map.end), (0, 0));
    }
}
