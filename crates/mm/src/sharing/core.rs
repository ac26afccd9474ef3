//! The core copies on write: on bare hardware.

use crate::engine::Engine;
use crate::engine::sharing::Sharing;
use crate::engine::space::{BlockRef, Space};
use crate::engine::step::{Access, Step};
use crate::env::Env;
use crate::frame::Flags;
use crate::platform::PlatformError;
use crate::table::block::{BlockState, HugeMap, Presence, Table};
use crate::table::entry::{Entry, Kind};
use crate::table::vma::Vma;
use crate::units::{
    BLOCK_PAGES, BlockNr, FrameRun, PageMask, PageRun, Pfn, SpaceId, Vpn, order_pages,
};

/// Pages are shared by several spaces of one manager, which copies one on the first write to it
/// (`cow.rs`), and knows of each place where a folio is mapped (`rmap.rs`).
#[derive(Clone, Copy, Debug)]
pub struct CoreCow;

impl Sharing for CoreCow {
    const ASIDE: bool = false;

    fn may_fork() -> Result<(), PlatformError> {
        Ok(())
    }
    fn is_held<E: Env>(mm: &Engine<E>, head: Pfn) -> bool {
        mm.meta(head).flags().any(Flags::FORKED | Flags::PINNED)
    }
    fn is_frame_held<E: Env>(mm: &Engine<E>, pfn: Pfn) -> bool {
        mm.is_held(mm.head_of(pfn))
    }
    fn is_pinned<E: Env>(mm: &Engine<E>, pfn: Pfn) -> bool {
        let pinned = mm.meta(mm.head_of(pfn)).has(Flags::PINNED);
        pinned && mm.folios.rmap.lock(mm.machine()).pins.contains_key(&pfn.0)
    }
    fn claim_huge<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        nr: BlockNr,
        h: &mut HugeMap,
        isolated: bool,
    ) -> bool {
        if h.shared() && mm.is_sole(h.pfn, 1, isolated) {
            h.has = Presence::Guarded;
            mm.rmap_settle(h.pfn, space.id, nr.start());
        }
        !h.shared()
    }
    fn claim_shared<E: Env>(mm: &Engine<E>, space: &Space, nr: BlockNr, table: &mut Table) {
        let mut last = None;
        for k in 0..BLOCK_PAGES {
            let head = table.get(k).frame().map(|p| mm.head_of(p));
            if table.get(k).shared() && head != last {
                mm.claim_entries(space, nr, table, k);
            }
            last = head;
        }
    }
    fn keeps_whole<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        nr: BlockNr,
        state: &mut BlockState,
    ) -> bool {
        let BlockState::Huge(h) = state else {
            return false;
        };
        let bad = mm.bad_frame(FrameRun::new(h.pfn, BLOCK_PAGES)).is_some();
        let whole = h.mapped() && (!mm.claim_huge(space, nr, h, false) || mm.is_held(h.pfn) || bad);
        if whole {
            mm.split_table(space, nr, state);
        }
        whole
    }
    fn split_table<E: Env>(mm: &Engine<E>, space: &Space, nr: BlockNr, state: &mut BlockState) {
        let h = match &*state {
            BlockState::Huge(h) if h.mapped() => *h,
            _ => return,
        };
        mm.meta(h.pfn).add_refs(BLOCK_PAGES - 1);
        mm.rmap_split(h.pfn, space.id, nr.start());
        let mut table = Table::new();
        for i in 0..BLOCK_PAGES {
            table.set(i, state.entry(i));
        }
        *state = BlockState::Table(table);
    }
    fn break_shared<E: Env>(mm: &Engine<E>, space: &Space, block: &BlockRef, nr: BlockNr) {
        let mut state = block.lock(mm);
        if matches!(&*state, BlockState::Huge(h) if h.shared()) {
            mm.split_table(space, nr, &mut state);
        }
    }
    /// The charge stays with the folio.
    fn forsake<E: Env>(_: &Engine<E>, _: &mut Table, _: u32, _: u32) -> u32 {
        0
    }
    fn forsake_huge<E: Env>(_: &Engine<E>, _: &mut HugeMap) {}
    fn leave<E: Env>(mm: &Engine<E>, head: Pfn, space: SpaceId, first: Vpn, refs: u32) -> bool {
        mm.rmap_del(head, space, first, refs)
    }
    fn sort_lists<E: Env>(_: &Engine<E>, _: &Table, _: u32, _: u32) {}
    fn release_discarded<E: Env>(mm: &Engine<E>, head: Pfn, order: u8, live: &PageMask) {
        let pages = order_pages(order);
        for (start, len) in live.not_within(pages).runs(pages) {
            mm.release(FrameRun::new(head.add(start), len));
        }
    }
    fn fault_huge<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        page: Vpn,
        access: Access,
        h: &mut HugeMap,
    ) -> Result<Step, PlatformError> {
        mm.wp_huge(space, page, access, h)
    }
    fn fault_present<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        (vma, seq): (&Vma, u64),
        page: Vpn,
        access: Access,
        table: &mut Table,
    ) -> Result<Step, PlatformError> {
        mm.wp_table(space, vma, seq, page, access, table)
    }
    /// Else its entries are a table's, as those of one are that was shared.
    fn is_carried<E: Env>(mm: &Engine<E>, e: Entry) -> bool {
        e.locked() || e.frame().is_some_and(|p| mm.is_frame_held(p))
    }
    fn is_carried_huge<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        nr: BlockNr,
        h: &mut HugeMap,
    ) -> bool {
        h.mapped() && (!mm.claim_huge(space, nr, h, false) || mm.is_held(h.pfn))
    }
    fn maps_huge<E: Env>(mm: &Engine<E>, block: &BlockRef) -> bool {
        let state = block.try_lock(mm);
        state.is_none_or(|state| !matches!(&*state, BlockState::Table(_)))
    }
    fn most_shared(knob: u32) -> u32 {
        knob
    }
    fn copies_in_place<E: Env>(mm: &Engine<E>, table: &Table, k: u32) -> bool {
        let e = table.get(k);
        let held = |p| e.shared() || mm.is_frame_held(p);
        matches!(e.kind(), Kind::Mapped(p) if held(p))
    }
    fn hide_source<E: Env>(_: &Engine<E>, _: PageRun, _: &mut Table) {}
    /// What was only protected goes now, and zero pages; bytes stay with who holds them.
    fn drop_source<E: Env>(mm: &Engine<E>, run: PageRun) {
        mm.discard_run(run);
    }
}
