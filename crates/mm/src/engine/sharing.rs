//! How pages are shared after a fork, as the engine and the rooms above it see it.
//!
//! Either the kernel below copies on write, or the core does. What differs is behind one trait;
//! `sharing/kernel.rs` and `sharing/core.rs` are the two ways.

use crate::engine::Engine;
use crate::engine::space::{BlockRef, Space};
use crate::engine::step::{Access, Step};
use crate::env::Env;
use crate::platform::PlatformError;
use crate::table::block::{BlockState, HugeMap, Table};
use crate::table::entry::Entry;
use crate::table::vma::Vma;
use crate::units::{BlockNr, PageMask, PageRun, Pfn, SpaceId, Vpn};

/// A way of sharing pages. Where a method names a block's state, the block is locked, or busy and
/// the caller's.
pub trait Sharing: Send + Sync + 'static {
    /// Whether shared pages are counted (`NrShared`) and kept aside, as unevictable: who reclaims
    /// one gains nothing. A promise that `verify` checks.
    const ASIDE: bool;

    /// Whether the core can fork spaces and pin pages.
    ///
    /// # Errors
    /// It is the kernel's to do.
    fn may_fork() -> Result<(), PlatformError>;

    /// Whether a folio must neither be taken from its place by the ways for folios of one place,
    /// nor be split: others may hold it, or somebody has pinned it.
    fn is_held<E: Env>(mm: &Engine<E>, head: Pfn) -> bool;
    /// The same for the folio of a frame.
    fn is_frame_held<E: Env>(mm: &Engine<E>, pfn: Pfn) -> bool;
    /// Whether somebody has pinned a frame.
    fn is_pinned<E: Env>(mm: &Engine<E>, pfn: Pfn) -> bool;

    /// Makes a huge mapping exclusive if it is proven that nobody else has the page; true if it
    /// is exclusive now. `isolated`: the caller has isolated the folio.
    fn claim_huge<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        nr: BlockNr,
        h: &mut HugeMap,
        isolated: bool,
    ) -> bool;
    /// Makes the pages of a block its own that only seem to be shared.
    fn claim_shared<E: Env>(mm: &Engine<E>, space: &Space, nr: BlockNr, table: &mut Table);
    /// Makes a table of a mapped huge page whose folio stays whole, since others hold it. False:
    /// it may be taken apart, and nothing was done.
    fn keeps_whole<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        nr: BlockNr,
        state: &mut BlockState,
    ) -> bool;
    /// Makes a table of a mapped huge page whose folio stays whole: a reference for each entry.
    fn split_table<E: Env>(mm: &Engine<E>, space: &Space, nr: BlockNr, state: &mut BlockState);
    /// Makes a table of a shared huge page; its pages stay where they are, and shared. Nothing
    /// if it is none, or in work. No lock is held.
    fn break_shared<E: Env>(mm: &Engine<E>, space: &Space, block: &BlockRef, nr: BlockNr);

    /// Ends the sharing of entries that are about to be taken away or are written already:
    /// charged past the limit if it must be. Returns how many there were.
    fn forsake<E: Env>(mm: &Engine<E>, table: &mut Table, first: u32, n: u32) -> u32;
    /// The same for a huge page.
    fn forsake_huge<E: Env>(mm: &Engine<E>, h: &mut HugeMap);
    /// Entries that hold `refs` references leave the place where the folio's first page would lie
    /// at `first`; the references are the caller's to drop next. Whether pages of the folio are
    /// now mapped nowhere, as far as the counts tell.
    fn leave<E: Env>(mm: &Engine<E>, head: Pfn, space: SpaceId, first: Vpn, refs: u32) -> bool;
    /// Puts each folio that has an entry among `first..first + n` on the list where it belongs
    /// by whether any page of it is shared.
    fn sort_lists<E: Env>(mm: &Engine<E>, table: &Table, first: u32, n: u32);
    /// Disposes of what discarded pages of a folio have left in their frames, where `discard`
    /// does not. Nobody maps or reads any page but those of `live`.
    fn release_discarded<E: Env>(mm: &Engine<E>, head: Pfn, order: u8, live: &PageMask);

    /// A fault on a page of a mapped huge one.
    fn fault_huge<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        page: Vpn,
        access: Access,
        h: &mut HugeMap,
    ) -> Result<Step, PlatformError>;
    /// A fault on a mapped page of a table; `vma` was seen with the sequence number.
    fn fault_present<E: Env>(
        mm: &Engine<E>,
        space: &Space,
        vma: (&Vma, u64),
        page: Vpn,
        access: Access,
        table: &mut Table,
    ) -> Result<Step, PlatformError>;

    /// Whether a mapped page is carried to its new place by mremap: mapped all the time, since
    /// others hold it or it is locked.
    fn is_carried<E: Env>(mm: &Engine<E>, e: Entry) -> bool;
    /// The same for a huge page.
    fn is_carried_huge<E: Env>(mm: &Engine<E>, space: &Space, nr: BlockNr, h: &mut HugeMap)
    -> bool;

    /// Whether a folio of a block's size is the huge page of a block, as far as can be seen now.
    fn maps_huge<E: Env>(mm: &Engine<E>, block: &BlockRef) -> bool;

    /// Most shared pages that a block may have to be collapsed, of what the knob says.
    fn most_shared(knob: u32) -> u32;
    /// Whether the mapped page `k` is copied where it is by a collapse, only protected.
    fn copies_in_place<E: Env>(mm: &Engine<E>, table: &Table, k: u32) -> bool;
    /// Before a block's pages are copied for a collapse: hides what a new mapping would meet.
    fn hide_source<E: Env>(mm: &Engine<E>, run: PageRun, table: &mut Table);
    /// After it: drops what is still there.
    fn drop_source<E: Env>(mm: &Engine<E>, run: PageRun);
}

