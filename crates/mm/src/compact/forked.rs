//! Moving an isolated folio that several spaces may map.
//!
//! As its eviction begins (`sharing/places.rs`): all entries are marked busy and proven to be
//! all references. Every place gets the new frames, write-protected as before.

use super::migrate::{Frames, MigrateError, Migrated};
use crate::engine::folio::order_of;
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::sharing::places::Part;
use crate::units::{PageMask, Pfn};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Moves one isolated forked folio, and ends its isolation unless it fails.
    pub(super) fn migrate_forked(
        &self,
        head: Pfn,
        frames: &mut Frames<'_>,
    ) -> Result<Migrated, MigrateError> {
        let mut parts = self.take_places(head).ok_or(MigrateError::Busy)?;
        let refs: u32 = parts.iter().map(Part::refs).sum();
        let order = order_of(self.meta(head));
        if refs == 0 {
            // Its last pages have just gone: it goes with the isolation.
            self.give_back_parts(parts);
            return Err(MigrateError::Busy);
        }
        if self.meta(head).refs() != refs + 1 || self.meta(head).has(Flags::PINNED) {
            self.give_back_parts(parts);
            return Err(MigrateError::Referenced);
        }
        if self.unmap_parts(head, &mut parts).is_err() {
            self.give_back_parts(parts);
            return Err(MigrateError::Pinned);
        }
        let moved = self.move_parts(head, order, refs, &mut parts, frames);
        let at = *moved.as_ref().unwrap_or(&head);
        self.show_parts(at, &parts, PageMask::FULL);
        self.give_back_parts(parts);
        moved?;
        let live = PageMask::EMPTY;
        self.free_moved(head, order, &live);
        Ok(Migrated {
            moved: 1 << order,
            ..Migrated::default()
        })
    }

    /// Copies what is in use to new frames and makes these the folio of all places.
    fn move_parts(
        &self,
        head: Pfn,
        order: u8,
        refs: u32,
        parts: &mut [Part],
        frames: &mut Frames<'_>,
    ) -> Result<Pfn, MigrateError> {
        if !self.freeze_folio(head, refs + 1) {
            return Err(MigrateError::Referenced);
        }
        let queued = self.meta(head).has(Flags::QUEUED);
        self.unqueue(head);
        let mut live = PageMask::EMPTY;
        let used = parts.iter().flat_map(|part| part.entries());
        used.filter_map(|(_, e)| e.frame())
            .for_each(|p| live.set(p.0 - head.0));
        self.machine().preempt(Site::Relock);
        let new = frames(order).ok_or(MigrateError::NoFrame);
        let copied = new.and_then(|new| self.copy_pages(head, order, &live, new).map(|()| new));
        self.machine().preempt(Site::Relock);
        let Ok(new) = copied else {
            self.meta(head).unfreeze(refs + 1);
            if queued {
                self.requeue(head);
            }
            return copied;
        };
        let places: Vec<_> = self.places(head);
        self.rmap_clear(head);
        self.meta(new).set_refs(refs);
        self.rmap_set(new, places);
        let partial = self.meta(head).has(Flags::PARTIAL);
        self.inherit(head, new, queued);
        if partial {
            self.partially_mapped(new);
        }
        parts.iter_mut().for_each(|part| part.moved(head, new));
        Ok(new)
    }
}
