//! What profile `deckle` decides otherwise than Linux.
//!
//! Each is a word of its own, which `docs/profiles.md` has with the reason and the test; a test
//! compares the two. Nobody else asks which profile it is, so that profile `linux` makes Linux's
//! decisions wherever this list does not say otherwise. Knobs whose defaults differ are there,
//! too.

use crate::tunables::{Profile, Tunables};

macro_rules! beyond {
    ($($(#[$doc:meta])* $v:ident = $word:literal,)*) => {
        /// A decision that profile `deckle` makes otherwise than Linux.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Beyond { $($(#[$doc])* $v,)* }

        impl Beyond {
            /// All.
            pub const ALL: &'static [Beyond] = &[$(Beyond::$v,)*];

            /// What `docs/profiles.md` calls it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Beyond::$v => $word,)*
                }
            }
        }
    };
}

beyond! {
    /// What a program wants back of a block that was taken apart comes in ever larger folios.
    ComeBack = "come_back",
    /// The threshold of the shrinker rises while its splits are regretted.
    Threshold = "underused_threshold",
    /// A threshold of 511 does not turn the shrinker off.
    Scan511 = "scan_511",
    /// A pass of the shrinker ends with what it was asked for, and young huge pages sit one out
    /// while nobody waits; else each pass is the whole queue.
    ShrinkGoal = "shrink_goal",
    /// The shrinker splits a folio of which a part is unmapped into folios as large as what is left
    /// allows, without a look at its bytes; else into pages, of which those of zeros go.
    KeepParts = "keep_parts",
    /// A budget for zeros in huge pages counts.
    WasteBudget = "thp_waste_max",
    /// A program that changes a part of a huge page costs it the pages of zeros in the rest.
    BreakDropsZero = "break_drops_zero",
    /// Advice on a part of a large folio leaves it whole, or takes a part out of it that goes at
    /// once; and what cannot be stored stays whole when it is to be paged out.
    KeepAdvised = "keep_advised",
    /// A folio may cover what read faults have left.
    CoverZero = "cover_zero",
    /// A huge page may come where there is a table.
    HugeOverTable = "huge_over_table",
    /// A read of a hole shows the zero page around it, too.
    ReadAround = "read_around",
    /// khugepaged makes no huge page that does not fit below `memory.high`.
    KhugepagedFits = "khugepaged_fits",
    /// Reclaim looks for zeros and lazily freed pages where there is no swap, too.
    ReclaimWithoutSwap = "reclaim_without_swap",
}

impl Tunables {
    /// Whether the manager goes beyond Linux there.
    pub fn beyond(&self, _what: Beyond) -> bool {
        self.profile == Profile::Deckle
    }
}