impl<E: Env> Engine<E> {
    /// [`Sharing::is_held`].
    pub(crate) fn is_held(&self, head: Pfn) -> bool {
        E::Sharing::is_held(self, head)
    }
    /// [`Sharing::is_frame_held`].
    pub(crate) fn is_frame_held(&self, pfn: Pfn) -> bool {
        E::Sharing::is_frame_held(self, pfn)
    }
    /// [`Sharing::claim_huge`].
    pub(crate) fn claim_huge(
        &self,
        space: &Space,
        nr: BlockNr,
        h: &mut HugeMap,
        isolated: bool,
    ) -> bool {
        E::Sharing::claim_huge(self, space, nr, h, isolated)
    }
    /// [`Sharing::claim_shared`].
    pub(crate) fn claim_shared(&self, space: &Space, nr: BlockNr, table: &mut Table) {
        E::Sharing::claim_shared(self, space, nr, table);
    }
    /// [`Sharing::split_table`].
    pub(crate) fn split_table(&self, space: &Space, nr: BlockNr, state: &mut BlockState) {
        E::Sharing::split_table(self, space, nr, state);
    }
    /// [`Sharing::forsake`].
    pub(crate) fn forsake(&self, table: &mut Table, first: u32, n: u32) -> u32 {
        E::Sharing::forsake(self, table, first, n)
    }
    /// [`Sharing::forsake_huge`].
    pub(crate) fn forsake_huge(&self, h: &mut HugeMap) {
        E::Sharing::forsake_huge(self, h);
    }
    /// [`Sharing::sort_lists`].
    pub(crate) fn sort_lists(&self, table: &Table, first: u32, n: u32) {
        E::Sharing::sort_lists(self, table, first, n);
    }
    /// [`Sharing::release_discarded`].
    pub(crate) fn release_discarded(&self, head: Pfn, order: u8, live: &PageMask) {
        E::Sharing::release_discarded(self, head, order, live);
    }
}
