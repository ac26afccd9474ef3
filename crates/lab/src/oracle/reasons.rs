//! Why the two sides of `lab oracle` may differ, and why they do.

/// Why the sides differ in something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reason {
    /// What it is called.
    pub name: &'static str,
    /// Why it is so.
    pub why: &'static str,
}

const fn reason(name: &'static str, why: &'static str) -> Reason {
    Reason { name, why }
}

pub(super) const ZERO: Reason = reason(
    "zero page",
    "a read of a hole maps the page of zeros around it too, since each fault costs deckle thirty \
     of the kernel's; it is no memory",
);
pub(super) const ASIDE: Reason = reason(
    "aside",
    "what is cold, free until written, to be paged out without swap, or was moved by mremap rests \
     unmapped until a touch: deckle sees a touch only as a fault",
);
pub(super) const SHATTER: Reason = reason(
    "shatter",
    "a huge page that loses a part, or changes in a part, is taken apart at once by copying what \
     is in use, since the kernel's split of a moved page takes longer; zeros are not copied",
);
pub(super) const CUT: Reason = reason(
    "cut",
    "advice on a part of a huge page makes two mappings in the kernel, whose tables cannot map it \
     whole; deckle keeps such advice beside the mapping, and the page stays huge on both sides",
);
pub(super) const ORDER: Reason = reason(
    "order",
    "at the limit, which of several pages goes follows from the order of lists and from per-CPU \
     batches",
);
pub(super) const MARGIN: Reason = reason(
    "margin",
    "so near to the limit what a side charges beside the program's pages decides when, and who, is \
     killed, and whether deckle refuses to populate, where the kernel kills",
);

/// All that differs by nature. khugepaged, the last of it, rests on both sides.
pub const NATURE: [Reason; 6] = [ZERO, ASIDE, SHATTER, CUT, ORDER, MARGIN];

pub(super) const FORKED: Reason = reason(
    "forked",
    "after a fork deckle unprotects and copies windows of a huge page, and what is or was shared \
     lets advice pass by; the kernel knows when a folio is nobody else's any more, and treats it \
     whole",
);

pub(super) const TORN: Reason = reason(
    "torn",
    "of a large folio that was cut, moved to an odd place or written after a fork deckle keeps \
     single pages, the kernel one folio, which later advice splits, so that its pages of zeros go",
);
/// What explains differences that are no side's nature: they count.
pub const CAUSES: [Reason; 2] = [FORKED, TORN];
