//! Moving an isolated folio of one place to other frames.

use crate::engine::busy::Busy;
use crate::engine::folio::order_of;
use crate::engine::isolated::{Isolated, IsolatedFolio};
use crate::engine::space::{BlockRef, Space};
use crate::engine::split::{FrozenFolio, SplitError, SplitFlags, live_of};
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::stat::Item;
use crate::sync::Guard;
use crate::table::block::{BlockState, HugeMap};
use crate::table::entry::{Entry, Kind};
use crate::units::{
    BLOCK_PAGES, BlockNr, FrameRun, PageMask, PageRun, Pfn, SpaceId, Vpn, order_pages,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

/// Why a folio was not moved; its pages are as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrateError {
    /// No folio is there, or somebody else has isolated it.
    NoFolio,
    /// Pages of it are being moved by somebody, or its block is in use.
    Busy,
    /// Pages of it are pinned, or cannot be taken from the program.
    Pinned,
    /// Another manager may hold pages of it, since a fork.
    Shared,
    /// Somebody holds a reference to it.
    Referenced,
    /// A frame of it is bad.
    Bad,
    /// There are no frames to move it to.
    NoFrame,
    /// The machine has no memory for the copy.
    NoMemory,
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MigrateError::NoFolio => "no folio is there",
            MigrateError::Busy => "pages of the folio are being moved",
            MigrateError::Pinned => "pages of the folio are pinned",
            MigrateError::Shared => "the folio is shared since a fork",
            MigrateError::Referenced => "somebody holds the folio",
            MigrateError::Bad => "a frame of the folio is bad",
            MigrateError::NoFrame => "there are no frames to move to",
            MigrateError::NoMemory => "there is no memory for the copy",
        })
    }
}

impl core::error::Error for MigrateError {}

/// What a migration came to, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Migrated {
    /// Moved to other frames.
    pub moved: u32,
    /// Pages of zeros that became zero entries when a folio was split.
    pub zeros: u32,
    /// Left where they were.
    pub stayed: u32,
}

/// Where frames come from: `None` if there are none of the order.
pub(super) type Frames<'a> = dyn FnMut(u8) -> Option<Pfn> + 'a;

/// What was unmapped and marked busy, and how it was before.
enum Was {
    Huge(HugeMap),
    /// Index in the folio, and entry.
    Entries(Vec<(u32, Entry)>),
}

impl Was {
    /// Writes it into a block from `first` on, with the frames of the folio at `head`.
    fn restore(&self, state: &mut BlockState, first: u32, head: Pfn) {
        match self {
            Was::Huge(h) => *state = BlockState::Huge(HugeMap { pfn: head, ..*h }),
            Was::Entries(list) => {
                if let Some(table) = state.table() {
                    for (k, e) in list {
                        table.set(first + k, e.with_frame(head.add(*k)));
                    }
                }
            }
        }
    }
}

/// What is left of an isolated folio whose pages have gone elsewhere.
pub(super) enum Left {
    /// Nobody uses it any more: it goes with the isolation.
    Unused,
    /// Its frames, of which those of `full` hold bytes that nobody needs any more.
    Old {
        old: FrozenFolio,
        full: PageMask,
        /// Pages that are elsewhere now.
        moved: u32,
    },
}

/// A folio whose entries are busy.
struct Taken {
    busy: Busy,
    folio: FrozenFolio,
    order: u8,
    first: u32,
    was: Was,
    /// Pages of the folio that are in use, and those that were mapped.
    live: PageMask,
    mapped: PageMask,
    refs: u32,
    queued: bool,
}

impl<E: Env> Mm<E> {
    /// Moves the folio that holds a page to other frames, as far as it goes. If it is split for
    /// that, pages of zeros are dropped if `drop_zero` says so; what moves keeps its zeros. Waits
    /// for who moves the page already.
    ///
    /// # Errors
    /// [`MigrateError`]: nothing was moved.
    pub(crate) fn migrate_folio_of(
        &self,
        id: SpaceId,
        page: Vpn,
        drop_zero: bool,
    ) -> Result<Migrated, MigrateError> {
        let list = self.isolate_page(id, page).ok_or(MigrateError::NoFolio)?;
        let mut frames = |order| self.zones.small.alloc(self.machine(), order).ok();
        let (done, why) = self.migrate_list(list, &mut frames, drop_zero);
        match why {
            Some(why) if done.moved + done.zeros == 0 => Err(why),
            _ => Ok(done),
        }
    }

