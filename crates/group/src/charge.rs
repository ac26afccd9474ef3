//! The account: batches per CPU slot, exact limits without a lock.
//!
//! A charge is first added to the process's own line, then all lines are summed. If the sum
//! is within the limit the charge is granted, else it is taken back. Let `x` be the granted
//! charge whose addition came last: its sum saw every other granted charge, so at no time do
//! granted charges pass the limit. Two that race for the last pages may both be refused;
//! nobody is ever granted too much. A process killed between the two steps leaves the addition
//! in its line, from where it is returned with the rest.
//!
//! So that not each page costs a sum, a slot takes a batch of pages at once and spends them alone:
//! 32, and of a process that is large among many more, since a sum is as dear as there are lines.
//! Before a charge fails, the unspent pages of every slot of every process are drained.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

use deckle_mm::{Charge, OverLimit};
use deckle_sys::clock::this_cpu;

use crate::attach::Group;
use crate::layout::{Line, SLOTS, Slot};
use crate::line::LineId;

/// Pages that a slot takes at once, at least.
const BATCH: u64 = 32;
/// The part of what a slot has charged that it may take at once: what is unspent counts in peaks.
const SHARE: u64 = 64;
/// Lines that are summed for each page of a batch, where that is allowed.
const LINES_PER_PAGE: u64 = 8;

/// Pages that a slot with `charged` pages takes at once where there are `lines`; of twice as many
/// unspent ones it returns some.
fn batch(charged: i64, lines: usize) -> u64 {
    let most = BATCH.max(lines as u64 / LINES_PER_PAGE);
    (charged.max(0) as u64 / SHARE).clamp(BATCH, most)
}

const UNSPENT_BITS: u32 = 24;
const UNSPENT_MASK: u64 = (1 << UNSPENT_BITS) - 1;

/// `charged` (signed, includes the unspent) and `unspent` of one slot.
fn unpack(word: u64) -> (i64, u64) {
    ((word as i64) >> UNSPENT_BITS, word & UNSPENT_MASK)
}

fn pack(charged: i64, unspent: u64) -> u64 {
    ((charged << UNSPENT_BITS) as u64) | (unspent & UNSPENT_MASK)
}

pub(crate) fn change(word: &AtomicU64, f: impl Fn(i64, u64) -> Option<(i64, u64)>) -> bool {
    word.fetch_update(SeqCst, Relaxed, |w| {
        let (charged, unspent) = unpack(w);
        f(charged, unspent).map(|(c, u)| pack(c, u))
    })
    .is_ok()
}

/// Pages charged by a line, unspent batches included. Momentarily negative sums of slots that
/// are read while pages go from one to the other count as zero.
fn charged_of(line: &Line, slots: usize) -> i64 {
    line.slots[..slots]
        .iter()
        .map(|s| unpack(s.word.load(SeqCst)).0)
        .sum()
}

/// Pages charged by a line, without unspent ones.
pub(crate) fn spent_of(line: &Line) -> u64 {
    spent_in(&line.slots)
}

fn spent_in(slots: &[Slot]) -> u64 {
    let spent = |s: &Slot| {
        let (charged, unspent) = unpack(s.word.load(SeqCst));
        charged - unspent as i64
    };
    slots.iter().map(spent).sum::<i64>().max(0) as u64
}

/// Has a line that nobody charges any more charged `pages`; at no moment is it less than the
/// smaller of that and what was charged.
pub(crate) fn replace(line: &Line, pages: u64) {
    let [first, rest @ ..] = &line.slots;
    for slot in &line.slots {
        change(&slot.word, |charged, _| (charged < 0).then_some((0, 0)));
    }
    first.word.store(pack(pages as i64, 0), SeqCst);
    rest.iter().for_each(|slot| slot.word.store(0, SeqCst));
}

impl Group {
    fn slots(&self) -> usize {
        (self.page.slots.load(Relaxed) as usize).clamp(1, SLOTS)
    }

    /// Everything charged, unspent batches included: what limits are held against.
    fn charged(&self) -> u64 {
        let slots = self.slots();
        self.lines()
            .iter()
            .map(|l| charged_of(l, slots))
            .sum::<i64>()
            .max(0) as u64
    }

    /// Pages in use by the whole group (memory.current), without unspent batches.
    pub fn usage(&self) -> u64 {
        let slots = self.slots();
        let spent = |l: &Line| spent_in(&l.slots[..slots]);
        self.lines().iter().map(spent).sum()
    }

    /// Largest amount that was ever charged at one time, unspent batches included; above
    /// `memory.max` only after a forced charge.
    pub fn peak(&self) -> u64 {
        self.page.peak.load(Relaxed)
    }

    /// Pages of swap in use by the whole group (memory.swap.current).
    pub fn swap_usage(&self) -> u64 {
        self.lines()
            .iter()
            .fold(0, |sum, l| sum.saturating_add(l.swap.load(SeqCst)))
    }

    /// Largest `swap_usage` ever.
    pub fn swap_peak(&self) -> u64 {
        self.page.swap_peak.load(Relaxed)
    }

    /// Takes back the unspent batches of every process. How many pages that gave.
    pub fn drain(&self) -> u64 {
        let (mut got, slots) = (0, self.slots());
        for line in self.lines() {
            for slot in &line.slots[..slots] {
                let before = slot.word.fetch_update(AcqRel, Relaxed, |w| {
                    let (charged, unspent) = unpack(w);
                    (unspent > 0).then(|| pack(charged - unspent as i64, 0))
                });
                got += before.map_or(0, |w| unpack(w).1);
            }
        }
        got
    }
}

