//! What frames are to policy: numbers of slots of which there are plenty, or memory itself.

use crate::compact::{Compacted, MigrateError, Migrated};
use crate::engine::folio::AllocError;
use crate::env::Env;
use crate::frame::{AllocFlags, Request, Watermarks, WhyFailed, Zone, ZoneConfig, Zonelist};
use crate::mm::Mm;
use crate::platform::FrameSpan;
use crate::reclaim::contig::Want;
use crate::units::{BLOCK_ORDER, Pfn, SpaceId, Vpn};
use alloc::boxed::Box;

/// A kind of frames.
pub trait Frames: Send + Sync + 'static {
    /// A zone of the frames of `span`, all free, on a machine with `cpus` CPUs.
    fn zone(span: FrameSpan, cpus: usize) -> Zone;
    /// Whether a huge page with `live` pages to keep may be moved to small frames, of which
    /// `free` are left. No live page: a part of it goes for good.
    fn may_move_out(live: u32, free: u64) -> bool;
    /// Why there is no block of `order`, as far as the frames tell.
    fn why<E: Env>(mm: &Mm<E>, order: u8) -> Option<Box<WhyFailed>>;
    /// A second try at the huge page that a fault was refused; `failed`: there is none. No lock
    /// is held.
    ///
    /// # Errors
    /// As the first try.
    fn alloc_huge<E: Env>(
        mm: &Mm<E>,
        failed: AllocError,
        want: Want<'_>,
    ) -> Result<Pfn, AllocError>;
    /// See [`Mm::compact`].
    fn compact<E: Env>(mm: &Mm<E>, order: u8) -> Compacted;
    /// See [`Mm::migrate_page`].
    ///
    /// # Errors
    /// [`MigrateError`]: nothing was moved.
    fn migrate<E: Env>(
        mm: &Mm<E>,
        id: SpaceId,
        page: Vpn,
        drop_zero: bool,
    ) -> Result<Migrated, MigrateError>;
}

impl<E: Env> Mm<E> {
    /// Forms as many free blocks of `order` as can be had by moving pages, whatever that is
    /// good for (`compact_memory`). Does nothing where frames are slots of a large range.
    pub fn compact(&self, order: u8) -> Compacted {
        E::Frames::compact(self, order)
    }

    /// Moves the folio that holds a page to other frames, as far as it goes. If it is split for
    /// that, pages of zeros are dropped if `drop_zero` says so; what moves keeps its zeros. Waits
    /// for who moves the page already.
    ///
    /// # Errors
    /// [`MigrateError`]: nothing was moved. `NoFolio` where frames are slots.
    pub fn migrate_page(
        &self,
        id: SpaceId,
        page: Vpn,
        drop_zero: bool,
    ) -> Result<Migrated, MigrateError> {
        E::Frames::migrate(self, id, page, drop_zero)
    }

    /// Sets how many frames of each zone stay free for who reclaims. They are
    /// [`Watermarks::of_pages`] at first where frames are memory, else none.
    pub fn set_watermarks(&self, marks: Watermarks) {
        self.zones
            .iter()
            .for_each(|zone| zone.set_watermarks(marks));
    }

    /// The marks of the zone that serves huge pages.
    pub fn watermarks(&self) -> Watermarks {
        self.zone_for(BLOCK_ORDER).watermarks()
    }
}

/// Frame numbers are slots of a large range, into which memory is put page by page: what ships.
/// A block of them is never what is short, and a zone is a list of what is free and no more.
#[derive(Clone, Copy, Debug)]
pub struct Slots;

/// Frame numbers are memory: contiguity is scarce, so that per-CPU lists, pageblocks, watermarks,
/// capture and compaction are worth what they cost.
#[derive(Clone, Copy, Debug)]
pub struct Ram;

impl Frames for Slots {
    fn zone(span: FrameSpan, _: usize) -> Zone {
        Zone::new(span)
    }
    fn may_move_out(_: u32, _: u64) -> bool {
        true
    }
    fn why<E: Env>(_: &Mm<E>, _: u8) -> Option<Box<WhyFailed>> {
        None
    }
    fn alloc_huge<E: Env>(_: &Mm<E>, failed: AllocError, _: Want<'_>) -> Result<Pfn, AllocError> {
        Err(failed)
    }
    fn compact<E: Env>(_: &Mm<E>, _: u8) -> Compacted {
        Compacted::default()
    }
    fn migrate<E: Env>(_: &Mm<E>, _: SpaceId, _: Vpn, _: bool) -> Result<Migrated, MigrateError> {
        Err(MigrateError::NoFolio)
    }
}

impl Frames for Ram {
    fn zone(span: FrameSpan, cpus: usize) -> Zone {
        let zone = Zone::with(span, ZoneConfig::contiguous(cpus));
        zone.set_watermarks(Watermarks::of_pages(u64::from(span.frames)));
        zone
    }
    fn may_move_out(live: u32, free: u64) -> bool {
        live > 0 && u64::from(live) <= free
    }
    fn why<E: Env>(mm: &Mm<E>, order: u8) -> Option<Box<WhyFailed>> {
        let zones = core::slice::from_ref(mm.zone_for(order));
        let flags = AllocFlags::USER.without(AllocFlags::DIRECT_RECLAIM);
        let request = Request::new(order).with_flags(flags.without(AllocFlags::KSWAPD));
        WhyFailed::now(&Zonelist::new(zones), &request)
    }
    fn alloc_huge<E: Env>(
        mm: &Mm<E>,
        failed: AllocError,
        want: Want<'_>,
    ) -> Result<Pfn, AllocError> {
        mm.reclaim_for_huge(failed, want)
    }
    fn compact<E: Env>(mm: &Mm<E>, order: u8) -> Compacted {
        mm.compact_memory(order)
    }
    fn migrate<E: Env>(
        mm: &Mm<E>,
        id: SpaceId,
        page: Vpn,
        drop_zero: bool,
    ) -> Result<Migrated, MigrateError> {
        mm.migrate_folio_of(id, page, drop_zero)
    }
}
