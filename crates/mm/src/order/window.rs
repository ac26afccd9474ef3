//! The window that a folio may fill: the largest that block, VMA and neighbours leave.

use super::{cap_below_huge, enabled};
use crate::beyond::Beyond;
use crate::sizes::LEAST_ORDER;
use crate::table::block::{BlockState, around};
use crate::table::entry::{Entry, Kind};
use crate::table::vma::Vma;
use crate::tunables::Tunables;
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, Vpn, order_pages};
use core::ops::Range;

/// A window `[start, start + 2^order)` that a folio may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First page.
    pub start: Vpn,
    /// Order of the folio.
    pub order: u8,
}

impl Window {
    /// The aligned window of `order` around a page.
    pub fn around(page: Vpn, order: u8) -> Window {
        let start = Vpn(page.0 & !(u64::from(order_pages(order)) - 1));
        Window { start, order }
    }
}

/// Whether a page may be covered by a new folio although the fault was not on it.
///
/// Holes may. What a read fault left (the zero page, mapped by nothing but curiosity) may in
/// profile `deckle`; Linux copies a page of zeros alone, as it does any other. What reclaim left
/// never may: memory was short there, and a large folio would undo its work. What the program has
/// protected against writes must stay so.
fn coverable(t: &Tunables, e: Entry) -> bool {
    match e.kind() {
        Kind::None => true,
        Kind::Zero { dropped: false, .. } => t.beyond(Beyond::CoverZero) && !e.marks().uffd_wp,
        _ => false,
    }
}

/// The pages of the block around `i` that a folio may cover, found in one walk however many sizes
/// are tried.
fn room(free: impl Fn(Entry) -> bool, state: &BlockState, i: u32) -> Range<u32> {
    match state {
        BlockState::Empty => 0..BLOCK_PAGES,
        BlockState::Table(table) => around(i, 0..BLOCK_PAGES, |k| free(table.get(k))),
        _ => i..i + 1,
    }
}

fn fits(w: &Window, vma: &Vma, room: &Range<u32>) -> bool {
    let pages = order_pages(w.order);
    w.start >= vma.start
        && w.start.0 + u64::from(pages) <= vma.end().0
        && w.start.index() >= room.start
        && w.start.index() + pages <= room.end
}

/// The window for a write fault on `page` of a block that was taken apart, and has since shown
/// that it is wanted: whatever reclaim or the program itself gave up of it may come back, in
/// folios of a size that is enabled (R35). Block locked.
pub fn window_back(
    t: &Tunables,
    vma: &Vma,
    state: &BlockState,
    page: Vpn,
    order_cap: u8,
) -> Window {
    let one = Window::around(page, 0);
    if order_cap < LEAST_ORDER || vma.uffd_missing {
        return one;
    }
    let gone = |e: Entry| matches!(e.kind(), Kind::None | Kind::Zero { .. }) && !e.marks().uffd_wp;
    let room = room(gone, state, page.index());
    (LEAST_ORDER..=order_cap)
        .rev()
        .filter(|order| enabled(t, vma, *order))
        .map(|order| Window::around(page, order))
        .find(|w| fits(w, vma, &room))
        .unwrap_or(one)
}

/// The window for a write fault on `page`, which is a hole or a zero entry; `order_cap`
/// bounds the order (lowered after a failure, or by what the VMA has shown). Where the program
/// waits for missing pages, none but the faulting one may come. Block locked.
pub fn window(t: &Tunables, vma: &Vma, state: &BlockState, page: Vpn, order_cap: u8) -> Window {
    let one = Window::around(page, 0);
    if order_cap < LEAST_ORDER || vma.uffd_missing {
        return one;
    }
    if !matches!(state.entry(page.index()).kind(), Kind::None) && !t.beyond(Beyond::CoverZero) {
        return one;
    }
    let room = room(|e| coverable(t, e), state, page.index());
    let fits = |w: &Window| fits(w, vma, &room);
    let huge = Window::around(page, BLOCK_ORDER);
    // Linux gives a huge page only where there is no table.
    let whole = matches!(state, BlockState::Empty) || t.beyond(Beyond::HugeOverTable);
    if order_cap >= BLOCK_ORDER && whole && enabled(t, vma, BLOCK_ORDER) && fits(&huge) {
        return huge;
    }
    (LEAST_ORDER..=order_cap.min(cap_below_huge(t, vma)))
        .rev()
        .filter(|order| enabled(t, vma, *order))
        .map(|order| Window::around(page, order))
        .find(fits)
        .unwrap_or(one)
}

/// Pages right before a page, and right after it, in its block, that were touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// Right before it.
    pub below: u32,
    /// Right after it.
    pub above: u32,
}

/// Farther than this nobody looks: who has more is known as a stream.
const BESIDE: u32 = 64;

impl Beside {
    /// What is beside `page`. Block locked.
    pub fn of(state: &BlockState, page: Vpn) -> Beside {
        let touched = |k: &u32| !matches!(state.entry(*k).kind(), Kind::None | Kind::Zero { .. });
        let i = page.index();
        let below = (0..i).rev().take(BESIDE as usize).take_while(touched);
        let above = (i + 1..BLOCK_PAGES)
            .take(BESIDE as usize)
            .take_while(touched);
        Beside {
            below: below.count() as u32,
            above: above.count() as u32,
        }
    }

    /// The longer of the two.
    pub fn most(self) -> u64 {
        u64::from(self.below.max(self.above))
    }
}