    /// Moves isolated folios and ends their isolation. One of which a part is not in use is
    /// split instead (R132), and one for which there is no block. Also says why the last one
    /// that stayed did.
    pub(super) fn migrate_list(
        &self,
        list: Isolated,
        frames: &mut Frames<'_>,
        drop_zero: bool,
    ) -> (Migrated, Option<MigrateError>) {
        let mut todo: VecDeque<IsolatedFolio> = list.0.into();
        let (mut done, mut why) = (Migrated::default(), None);
        while let Some(folio) = todo.pop_front() {
            let head = folio.pfn();
            let pages = order_pages(order_of(self.meta(head)));
            let partial = pages > 1 && !self.is_forked(head) && self.meta(head).has(Flags::PARTIAL);
            let moved = match partial {
                true => Err(MigrateError::NoFrame),
                false => self.migrate_isolated(head, frames),
            };
            let stays = match moved {
                Ok(Left::Unused) => {
                    self.end_isolation(folio);
                    continue;
                }
                Ok(Left::Old { old, full, moved }) => {
                    done.moved += moved;
                    self.free_moved(folio, old, &full);
                    continue;
                }
                Err(error) => error,
            };
            let mut parts = Isolated(Vec::from([folio]));
            let split = match stays == MigrateError::NoFrame && pages > 1 {
                true => self.split_for_move(&mut parts, drop_zero),
                false => None,
            };
            if let Some(zeros) = split {
                done.zeros += zeros;
                todo.extend(parts.0);
            } else {
                done.stayed += pages;
                why = Some(stays);
                self.putback_list(parts);
            }
        }
        let stats = self.stats();
        stats.add(Item::PgmigrateSuccess, u64::from(done.moved + done.zeros));
        stats.add(Item::PgmigrateFail, u64::from(done.stayed));
        stats.add(Item::PgmigrateZero, u64::from(done.zeros));
        (done, why)
    }

    /// Splits an isolated folio into pages; how many pages of zeros that dropped (R97). `None`: it
    /// stays whole.
    fn split_for_move(&self, parts: &mut Isolated, drop_zero: bool) -> Option<u32> {
        let flags = match drop_zero {
            true => SplitFlags::DROP_ZERO,
            false => SplitFlags::NONE,
        };
        let split = self.split_isolated(parts, 0, flags);
        split.ok().map(|split| split.dropped)
    }

    /// Moves one isolated folio, zeros and all (R114).
    fn migrate_isolated(&self, head: Pfn, frames: &mut Frames<'_>) -> Result<Left, MigrateError> {
        let meta = self.meta(head);
        if meta.refs() == 1 {
            return Ok(Left::Unused);
        }
        let pages = order_pages(order_of(meta));
        if self.zone_of(head).has_bad(head, pages) {
            return Err(MigrateError::Bad);
        }
        if self.is_forked(head) {
            return self.migrate_forked(head, frames);
        }
        let (id, page) = meta.owner().ok_or(MigrateError::Busy)?;
        let space = self.space(id).map_err(|_| MigrateError::Busy)?;
        let nr = page.block();
        let block = space.block_if_any(self, nr).ok_or(MigrateError::Busy)?;
        let state = block.try_lock(self).ok_or(MigrateError::Busy)?;
        if meta.owner() != Some((id, page)) || self.is_held(head) {
            return Err(MigrateError::Pinned);
        }
        let taken = self.take_for_move(&space, &block, state, head, page)?;
        self.machine().preempt(Site::Relock);
        let moved = match frames(taken.order) {
            Some(new) => {
                let copied = self.copy_pages(head, taken.order, &taken.live, new);
                copied.map(|()| new)
            }
            None => Err(MigrateError::NoFrame),
        };
        self.machine().preempt(Site::Relock);
        match moved {
            Ok(new) => {
                let full = taken.live;
                let old = self.show_moved(&space, nr, taken, new);
                Ok(Left::Old {
                    old,
                    full,
                    moved: full.count(),
                })
            }
            Err(why) => {
                self.show_taken(&space, nr, taken);
                Err(why)
            }
        }
    }

    /// Unmaps a folio, marks its entries busy and takes its references away. On an error all is
    /// as before. Block locked.
    fn take_for_move(
        &self,
        space: &Space,
        block: &BlockRef,
        mut state: Guard<'_, BlockState, E::M>,
        head: Pfn,
        page: Vpn,
    ) -> Result<Taken, MigrateError> {
        let (nr, first) = (page.block(), page.index());
        let order = order_of(self.meta(head));
        let pages = order_pages(order).min(BLOCK_PAGES - first);
        let (live, mapped) = live_of(&state, head, first, pages).map_err(|e| match e {
            SplitError::Shared => MigrateError::Shared,
            _ => MigrateError::Busy,
        })?;
        if live == PageMask::EMPTY {
            // Its last pages have just gone: it goes with the isolation.
            return Err(MigrateError::Busy);
        }
        self.unmap_for_move(space, nr, &mut state, first, &mapped)?;
        let was = match &*state {
            BlockState::Huge(h) => Was::Huge(*h),
            state => Was::Entries(live.pages().map(|k| (k, state.entry(first + k))).collect()),
        };
        let refs = match &was {
            Was::Huge(_) => 1,
            Was::Entries(list) => list.len() as u32,
        };
        let Some(folio) = self.freeze_folio(head, refs + 1) else {
            self.map_again(space, nr, &mut state, first, &mapped);
            return Err(MigrateError::Referenced);
        };
        let queued = self.meta(head).has(Flags::QUEUED);
        self.unqueue(head);
        let busy = match (&was, &mut *state) {
            (Was::Entries(list), BlockState::Table(table)) => {
                let pages = list.iter().map(|(k, _)| first + k).collect();
                Busy::entries(block, table, pages)
            }
            _ => Busy::block(block, state).0,
        };
        Ok(Taken {
            busy,
            folio,
            order,
            first,
            was,
            live,
            mapped,
            refs,
            queued,
        })
    }