/// The account of one process in its group.
#[derive(Clone, Copy)]
pub struct GroupCharge {
    group: Group,
    line: LineId,
}

impl GroupCharge {
    /// Charges go to `line`, which a [`join`](Group::join) returned.
    pub fn new(group: Group, line: LineId) -> GroupCharge {
        GroupCharge { group, line }
    }
    /// The line.
    pub fn line(&self) -> LineId {
        self.line
    }

    /// Charges pages of swap even past the limit: for a child of fork, whose copy of its
    /// parent's pages is there already.
    pub fn force_charge_swap(&self, pages: u64) {
        if let Some(line) = self.group.line(self.line) {
            line.swap.fetch_add(pages, SeqCst);
            let sum = self.group.swap_usage();
            self.group.page.swap_peak.fetch_max(sum, Relaxed);
        }
    }

    fn slot(&self) -> Option<&AtomicU64> {
        let line = self.group.line(self.line)?;
        Some(&line.slots[this_cpu() % self.group.slots()].word)
    }

    /// Adds `pages` to the slot and keeps them only if the whole group stays within `max`.
    /// On success `spare` of them are unspent.
    fn claim(&self, slot: &AtomicU64, pages: u64, spare: u64) -> Result<(), u64> {
        let n = pages.min(1 << 38) as i64;
        change(slot, |c, u| Some((c + n, u)));
        let sum = self.group.charged();
        if sum > self.group.settings().max.load(Relaxed) {
            change(slot, |c, u| Some((c - n, u)));
            return Err(sum.saturating_sub(n as u64));
        }
        if spare > 0 {
            change(slot, |c, u| Some((c, (u + spare).min(UNSPENT_MASK))));
        }
        self.group.page.peak.fetch_max(sum, Relaxed);
        Ok(())
    }
}

impl Charge for GroupCharge {
    fn try_charge(&self, pages: u64) -> Result<(), OverLimit> {
        let refused = |usage| OverLimit {
            asked: pages,
            max: self.max(),
            usage,
        };
        let Some(slot) = self.slot() else {
            return Err(refused(self.usage()));
        };
        if pages == 0 || change(slot, |c, u| (u >= pages).then(|| (c, u - pages))) {
            return Ok(());
        }
        let batch = batch(unpack(slot.load(Relaxed)).0, self.group.lines().len());
        if pages < batch && self.claim(slot, batch, batch - pages).is_ok() {
            return Ok(());
        }
        let mut usage = 0;
        // Twice: what a first drain finds may be pages that another was about to get refused.
        for _ in 0..2 {
            match self.claim(slot, pages, 0) {
                Ok(()) => return Ok(()),
                Err(sum) => usage = sum,
            }
            self.group.drain();
        }
        self.claim(slot, pages, 0).map_err(|_| refused(usage))
    }

    fn force_charge(&self, pages: u64) {
        let Some(slot) = self.slot() else { return };
        let n = pages.min(1 << 38) as i64;
        change(slot, |c, u| Some((c + n, u)));
        self.group
            .page
            .peak
            .fetch_max(self.group.charged(), Relaxed);
    }

    fn uncharge(&self, pages: u64) {
        let Some(slot) = self.slot() else { return };
        let lines = self.group.lines().len();
        change(slot, |c, u| {
            let (unspent, batch) = (u.saturating_add(pages), batch(c, lines));
            if unspent <= 2 * batch {
                return Some((c, unspent));
            }
            Some((c - (unspent - batch).min(1 << 38) as i64, batch))
        });
    }

    fn try_charge_swap(&self, pages: u64) -> Result<(), OverLimit> {
        let max = self.group.settings().swap_max.load(Relaxed);
        let refused = |usage| OverLimit {
            asked: pages,
            max,
            usage,
        };
        let Some(line) = self.group.line(self.line) else {
            return Err(refused(self.group.swap_usage()));
        };
        line.swap.fetch_add(pages, SeqCst);
        let sum = self.group.swap_usage();
        if sum > max {
            line.swap.fetch_sub(pages, SeqCst);
            return Err(refused(sum.saturating_sub(pages)));
        }
        self.group.page.swap_peak.fetch_max(sum, Relaxed);
        Ok(())
    }

    fn uncharge_swap(&self, pages: u64) {
        if let Some(line) = self.group.line(self.line) {
            let take = |n: u64| Some(n.saturating_sub(pages));
            let _ = line.swap.fetch_update(SeqCst, Relaxed, take);
        }
    }

    fn usage(&self) -> u64 {
        self.group.usage()
    }
    fn max(&self) -> u64 {
        self.group.settings().max.load(Relaxed)
    }
    fn high(&self) -> u64 {
        self.group.settings().high.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_with_the_lines_and_stay_a_small_part_of_what_is_charged() {
        for lines in [0, 1, 255, 256] {
            assert_eq!(batch(i64::MAX, lines), BATCH, "{lines} lines");
        }
        for (charged, lines) in [(0, 10_000), (-5, 10_000), (2048, 10_000), (1 << 20, 4000)] {
            let pages = batch(charged, lines);
            assert!(pages == BATCH || pages <= charged as u64 / SHARE);
            assert!(pages == BATCH || pages <= lines as u64 / LINES_PER_PAGE);
        }
        assert_eq!(batch(1 << 20, 10_000), 1250);
        assert_eq!(batch(64_000, 10_000), 1000);
    }
}
