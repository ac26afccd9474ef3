//! The kernel below copies on write: what ships.

use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine::busy::Busy;
use crate::engine::folio::order_of;
use crate::engine::lru::Which;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::engine::step::{Access, Step};
use crate::env::Env;
use crate::frame::Flags;
use crate::platform::{PlatformError, Stop};
use crate::stat::Item;
use crate::table::block::{BlockState, HugeMap, Presence, Table};
use crate::table::entry::Entry;
use crate::table::vma::Vma;
use crate::units::{BLOCK_PAGES, BlockNr, PageMask, PageRun, Pfn, SpaceId, Vpn, order_pages};

/// Pages are shared by managers of several processes, and the kernel copies one on the first
/// write to it (`share.rs`). Of the others' places nothing is known here.
#[derive(Clone, Copy, Debug)]
pub struct KernelCow;

impl Sharing for KernelCow {
    const ASIDE: bool = true;

    fn may_fork() -> Result<(), PlatformError> {
        let why = Stop::Refused(0);
        Err(PlatformError { at: 0, why })
    }
    fn is_held<E: Env>(_: &Engine<E>, _: Pfn) -> bool {
        false
    }
    fn is_frame_held<E: Env>(_: &Engine<E>, _: Pfn) -> bool {
        false
    }
    fn is_pinned<E: Env>(_: &Engine<E>, _: Pfn) -> bool {
        false
    }
    fn claim_huge<E: Env>(_: &Engine<E>, _: &Space, _: BlockNr, h: &mut HugeMap, _: bool) -> bool {
        !h.shared()
    }
    fn claim_shared<E: Env>(_: &Engine<E>, _: &Space, _: BlockNr, _: &mut Table) {}
    fn keeps_whole<E: Env>(_: &Engine<E>, _: &Space, _: BlockNr, _: &mut BlockState) -> bool {
        false
    }
    fn split_table<E: Env>(_: &Engine<E>, _: &Space, _: BlockNr, _: &mut BlockState) {
        debug_assert!(false, "a folio that is shared has one place");
    }
    fn break_shared<E: Env>(mm: &Engine<E>, space: &Space, block: &BlockRef, nr: BlockNr) {
        let state = block.lock(mm);
        let h = match &*state {
            BlockState::Huge(h) if h.shared() => *h,
            _ => return,
        };
        let (busy, _) = Busy::block(block, state);
        let table = mm.split_mapped(space, nr, h);
        busy.end(mm, BlockState::Table(table));
    }
    fn forsake<E: Env>(mm: &Engine<E>, table: &mut Table, first: u32, n: u32) -> u32 {
        let shared = (first..first + n)
            .filter(|&k| table.get(k).shared())
            .count();
        if shared > 0 {
            mm.charge().force_unshare(shared as u64);
            mm.take_over(table, first, n);
        }
        shared as u32
    }
    fn forsake_huge<E: Env>(mm: &Engine<E>, h: &mut HugeMap) {
        if h.shared() {
            mm.charge().force_unshare(u64::from(BLOCK_PAGES));
            mm.stats().sub(Item::NrShared, u64::from(BLOCK_PAGES));
            h.has = Presence::Guarded;
            mm.relist(h.pfn, Which::Active);
        }
    }
    fn leave<E: Env>(_: &Engine<E>, _: Pfn, _: SpaceId, _: Vpn, _: u32) -> bool {
        true
    }
    fn sort_lists<E: Env>(mm: &Engine<E>, table: &Table, first: u32, n: u32) {
        let mut folio = Pfn(0)..Pfn(0);
        for k in first..first + n {
            let Some(p) = table.get(k).frame() else {
                continue;
            };
            if folio.contains(&p) {
                continue;
            }
            folio = mm.folio_of(p);
            let head = folio.start;
            let meta = mm.meta(head);
            let start = k.wrapping_sub(p.0 - head.0);
            let shared = (0..order_pages(order_of(meta))).any(|i| {
                let e = table.get(start.wrapping_add(i));
                e.shared() && e.frame() == Some(head.add(i))
            });
            match (shared, meta.has(Flags::UNEVICTABLE)) {
                (true, false) => mm.relist(head, Which::Unevictable),
                (false, true) => mm.relist(head, Which::Active),
                _ => {}
            }
        }
    }
    fn release_discarded<E: Env>(_: &Engine<E>, _: Pfn, _: u8, _: &PageMask) {}
    fn fault_huge<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        page: Vpn,
        access: Access,
        h: &mut HugeMap,
    ) -> Result<Step, PlatformError> {
        mm.write_to_huge(space, page, access == Access::Write, h)
    }
    fn fault_present<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        _: (&Vma, u64),
        page: Vpn,
        access: Access,
        table: &mut Table,
    ) -> Result<Step, PlatformError> {
        mm.write_to_present(space, page, access == Access::Write, table)
    }
    fn is_carried<E: Env>(_: &Engine<E>, _: Entry) -> bool {
        false
    }
    fn is_carried_huge<E: Env>(_: &Engine<E>, _: &Space, _: BlockNr, _: &mut HugeMap) -> bool {
        false
    }
    fn maps_huge<E: Env>(_: &Engine<E>, _: &BlockRef) -> bool {
        true
    }
    fn most_shared(_: u32) -> u32 {
        0
    }
    fn copies_in_place<E: Env>(_: &Engine<E>, _: &Table, _: u32) -> bool {
        false
    }
    fn hide_source<E: Env>(mm: &Engine<E>, run: PageRun, table: &mut Table) {
        mm.hide_zeros(run.space, table, run.start, run.pages);
    }
    fn drop_source<E: Env>(_: &Engine<E>, _: PageRun) {}
}