    /// Unmaps the pages of `mapped`, by index from `first`; all or none. Block locked.
    fn unmap_for_move(
        &self,
        space: &Space,
        nr: BlockNr,
        state: &mut BlockState,
        first: u32,
        mapped: &PageMask,
    ) -> Result<(), MigrateError> {
        let table = match state {
            BlockState::Huge(h) => {
                let done = self.unmap_huge(space, nr, h);
                return done.map_err(|_| MigrateError::Pinned);
            }
            BlockState::Table(table) => table,
            _ => return Ok(()),
        };
        for k in mapped.pages() {
            let was = table.get(first + k);
            let Kind::Mapped(p) = was.kind() else {
                continue;
            };
            let run = PageRun::new(space.id, nr.start().add(u64::from(first + k)), 1);
            let unmapped = self.unmap_all(run, p, was.prot(), was.marks().any());
            if unmapped.is_err() {
                self.stats().add(Item::NrPinned, 1);
                // The attempt may have lifted its protection.
                if !was.marks().any() {
                    table.set(first + k, was.unguarded());
                }
                let back = mapped.pages().take_while(|&i| i < k).collect();
                self.map_again(space, nr, state, first, &back);
                return Err(MigrateError::Pinned);
            }
            self.moved_out(1);
            table.set(first + k, was.unguarded().with(Kind::Inactive(p)));
        }
        Ok(())
    }

    /// Copies pages of a folio to another of the same order; on an error that one is free again.
    pub(super) fn copy_pages(
        &self,
        head: Pfn,
        order: u8,
        live: &PageMask,
        new: Pfn,
    ) -> Result<(), MigrateError> {
        for (start, len) in live.runs(order_pages(order)) {
            let to = FrameRun::new(new.add(start), len);
            if self.copy_frames(to, head.add(start)).is_err() {
                self.release(FrameRun::folio(new, order));
                let freed = self.zone_of(new).free(self.machine(), new, order);
                debug_assert!(freed.is_ok(), "{freed:?}");
                return Err(MigrateError::NoMemory);
            }
        }
        Ok(())
    }

    /// Maps what was taken again where it was.
    fn show_taken(&self, space: &Space, nr: BlockNr, taken: Taken) {
        let head = taken.folio.pfn();
        taken.busy.end_by(self, |state| {
            taken.was.restore(state, taken.first, head);
            self.unfreeze_folio(taken.folio, taken.refs + 1);
            if taken.queued {
                self.requeue(head);
            }
            self.map_again(space, nr, state, taken.first, &taken.mapped);
        });
    }

    /// Maps what was taken again in its new frames; the old ones.
    fn show_moved(&self, space: &Space, nr: BlockNr, taken: Taken, new: Pfn) -> FrozenFolio {
        taken.busy.end_by(self, |state| {
            taken.was.restore(state, taken.first, new);
            let page = nr.start().add(u64::from(taken.first));
            self.meta(new).set_owner(space.id, page);
            self.meta(new).set_refs(taken.refs);
            self.inherit(taken.folio.pfn(), new, taken.queued);
            self.map_again(space, nr, state, taken.first, &taken.mapped);
        });
        taken.folio
    }

    /// A folio takes the place of another on the lists.
    pub(super) fn inherit(&self, old: Pfn, new: Pfn, queued: bool) {
        let kept = Flags::ACTIVE | Flags::UNEVICTABLE | Flags::REJECTED;
        self.meta(new).set(self.meta(old).flags().and(kept));
        let mut lru = self.folios.lru.lock(self.machine());
        lru.put_in(self, new, None);
        drop(lru);
        if queued {
            self.requeue(new);
        }
    }

    /// Frees the old frames of a folio that was moved, whose isolation ends so. Its charge is
    /// the new one's.
    fn free_moved(&self, folio: IsolatedFolio, old: FrozenFolio, full: &PageMask) {
        let head = folio.pfn();
        debug_assert_eq!(old.pfn(), head);
        let meta = self.meta(head);
        let order = order_of(meta);
        self.release_pages(head, full);
        self.release_discarded(head, order, &PageMask::EMPTY);
        self.forget_copies(head, order_pages(order));
        self.no_longer_partial(head);
        meta.clear(Flags::ACTIVE | Flags::UNEVICTABLE | Flags::REJECTED);
        meta.clear_owner();
        self.isolation_ended(order_pages(order));
        let freed = self.zone_of(head).free(self.machine(), head, order);
        if freed.is_err() {
            // A frame of it has failed meanwhile.
            let pages = u64::from(order_pages(order));
            self.folios
                .lost
                .fetch_add(pages, core::sync::atomic::Ordering::AcqRel);
        }
    }
}
