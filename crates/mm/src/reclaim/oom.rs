//! Out of memory: the last thing to try, and the report.

use crate::charge::Charge;
use crate::engine::folio::AllocError;
use crate::engine::space::{BlockRef, Space};
use crate::env::Env;
use crate::frame::WhyFailed;
use crate::frames::Frames;
use crate::mm::Mm;
use crate::stat::Item;
use crate::store::Store;
use crate::table::block::BlockState;
use crate::units::{BlockNr, PAGE_SIZE, PageMask, SpaceId, Vpn};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Largest ranges that a report names.
const RANGES: usize = 5;
/// Least pages of zeros that are dropped at once when nothing else can go: to know that, all that
/// is mapped was unmapped and looked at.
const ZEROS: u64 = 1024;

/// What memory looked like when it was out. Amounts are pages.
#[derive(Clone, Debug)]
pub struct OomReport {
    /// What failed.
    pub failed: AllocError,
    /// Usage of the group.
    pub usage: u64,
    /// `memory.max`.
    pub max: u64,
    /// Pages mapped.
    pub mapped: u64,
    /// Pages resident but unmapped.
    pub inactive: u64,
    /// Pages left to the system, which are charged.
    pub open: u64,
    /// Pages in the store.
    pub swapped: u64,
    /// RAM of the store, in bytes.
    pub store_bytes: u64,
    /// Whether the store takes pages at all.
    pub swap: bool,
    /// Pages that did not compress enough to be stored.
    pub rejected: u64,
    /// Huge pages.
    pub huge: u64,
    /// The largest mappings: space, first page, pages.
    pub ranges: Vec<(SpaceId, Vpn, u64)>,
    /// Why there was no block, where it is frames that lack and they are memory.
    pub why: Option<Box<WhyFailed>>,
}

impl OomReport {
    /// Whether it is frames that lack, not a limit of the group.
    pub fn lacks_frames(&self) -> bool {
        matches!(self.failed, AllocError::NoFrame { .. })
    }
}

struct Kb(u64);

impl fmt::Display for Kb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}kB", self.0.saturating_mul(PAGE_SIZE as u64 / 1024))
    }
}

impl fmt::Display for OomReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "memory: usage {}, limit {}",
            Kb(self.usage),
            Kb(self.max)
        )?;
        writeln!(
            f,
            "anon: mapped {}, inactive {}, open {}, huge pages {}",
            Kb(self.mapped),
            Kb(self.inactive),
            Kb(self.open),
            self.huge
        )?;
        if self.swap {
            write!(
                f,
                "swap: {} in {}kB of store; {} pages did not compress",
                Kb(self.swapped),
                self.store_bytes / 1024,
                self.rejected
            )?;
        } else {
            f.write_str("swap: none")?;
        }
        for (_, start, pages) in &self.ranges {
            write!(f, "\nrange {:#x}: {}", start.addr(), Kb(*pages))?;
        }
        match &self.why {
            Some(why) => write!(f, "\n{why}"),
            None => Ok(()),
        }
    }
}

impl<E: Env> Mm<E> {
    /// The report after `failed`.
    pub(crate) fn oom_report(&self, failed: AllocError) -> OomReport {
        let mut ranges = Vec::new();
        for space in self.all_spaces() {
            space.read_vmas(self, |tree| {
                ranges.extend(tree.iter().map(|v| (space.id, v.start, v.pages)));
            });
        }
        ranges.sort_by_key(|r| core::cmp::Reverse(r.2));
        ranges.truncate(RANGES);
        OomReport {
            failed,
            usage: self.charge().usage(),
            max: self.charge().max(),
            mapped: self.stats().get(Item::NrAnon),
            inactive: self.stats().get(Item::NrInactive),
            open: self.stats().get(Item::NrOpen),
            swapped: self.stats().get(Item::NrSwapped),
            store_bytes: self.store().ram_bytes(),
            swap: self.store().accepts(),
            rejected: self.stats().get(Item::StoreReject),
            huge: self.stats().get(Item::NrThp),
            ranges,
            why: match failed {
                AllocError::NoFrame { order } => E::Frames::why(self, order),
                AllocError::Charge(_) => None,
            },
        }
    }

    /// The last step before an out-of-memory kill: looks at every huge page for zero pages
    /// that can be dropped, whatever the knobs say, until `target` pages are free, or a portion
    /// that is worth the rounds that found nothing.
    pub(crate) fn oom_drop_zeros(&self, target: u64) -> u64 {
        let target = target.max(ZEROS);
        let mut freed = 0;
        for space in self.all_spaces() {
            for (block, first, _) in space.parts(self, space.base, space.pages) {
                if freed >= target {
                    return freed;
                }
                freed += self.drop_zeros_of_huge(&space, &block, first.block());
            }
        }
        freed
    }

    fn drop_zeros_of_huge(&self, space: &Space, block: &BlockRef, nr: BlockNr) -> u64 {
        let Ok(taken) = self.take_huge(space, block, nr, None) else {
            return 0;
        };
        let h = taken.h;
        let zero = self.zeros_among(h.pfn, &PageMask::FULL);
        let new = if zero == PageMask::EMPTY {
            // The next touch takes it back.
            BlockState::Huge(h)
        } else {
            self.stats().add(Item::ThpOomSplitPage, 1);
            BlockState::Table(self.shatter(space, nr, h, zero, PageMask::EMPTY, None))
        };
        taken.busy.end(self, new);
        zero.count() as u64
    }
}
