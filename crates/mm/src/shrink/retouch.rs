//! Splits that were soon regretted.
//!
//! A write to a page that the shrinker has dropped costs a fault and a page, and gains no huge
//! page back: the split was a mistake. A write counts as *soon* while the shrinker has split
//! in few passes since. The share of dropped pages that came back soon raises the threshold
//! for further splits (profile `deckle`): only emptier huge pages are taken, and at the worst
//! none but those without a single filled page. The share fades with each pass, so that the
//! shrinker tries again.
//!
//! The program also gets back what it wants (profile `deckle`). A block that the shrinker took
//! apart counts the pages that came back. The first few come one by one, as a single write says
//! little and memory was short; after that each write brings as many as have come back so far
//! (a power of two of a size that is enabled, what is around it and not there). So a program that
//! fills the block after all takes some ten faults for it instead of five hundred, and one that
//! does not gets at most as much again as it has asked for. While the shrinker is on, the same
//! holds for a block that was taken apart because the program gave a part of it back, since who
//! fills that part again pays as many faults, and what comes back in vain is taken again; with it
//! off nobody would take it. Profile `linux` has Linux's faults and no others.

use crate::beyond::Beyond;
use crate::env::Env;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::{Block, PROGRAM};
use crate::tunables::Tunables;
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, order_pages};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Passes that split something, after which a write to a dropped page is no longer soon.
const SOON: u32 = 8;
/// Pages dropped or come back that make up one look at the share.
const WINDOW: u64 = 512;
/// Share of dropped pages, in per cent, that raises the threshold all the way.
const TOO_MANY: u32 = 50;

/// Pages that come back one by one.
const ONE_BY_ONE: u32 = 4;

/// What became of dropped pages. Two CPUs at once may take the same look twice, which makes it
/// weigh more and not wrong.
#[derive(Debug, Default)]
pub(crate) struct Retouch {
    /// Passes that split something; 0 for none yet.
    pass: AtomicU32,
    dropped: AtomicU64,
    back: AtomicU64,
    percent: AtomicU32,
}

impl Retouch {
    fn look(&self) -> u32 {
        let (dropped, back) = (self.dropped.load(Relaxed), self.back.load(Relaxed));
        let percent = self.percent.load(Relaxed);
        if dropped + back < WINDOW {
            return percent;
        }
        self.dropped.store(0, Relaxed);
        self.back.store(0, Relaxed);
        let now = (back * 100 / dropped.max(1)).min(100) as u32;
        let percent = (percent + now).div_ceil(2);
        self.percent.store(percent, Relaxed);
        percent
    }
}

impl<E: Env> Mm<E> {
    /// Per cent of the pages that the shrinker dropped that were soon written again.
    pub fn retouch_percent(&self) -> u32 {
        self.retouch.look()
    }

    /// The threshold of the shrinker now: `max_ptes_none`, higher while its splits are
    /// regretted.
    pub fn underused_threshold(&self, t: &Tunables) -> u32 {
        let base = u32::from(t.max_ptes_none);
        let most = BLOCK_PAGES - 1;
        if !t.beyond(Beyond::Threshold) || base >= most {
            return base;
        }
        let share = self.retouch_percent().min(TOO_MANY);
        base + (most - base) * share / TOO_MANY
    }

    /// A pass of the shrinker begins: what it learned fades.
    pub(crate) fn shrink_pass(&self) {
        let percent = self.retouch.look();
        let faded = percent - percent.div_ceil(64);
        self.retouch.percent.store(faded, Relaxed);
        self.retouch.pass.fetch_add(1, Relaxed);
    }

    /// The shrinker has dropped `pages` of a block, which its caller has marked busy.
    pub(crate) fn shrunk(&self, block: &Block, pages: u32) {
        block.shrunk.store(self.retouch.pass.load(Relaxed), Relaxed);
        block.back.store(0, Relaxed);
        self.retouch.dropped.fetch_add(u64::from(pages), Relaxed);
    }

    /// The order of what a write brings back of a block that was taken apart; 0 for others.
    pub(crate) fn comes_back(&self, block: &Block) -> u8 {
        match (block.shrunk.load(Relaxed), block.back.load(Relaxed)) {
            (0, _) | (_, 0..ONE_BY_ONE) => 0,
            (_, back) => (back.ilog2() as u8).min(BLOCK_ORDER - 1),
        }
    }

    /// A folio of `order` was mapped in a block, where pages were missing; `dropped`: the one that
    /// was written was dropped by reclaim.
    pub(crate) fn came_back(&self, block: &Block, order: u8, dropped: bool) {
        let at = block.shrunk.load(Relaxed);
        if at == 0 {
            return;
        }
        if order == BLOCK_ORDER {
            // A huge page of its own again.
            block.shrunk.store(0, Relaxed);
            return;
        }
        block.back.fetch_add(order_pages(order), Relaxed);
        let by_shrinker = at != PROGRAM;
        if dropped && by_shrinker && self.retouch.pass.load(Relaxed).wrapping_sub(at) < SOON {
            self.stats().add(Item::ThpUnderusedRetouch, 1);
            // The share is one of memory: what came back in vain was dropped in vain.
            let pages = u64::from(order_pages(order));
            self.retouch.back.fetch_add(pages, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_looked_at_when_enough_was_dropped_or_came_back() {
        let look = |dropped, back| {
            let seen = Retouch::default();
            seen.percent.store(40, Relaxed);
            seen.dropped.store(dropped, Relaxed);
            seen.back.store(back, Relaxed);
            (seen.look(), seen.dropped.load(Relaxed))
        };
        assert_eq!(look(WINDOW - 2, 1), (40, WINDOW - 2));
        assert_eq!(look(WINDOW, 0), (20, 0));
        // 70 of a hundred came back, and all.
        assert_eq!(look(300, 212), (55, 0));
        assert_eq!(look(0, WINDOW), (70, 0));
    }
}
