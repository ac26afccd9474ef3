//! The two scanners.

use super::migrate::Migrated;
use crate::engine::folio::order_of;
use crate::engine::isolated::Isolated;
use crate::env::Env;
use crate::frame::{Flags, FreePool, Mobility, Seen, Zone};
use crate::mm::Mm;
use crate::stat::Item;
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, Pfn, order_pages};
use alloc::vec::Vec;

/// A walk of the two scanners over a zone. What it holds goes back by `compact_end`.
pub(crate) struct Compaction {
    pub order: u8,
    /// The next block to empty, aligned to the order.
    pub migrate: Pfn,
    /// Free frames below this one were not taken yet; aligned to a pageblock.
    pub free: Pfn,
    pub pool: FreePool,
    pub done: Migrated,
}

impl<E: Env> Mm<E> {
    /// Empties the next block in which everything can be moved. False: the scanners have met.
    pub(crate) fn compact_block(&self, zone: &Zone, c: &mut Compaction) -> bool {
        zone.drain(self.machine());
        let pages = order_pages(c.order);
        loop {
            let (block, next) = (c.migrate, c.migrate.add(pages));
            if next > c.free || next > zone.reached() {
                return false;
            }
            c.migrate = next;
            self.stats()
                .add(Item::CompactMigrateScanned, u64::from(pages));
            let Some(folios) = self.movable(zone, block, c.order) else {
                continue;
            };
            let need: u64 = folios
                .iter()
                .map(|(_, order)| u64::from(order_pages(*order)))
                .sum();
            if !self.find_free(zone, c, next, need) {
                return false;
            }
            let list = self.isolate_folios(&folios);
            let m = self.machine();
            let mut frames = |order| zone.folio_from(m, &mut c.pool, order);
            let (done, _) = self.migrate_list(list, &mut frames, true);
            c.done.moved += done.moved;
            c.done.zeros += done.zeros;
            c.done.stayed += done.stayed;
            return true;
        }
    }

    /// The folios of a block, if all of it is free or can be moved, and not all is free.
    fn movable(&self, zone: &Zone, block: Pfn, order: u8) -> Option<Vec<(Pfn, u8)>> {
        if zone.pageblock(block) != Mobility::Movable {
            return None;
        }
        let end = block.add(order_pages(order));
        let (mut at, mut folios) = (block, Vec::new());
        while at < end {
            let (seen, next) = zone.look_at(at);
            match seen {
                Seen::Free(o) if o < order => {}
                Seen::Folio(o) if o < order && self.may_move(at) => folios.push((at, o)),
                _ => return None,
            }
            at = next;
        }
        (!folios.is_empty()).then_some(folios)
    }

    fn may_move(&self, head: Pfn) -> bool {
        let meta = self.meta(head);
        meta.refs() > 0 && meta.has(Flags::LRU) && !meta.has(Flags::PINNED)
    }

    /// Takes free frames from above until there are `need`, none below `end`.
    fn find_free(&self, zone: &Zone, c: &mut Compaction, end: Pfn, need: u64) -> bool {
        while c.pool.pages() < need {
            let Some(from) = c.free.0.checked_sub(BLOCK_PAGES).map(Pfn) else {
                return false;
            };
            if from < end {
                return false;
            }
            c.free = from;
            let m = self.machine();
            let taken = zone.take_free(m, from, BLOCK_PAGES, c.order, &mut c.pool);
            let stats = self.stats();
            stats.add(Item::CompactFreeScanned, u64::from(BLOCK_PAGES));
            stats.add(Item::CompactIsolated, taken);
        }
        true
    }

    fn isolate_folios(&self, folios: &[(Pfn, u8)]) -> Isolated {
        let mut list = Isolated::default();
        for (head, order) in folios {
            let Some(folio) = self.isolate(*head) else {
                continue;
            };
            // Another folio may begin there by now; it goes with the others if it fits.
            if order_of(self.meta(*head)) <= *order {
                let pages = order_pages(order_of(self.meta(*head)));
                self.stats().add(Item::CompactIsolated, u64::from(pages));
                list.0.push(folio);
            } else {
                self.putback(folio);
            }
        }
        list
    }
}

/// The pageblock that `pfn` lies in, or begins.
pub(super) fn pageblock_up(pfn: Pfn) -> Pfn {
    Pfn(pfn.0.next_multiple_of(order_pages(BLOCK_ORDER)))
}
