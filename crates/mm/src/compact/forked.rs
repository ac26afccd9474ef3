//! Moving an isolated folio that several spaces may map.
//!
//! As its eviction begins (`sharing/places.rs`): all entries are marked busy and proven to be
//! all references. Every place gets the new frames, write-protected as before.

use super::migrate::{Frames, Left, MigrateError};
use crate::engine::folio::order_of;
use crate::engine::split::FrozenFolio;
use crate::env::Env;
use crate::frame::Flags;
use crate::machine::{Machine, Site};
use crate::mm::Mm;
use crate::sharing::places::Part;
use crate::units::{PageMask, Pfn, order_pages};
use alloc::vec::Vec;

impl<E: Env> Mm<E> {
    /// Moves one isolated forked folio.
    pub(super) fn migrate_forked(
        &self,
        head: Pfn,
        frames: &mut Frames<'_>,
    ) -> Result<Left, MigrateError> {
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
        let at = moved.as_ref().map_or(head, |(_, new)| *new);
        self.show_parts(at, &parts, PageMask::FULL);
        self.give_back_parts(parts);
        let (old, _) = moved?;
        Ok(Left::Old {
            old,
            full: PageMask::EMPTY,
            moved: order_pages(order),
        })
    }

    /// Copies what is in use to new frames and makes these the folio of all places. Returns the old
    /// one and the new.
    fn move_parts(
        &self,
        head: Pfn,
        order: u8,
        refs: u32,
        parts: &mut [Part],
        frames: &mut Frames<'_>,
    ) -> Result<(FrozenFolio, Pfn), MigrateError> {
        let folio = (self.freeze_folio(head, refs + 1)).ok_or(MigrateError::Referenced)?;
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
        let new = match copied {
            Ok(new) => new,
            Err(why) => {
                self.unfreeze_folio(folio, refs + 1);
                if queued {
                    self.requeue(head);
                }
                return Err(why);
            }
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
        Ok((folio, new))
    }
}
