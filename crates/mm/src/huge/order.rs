//! Order policy: how large a folio a write fault gets.
//!
//! The huge size comes first, where the knob and the VMA allow it and the block is free of
//! other pages; then naturally aligned folios up to `fault_order_max`, as far as the VMA and
//! the neighbouring entries allow; then one page. Order 1 does not exist for folios. At most
//! three orders are tried (wanted, 2, 0), since each failed attempt costs latency.

use crate::space::block::BlockState;
use crate::space::entry::Kind;
use crate::space::vma::{ThpAdvice, Vma};
use crate::tunables::{Profile, ThpMode, Tunables};
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, Vpn, order_pages};

/// A window `[start, start + 2^order)` that a folio may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First page.
    pub start: Vpn,
    /// Order of the folio.
    pub order: u8,
}

/// Whether the knob and the advice allow huge pages in a VMA.
pub fn thp_allowed(t: &Tunables, vma: &Vma) -> bool {
    match (t.thp, vma.advice) {
        (ThpMode::Never, _) | (_, ThpAdvice::NoHuge) => false,
        (ThpMode::Always, _) | (_, ThpAdvice::Huge) => true,
        (ThpMode::Madvise, ThpAdvice::None) => false,
    }
}

/// Whether a page may be covered by a new folio although the fault was not on it.
///
/// Holes may. What a read fault left (the zero page, mapped by nothing but curiosity) may in
/// profile `deckle`; in Linux only the faulting entry itself may be the zero page. What
/// reclaim left never may: memory was short there, and a large folio would undo its work.
fn coverable(t: &Tunables, kind: Kind) -> bool {
    match kind {
        Kind::None => true,
        Kind::Zero { dropped: false, .. } => t.profile == Profile::Deckle,
        _ => false,
    }
}

/// The window for a write fault on `page`, which is a hole or a zero entry; `order_cap`
/// bounds the order (lowered after a failure). Block locked.
pub fn window(t: &Tunables, vma: &Vma, state: &BlockState, page: Vpn, order_cap: u8) -> Window {
    let block = page.block().start();
    let inside = |start: Vpn, order: u8| {
        start >= vma.start && start.0 + order_pages(order) as u64 <= vma.start.0 + vma.pages
    };
    let free = |first: u32, pages: u32| match state {
        BlockState::Empty => true,
        BlockState::Table(table) => {
            (first..first + pages).all(|i| i == page.index() || coverable(t, table.get(i).kind()))
        }
        _ => false,
    };
    if order_cap >= BLOCK_ORDER
        && thp_allowed(t, vma)
        && inside(block, BLOCK_ORDER)
        && match state {
            BlockState::Empty => true,
            BlockState::Table(table) => {
                t.profile == Profile::Deckle
                    && (0..BLOCK_PAGES).all(|i| coverable(t, table.get(i).kind()))
            }
            _ => false,
        }
    {
        return Window {
            start: block,
            order: BLOCK_ORDER,
        };
    }
    let mut order = order_cap.min(t.fault_order_max);
    while order >= 2 {
        let start = Vpn(page.0 & !(order_pages(order) as u64 - 1));
        if inside(start, order) && free(start.index(), order_pages(order)) {
            return Window { start, order };
        }
        order -= 1;
    }
    Window {
        start: page,
        order: 0,
    }
}

/// The order to try after `order` could not be had.
pub fn lower(t: &Tunables, order: u8) -> u8 {
    match order {
        BLOCK_ORDER => t.fault_order_max,
        3.. => 2,
        _ => 0,
    }
}
