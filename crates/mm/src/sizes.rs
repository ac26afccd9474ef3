//! The `enabled` knob of each size (`hugepages-64kB/enabled` and its like).

use crate::knob::{Word, words};
use crate::units::{BLOCK_ORDER, PAGE_SIZE};

/// Whether folios of more than one page are built in (the feature `huge-pages`). Without them the
/// knobs can be set, and change nothing.
pub const HUGE_PAGES: bool = cfg!(feature = "huge-pages");

/// The smallest order of a large folio.
pub const LEAST_ORDER: u8 = 2;

words! {
    /// `hugepages-<size>/enabled`.
    pub enum SizeMode {
        /// Nowhere.
        #[default]
        Never = "never",
        /// Wherever the VMA is not advised against huge pages.
        Always = "always",
        /// Where the VMA is advised `MADV_HUGEPAGE`.
        Madvise = "madvise",
        /// As the `enabled` knob above all sizes says.
        Inherit = "inherit",
    }
}

/// The knobs of all sizes, by order. Orders 0 and 1 have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes(u32);

impl Sizes {
    /// Every size off.
    pub const NEVER: Sizes = Sizes(0);

    /// The same with one size changed; an order that has no knob changes nothing.
    #[must_use]
    pub const fn with(self, order: u8, mode: SizeMode) -> Sizes {
        if order < LEAST_ORDER || order > BLOCK_ORDER {
            return self;
        }
        let shift = order as u32 * 2;
        Sizes(self.0 & !(3 << shift) | (mode as u32) << shift)
    }

    /// The knob of a size; `Never` for an order that has none.
    pub fn get(self, order: u8) -> SizeMode {
        let above = self.0.checked_shr(u32::from(order) * 2).unwrap_or(0);
        SizeMode::of_word(u64::from(above & 3))
    }
}

/// The order of the largest folio of at most so many bytes: 0 for less than four pages, never
/// above the huge size.
pub const fn order_of_bytes(bytes: u32) -> u8 {
    let pages = bytes / PAGE_SIZE as u32;
    if pages < 1 << LEAST_ORDER {
        return 0;
    }
    let order = pages.ilog2() as u8;
    if order > BLOCK_ORDER {
        BLOCK_ORDER
    } else {
        order
    }
}
