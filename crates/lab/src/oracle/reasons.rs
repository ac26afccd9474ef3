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
pub(super) const SEAM: Reason = reason(
    "seam",
    "what mremap has moved stays a mapping of its own in the kernel, whose page offsets do not fit \
     the neighbours', so that no folio spans the seam; deckle's mappings have no offsets",
);
pub(super) const ORDER: Reason = reason(
    "order",
    "at the limit, which of several pages goes follows from the order of lists and from per-CPU \
     batches",
);
pub(super) const MARGIN: Reason = reason(
    "margin",
    "so near to the limit what a side charges beside the program's pages decides when, and who, is \
     killed",
);

/// All that differs by nature. khugepaged, the last of it, rests on both sides.
pub const NATURE: [Reason; 7] = [ZERO, ASIDE, SHATTER, CUT, SEAM, ORDER, MARGIN];

pub(super) const ZERO_BLOCK: Reason = reason(
    "zero block",
    "a write where the kernel maps the huge page of zeros gets a huge page; deckle's block has \
     entries, so the fault takes one page",
);
pub(super) const PART: Reason = reason(
    "part",
    "MADV_COLD, FREE and PAGEOUT split a large folio of which they get a part, and a split drops \
     zeros; PAGEOUT without swap splits all, and discards what is free; deckle keeps the folio",
);
pub(super) const CAP: Reason = reason(
    "cap",
    "profile linux has fault_max 64K: sizes above that are enabled, and not taken",
);
pub(super) const FORKED: Reason = reason(
    "forked",
    "after a fork deckle unprotects and copies windows of a huge page, the kernel reuses it whole \
     if nobody shares it any more",
);

pub(super) const SEVERAL: Reason = reason(
    "several",
    "Linux moves several mappings with one mremap since 6.17; deckle refuses, as Linux did before",
);
/// What explains differences that are no side's nature: they count.
pub const CAUSES: [Reason; 5] = [ZERO_BLOCK, PART, CAP, FORKED, SEVERAL];
