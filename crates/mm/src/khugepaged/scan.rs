//! khugepaged: looks for blocks of small pages that are worth a huge one, a few at a time.
//!
//! What is worth one is less than what `collapse` does when it is asked to: where the order of
//! faults follows what they have shown (`fault_order` auto), small pages were given for a
//! reason, and a block must be nearly full of them; and a huge page that nobody waits for must
//! fit below `memory.high`, unless `defrag` says that others may be evicted for it. Blocks that
//! the shrinker takes apart have more holes and zeros than either allows (R140).

use crate::beyond::Beyond;
use crate::env::Env;
use crate::khugepaged::collapse::{CollapseError, Worth};
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::block::BlockState;
use crate::tunables::{FaultOrder, Tunables};
use crate::units::{BLOCK_PAGES, BlockNr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most holes and zeros of a block whose faults got small pages since that paid: an eighth, so
/// that what a collapse adds stays small beside what it speeds up.
const NEARLY_FULL: u32 = BLOCK_PAGES / 8;

/// Where khugepaged is.
#[derive(Debug, Default)]
pub(crate) struct Khugepaged {
    /// Space in the top 16 bits, block below.
    at: AtomicU64,
    ticks: AtomicU32,
    /// Ticks until which it rests, since there was no huge page.
    rests: AtomicU32,
}

/// What one call of [`Mm::khugepaged`] or [`Mm::khugepaged_scan`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Khugepage {
    /// Pages looked at.
    pub scanned: u32,
    /// Blocks that are huge pages now.
    pub collapsed: u32,
    /// There was no huge page for a block: rest for `alloc_sleep_millisecs`.
    pub failed: bool,
    /// The walk came to the end of all spaces; the next one starts over.
    pub ended: bool,
}

impl Tunables {
    /// What khugepaged takes for worth a huge page.
    fn worth(&self) -> Worth {
        let knobs = Worth::of(self);
        Worth {
            none: match self.fault_order {
                FaultOrder::Fixed => knobs.none,
                FaultOrder::Auto => knobs.none.min(NEARLY_FULL),
            },
            fits: self.beyond(Beyond::KhugepagedFits),
            defrag: self.khugepaged_defrag,
            ..knobs
        }
    }
}

impl<E: Env> Mm<E> {
    /// One tick of khugepaged: once in `scan_sleep_millisecs` it looks at
    /// `khugepaged_pages_to_scan` pages, from where it stopped, and collapses what is worth it.
    /// For a background context: it may reclaim and wait.
    pub fn khugepaged(&self) -> Khugepage {
        let t = self.tunables();
        let mut done = Khugepage::default();
        let tick = self.khugepaged.ticks.fetch_add(1, Relaxed);
        let rests = self.khugepaged.rests.load(Relaxed);
        if rests > 0 {
            self.khugepaged.rests.store(rests - 1, Relaxed);
            return done;
        }
        let ticks = |millisecs: u32| millisecs.div_ceil(Tunables::TICK_MILLISECS);
        if !tick.is_multiple_of(ticks(t.khugepaged_scan_sleep_millisecs).max(1)) {
            return done;
        }
        while done.scanned < t.khugepaged_pages_to_scan && !done.ended && !done.failed {
            let more = self.khugepaged_scan(t.khugepaged_pages_to_scan - done.scanned);
            done.scanned += more.scanned;
            done.collapsed += more.collapsed;
            (done.failed, done.ended) = (more.failed, more.ended);
        }
        if done.failed {
            let rests = ticks(t.khugepaged_alloc_sleep_millisecs);
            self.khugepaged.rests.store(rests, Relaxed);
        }
        done
    }

    /// Looks at up to `pages` pages from where the last call stopped, until one block was
    /// collapsed or could not be for want of a huge page: who calls has other work, too.
    pub fn khugepaged_scan(&self, pages: u32) -> Khugepage {
        let worth = self.tunables().worth();
        let mut done = Khugepage::default();
        let at = self.khugepaged.at.load(Relaxed);
        for space in self.all_spaces() {
            let here = u64::from(space.id.0) << 48;
            if here >> 48 < at >> 48 {
                continue;
            }
            let from = BlockNr(at.saturating_sub(here)).start().max(space.base);
            let rest = (space.base.0 + space.pages).saturating_sub(from.0);
            for (block, first, _) in space.parts(self, from, rest) {
                let table = matches!(&*block.lock(self), BlockState::Table(_));
                // A block without a table costs a look.
                done.scanned += if table { BLOCK_PAGES } else { 1 };
                if table {
                    let tried = self.collapse_if(space.id, first, &worth);
                    self.count_tried(tried, &mut done);
                }
                if done.collapsed > 0 || done.failed || done.scanned >= pages {
                    let next = here | (first.block().0 + 1);
                    self.khugepaged.at.store(next, Relaxed);
                    return done;
                }
            }
        }
        self.khugepaged.at.store(0, Relaxed);
        done.ended = true;
        done
    }

    fn count_tried(&self, tried: Result<(), CollapseError>, done: &mut Khugepage) {
        match tried {
            Ok(()) => done.collapsed += 1,
            Err(CollapseError::NoMemory | CollapseError::Limit) => done.failed = true,
            Err(CollapseError::ExceedNone(_)) => {
                self.stats().add(Item::ThpScanExceedNonePte, 1);
            }
            Err(CollapseError::ExceedSwap(_)) => {
                self.stats().add(Item::ThpScanExceedSwapPte, 1);
            }
            Err(CollapseError::ExceedShared(_)) => {
                self.stats().add(Item::ThpScanExceedSharePte, 1);
            }
            Err(_) => {}
        }
    }
}
