//! Order policy: how large a folio a write fault gets.
//!
//! The huge size comes first, where the knobs and the VMA allow it and the block is free of
//! other pages; then the naturally aligned smaller sizes that are enabled, as far as a cap in
//! bytes, the VMA and the neighbouring entries allow; then one page. Order 1 does not exist
//! for folios. Each failed attempt costs latency, so their number is a knob.

mod adapt;
#[cfg(test)]
mod tests;
mod window;

pub use adapt::Adapt;
pub use window::{Beside, Window, window, window_back};

use crate::beyond::Beyond;
use crate::sizes::{HUGE_PAGES, LEAST_ORDER, SizeMode, order_of_bytes};
use crate::table::vma::{ThpAdvice, Vma};
use crate::tunables::{FaultOrder, ThpMode, Tunables};
use crate::units::{BLOCK_ORDER, BLOCK_PAGES, Vpn};

/// Whether `enabled` and the advice allow huge pages in a VMA.
pub fn thp_allowed(t: &Tunables, vma: &Vma) -> bool {
    match (t.thp, vma.advice) {
        _ if !HUGE_PAGES => false,
        (_, ThpAdvice::NoHuge) | (ThpMode::Never, _) => false,
        (ThpMode::Always, _) | (_, ThpAdvice::Huge) => true,
        (ThpMode::Madvise, ThpAdvice::None) => false,
    }
}

/// Whether folios of `order` may be had in a VMA: its own `enabled` knob and the advice. As the
/// kernel has it, the advice against huge pages is one against every large size: who gives it may
/// count on holes that stay holes beside what is written.
pub fn enabled(t: &Tunables, vma: &Vma, order: u8) -> bool {
    HUGE_PAGES
        && vma.advice != ThpAdvice::NoHuge
        && match t.sizes.get(order) {
            SizeMode::Always => true,
            SizeMode::Inherit => thp_allowed(t, vma),
            SizeMode::Madvise => vma.advice == ThpAdvice::Huge,
            SizeMode::Never => false,
        }
}

/// The whole block of a page, where a VMA has all of it.
pub(crate) fn whole_block(vma: &Vma, page: Vpn) -> Option<Window> {
    let huge = Window::around(page, BLOCK_ORDER);
    let inside = vma.contains(huge.start) && huge.start.0 + u64::from(BLOCK_PAGES) <= vma.end().0;
    inside.then_some(huge)
}

/// What a read of an empty block shows zeros in, where Linux maps its huge page of zeros.
pub(crate) fn huge_zero(t: &Tunables, vma: &Vma, page: Vpn) -> Option<Window> {
    let may = !t.beyond(Beyond::ReadAround) && !vma.uffd_missing && enabled(t, vma, BLOCK_ORDER);
    whole_block(vma, page).filter(|_| may)
}

/// Whether the order of a fault in a VMA follows what faults have shown.
pub fn adapts(t: &Tunables, vma: &Vma) -> bool {
    t.fault_order == FaultOrder::Auto && vma.advice != ThpAdvice::Huge
}

/// The largest order below the huge one in a VMA.
pub(crate) fn cap_below_huge(t: &Tunables, vma: &Vma) -> u8 {
    let cap = match vma.advice {
        ThpAdvice::Huge => order_of_bytes(t.fault_max_advised),
        _ if t.fault_order == FaultOrder::Auto && thp_allowed(t, vma) => BLOCK_ORDER,
        _ => order_of_bytes(t.fault_max),
    };
    cap.min(BLOCK_ORDER - 1)
}

/// The order to try after `tried` large ones could not be had, the last of them `order`: the
/// next smaller one that is enabled, as the last large attempt the smallest, then one page.
pub fn lower(t: &Tunables, vma: &Vma, order: u8, tried: u8) -> u8 {
    let cap = cap_below_huge(t, vma).min(order.saturating_sub(1));
    let mut left = (LEAST_ORDER..=cap).filter(|o| enabled(t, vma, *o));
    match t.fault_attempts.saturating_sub(tried) {
        0 => 0,
        1 => left.next().unwrap_or(0),
        _ => left.next_back().unwrap_or(0),
    }
}
