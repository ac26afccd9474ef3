//! Compaction for who waits for a block, or asks for it.

use super::migrate::Migrated;
use super::scan::{Compaction, pageblock_up};
use crate::env::Env;
use crate::frame::{FreePool, Zone};
use crate::mm::Mm;
use crate::stat::Item;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Pfn};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most failures in a row that count: after n of them 2^n tries are let pass
/// (COMPACT_MAX_DEFER_SHIFT of Linux).
const MOST_DEFERRED: u32 = 6;

/// What compaction remembers of its failures.
#[derive(Debug, Default)]
pub(crate) struct CompactState {
    shift: AtomicU32,
    passed: AtomicU32,
    /// The smallest order that has failed; 0: none.
    failed: AtomicU32,
}

/// What a compaction that was asked for came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// Pages.
    pub pages: Migrated,
    /// Free blocks of the order, or larger ones, before and after.
    pub blocks: (u64, u64),
}

fn blocks_of(zone: &Zone, order: u8) -> u64 {
    let free = zone.free_by_order();
    (order..=MAX_ORDER)
        .map(|o| free[o as usize] << (o - order))
        .sum()
}

impl<E: Env> Mm<E> {
    /// Forms as many free blocks of `order` as can be had by moving pages, whatever that is
    /// good for.
    pub(crate) fn compact_memory(&self, order: u8) -> Compacted {
        let order = order.clamp(1, BLOCK_ORDER);
        let zone = self.zone_for(order);
        let mut done = Compacted::default();
        zone.drain(self.machine());
        done.blocks.0 = blocks_of(zone, order);
        let mut c = self.scanners(zone, order);
        while self.compact_block(zone, &mut c) {}
        self.compact_end(zone, &mut c);
        zone.drain(self.machine());
        done.blocks.1 = blocks_of(zone, order);
        done.pages = c.done;
        done
    }

    fn scanners(&self, zone: &Zone, order: u8) -> Compaction {
        let first = zone.span().first;
        let end = zone.reached();
        Compaction {
            order,
            migrate: pageblock_up(first),
            // The last block may be cut off by the end of what was ever used.
            free: Pfn(pageblock_up(end).0.max(first.0)),
            pool: FreePool::default(),
            done: Migrated::default(),
        }
    }

    /// Begins a direct compaction for a block of `order`. `None`: it is of no use now.
    pub(crate) fn compact_begin(&self, zone: &Zone, order: u8) -> Option<Compaction> {
        if !zone.compaction_suits(order) || self.compact_deferred(order) {
            return None;
        }
        self.stats().add(Item::CompactStall, 1);
        Some(self.scanners(zone, order))
    }

    /// Gives back what the scanners hold.
    pub(crate) fn compact_end(&self, zone: &Zone, c: &mut Compaction) {
        zone.give_back(self.machine(), &mut c.pool);
    }

    /// Whether to let this try pass, because the last ones have failed.
    fn compact_deferred(&self, order: u8) -> bool {
        let s = &self.compaction;
        let failed = s.failed.load(Relaxed);
        if failed == 0 || u32::from(order) < failed {
            return false;
        }
        let passed = s.passed.fetch_add(1, Relaxed) + 1;
        passed < 1 << s.shift.load(Relaxed)
    }

    /// Counts the outcome of a direct compaction.
    pub(crate) fn compact_outcome(&self, order: u8, success: bool) {
        let s = &self.compaction;
        s.passed.store(0, Relaxed);
        if success {
            self.stats().add(Item::CompactSuccess, 1);
            s.failed.store(0, Relaxed);
            s.shift.store(0, Relaxed);
        } else {
            self.stats().add(Item::CompactFail, 1);
            let failed = s.failed.load(Relaxed);
            if failed == 0 || u32::from(order) < failed {
                s.failed.store(u32::from(order), Relaxed);
            }
            let shift = s.shift.load(Relaxed);
            s.shift.store((shift + 1).min(MOST_DEFERRED), Relaxed);
        }
    }
}
