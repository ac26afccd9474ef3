//! The knobs: one table, with the kernel's names, and the two policy profiles.

use crate::beyond::Beyond;
use crate::env::Env;
use crate::frames::Frames;
use crate::knob::{Kind, Knob, TunableError, Value, When, Word, knobs, words};
use crate::sizes::{SizeMode, Sizes};
use crate::units::{BLOCK_ORDER, PAGE_SIZE};

words! {
    /// Which decisions the manager makes where the kernel's and our own differ.
    pub enum Profile {
        /// The default: goes beyond where that is better (see the fields of [`Tunables`]).
        #[default]
        Deckle = "deckle",
        /// The decisions of Linux 6.18: order at fault and its fallback, queueing, the underused
        /// rule (511 means off), zero-drop, when a charge fails.
        Linux = "linux",
    }
}

words! {
    /// `transparent_hugepage/enabled`.
    pub enum ThpMode {
        /// Everywhere, unless the VMA is advised against.
        #[default]
        Always = "always",
        /// Where the VMA is advised `MADV_HUGEPAGE`.
        Madvise = "madvise",
        /// Nowhere.
        Never = "never",
    }
}

words! {
    /// How the order of a fault is found.
    pub enum FaultOrder {
        /// The largest that the knobs allow.
        #[default]
        Fixed = "fixed",
        /// What the faults of the VMA have shown, up to what the knobs allow; where huge pages are
        /// allowed, up to these. VMAs advised `MADV_HUGEPAGE` get what they ask for.
        Auto = "auto",
    }
}

/// How a huge page is taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitMode {
    /// By what it costs. Where frames are slots of a large range, copying a page is cheap and
    /// splitting the machine's huge page is not: it is shattered. Where frames are memory, a
    /// part that goes is cut off without a copy, and an underused page is shattered as long as
    /// there are frames for what is in use, since that keeps a block whole. Both ways were
    /// measured: docs/underused-experiment.md.
    #[default]
    Auto,
    /// What is in use moves to small frames and the block is given back whole, if there are any.
    Shatter,
    /// The frames stay where they are.
    InPlace,
}

/// Which write faults take several pages at once; each stage has those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Stages {
    /// Those on holes (F1).
    Alloc,
    /// Those on pages that nobody else has any more (F4).
    Reuse,
    /// Those on pages that others have, too, which are copied (F3).
    Copy,
    /// Those on the zero page (F2).
    #[default]
    Zero,
}

/// Bytes of a huge page.
const HUGE: u32 = (PAGE_SIZE as u32) << BLOCK_ORDER;
/// All pages of a block but one.
const SUBPAGES: u64 = (1 << BLOCK_ORDER) - 1;

knobs! {
    /// The knobs of one manager. Plain values: a change of a knob makes a new set.
    pub struct Tunables;

    // A field, its key, what it may be, when it may change, and its default in each profile. What
    // is said of it is for users, too: it is the help of `deckle run`.
    users {
        /// Whose decisions: deckle's own, or those of Linux 6.18.
        profile: Profile = "profile", Profile::KIND, Start,
            linux Profile::Linux, deckle Profile::Deckle;
        /// Where page faults get huge pages.
        thp: ThpMode = "transparent_hugepage.enabled", ThpMode::KIND, Live,
            linux ThpMode::Always, deckle ThpMode::Always;
        /// Whether huge pages that are mostly zeros are split under pressure.
        shrink_underused: bool = "transparent_hugepage.shrink_underused", Kind::Flag, Live,
            linux true, deckle true;
        /// Most memory that zeros in huge pages of a process may take before underused ones are
        /// split, also while memory is not short: nr_thp_waste of --stats, while it runs.
        thp_waste_max: u64 = "transparent_hugepage.thp_waste_max", Kind::Limit, Live,
            linux u64::MAX, deckle u64::MAX;
        /// Whether pages of zeros in every huge page are dropped before anybody is killed.
        oom_zero_drop: bool = "transparent_hugepage.oom_zero_drop", Kind::Flag, Live,
            linux false, deckle true;
        /// How large a folio a fault gets: the largest that is allowed, or what the faults before
        /// it have shown to pay.
        fault_order: FaultOrder = "transparent_hugepage.fault_order", FaultOrder::KIND, Live,
            linux FaultOrder::Fixed, deckle FaultOrder::Fixed;
        /// Largest folio below the huge size that a fault may get; less than 16K for none.
        fault_max: u32 = "transparent_hugepage.fault_max", Kind::Bytes(HUGE as u64), Live,
            linux HUGE, deckle 64 << 10;
        /// Largest folio that a fault may get where the program advises huge pages.
        fault_max_advised: u32 = "transparent_hugepage.fault_max_advised",
            Kind::Bytes(HUGE as u64), Live,
            linux HUGE, deckle HUGE;
        /// Large sizes that a fault tries before it takes one page.
        fault_attempts: u8 = "transparent_hugepage.fault_attempts",
            Kind::Number(BLOCK_ORDER as u64, "sizes"), Live,
            linux BLOCK_ORDER, deckle 3;
        /// While usage is below this and fault_order is auto, a fault that gets no large folio
        /// leaves the holes around it to the kernel: they count as used until memory is wanted.
        fault_open_ratio: u8 = "transparent_hugepage.fault_open_ratio",
            Kind::Number(100, "percent of memory.high"), Live,
            linux 0, deckle 0;
        /// A huge page with more zero-filled subpages than this is split under pressure. khugepaged
        /// fills blocks with as many holes; while fault_order is auto with 64 at most.
        max_ptes_none: u16 = "transparent_hugepage.khugepaged.max_ptes_none",
            Kind::Number(SUBPAGES, "zero pages of 512"), Live,
            linux 511, deckle 409;
        /// Most pages of a block that are read back to make it huge.
        max_ptes_swap: u16 = "transparent_hugepage.khugepaged.max_ptes_swap",
            Kind::Number(SUBPAGES, "pages of 512 in the store"), Live,
            linux 64, deckle 64;
        /// Most pages of a block that are shared since a fork and are copied to make it huge. Where
        /// the kernel copies what a fork shares, a block with such a page is left alone.
        max_ptes_shared: u16 = "transparent_hugepage.khugepaged.max_ptes_shared",
            Kind::Number(SUBPAGES, "shared pages of 512"), Live,
            linux 256, deckle 256;
        /// Pages that khugepaged looks at between two rests; 0: it never makes huge pages of small.
        khugepaged_pages_to_scan: u32 = "transparent_hugepage.khugepaged.pages_to_scan",
            Kind::Number(u32::MAX as u64, "pages"), Live,
            linux 8 << BLOCK_ORDER, deckle 8 << BLOCK_ORDER;
        /// How long khugepaged rests.
        khugepaged_scan_sleep_millisecs: u32 =
            "transparent_hugepage.khugepaged.scan_sleep_millisecs",
            Kind::Number(u32::MAX as u64, "milliseconds"), Live,
            linux 10_000, deckle 10_000;
        /// How long it rests when there was no huge page.
        khugepaged_alloc_sleep_millisecs: u32 =
            "transparent_hugepage.khugepaged.alloc_sleep_millisecs",
            Kind::Number(u32::MAX as u64, "milliseconds"), Live,
            linux 60_000, deckle 60_000;
        /// Whether it reclaims for a huge page.
        khugepaged_defrag: bool = "transparent_hugepage.khugepaged.defrag", Kind::Flag, Live,
            linux true, deckle false;
        /// Order of the largest window that is read back at once.
        // 256 KiB: a fault costs as much as reading a dozen pages, so that twice as much would save
        // little more and make who waits for one page wait for a hundred.
        page_cluster: u8 = "vm.page-cluster", Kind::Number(BLOCK_ORDER as u64 - 1, "order"), Live,
            linux 3, deckle 6;
        /// Whether that window follows what faults show; else it is always that large.
        vma_ra_enabled: bool = "vm.vma_ra_enabled", Kind::Flag, Live,
            linux true, deckle true;
        /// Whether what was read back is kept in the store, too, so that it is not stored again
        /// unless it changes.
        // Off in profile `deckle`, where comparing with what lz4 has stored costs nearly as much as
        // storing, and the copies take memory: of 200 MiB that wait beside 160 MiB in use, in 256
        // MiB, 830 MiB were evicted with it and 315 without, in 3.0 and 1.2 seconds.
        swap_cache: bool = "vm.swap_cache", Kind::Flag, Live,
            linux true, deckle false;
    }
    sizes {
        /// Where faults get folios of this size, up to fault_max; inherit: where huge pages.
        sizes: Sizes = SizeMode::KIND, Live,
            linux Sizes::NEVER.with(BLOCK_ORDER, SizeMode::Inherit),
            deckle Sizes::NEVER
                .with(2, SizeMode::Always)
                .with(3, SizeMode::Always)
                .with(4, SizeMode::Always)
                .with(5, SizeMode::Inherit)
                .with(6, SizeMode::Inherit)
                .with(7, SizeMode::Inherit)
                .with(8, SizeMode::Inherit)
                .with(BLOCK_ORDER, SizeMode::Inherit);
        2 "transparent_hugepage.hugepages-16kB.enabled"
        3 "transparent_hugepage.hugepages-32kB.enabled"
        4 "transparent_hugepage.hugepages-64kB.enabled"
        5 "transparent_hugepage.hugepages-128kB.enabled"
        6 "transparent_hugepage.hugepages-256kB.enabled"
        7 "transparent_hugepage.hugepages-512kB.enabled"
        8 "transparent_hugepage.hugepages-1024kB.enabled"
        9 "transparent_hugepage.hugepages-2048kB.enabled"
    }
    // The same in every profile; an experiment writes the field.
    experiments {
        /// How a huge page is taken apart.
        split_mode: SplitMode = SplitMode::Auto;
        /// Which write faults take several pages at once.
        stages: Stages = Stages::Zero;
        /// Whether eviction looks for pages of zeros and drops them. Off, they are stored like any
        /// other: to tell what the look costs where there are none.
        zero_drop: bool = true;
    }
}

impl Tunables {
    /// What a tick is where there is a clock: times are rounded up to ticks.
    pub const TICK_MILLISECS: u32 = 100;

    /// Words that [`to_words`](Tunables::to_words) makes.
    pub const WORDS: usize = Tunables::KNOBS.len();

    /// Sets the knob of this key to what `text` says, and returns what it was before. No other
    /// knob changes, not with a new profile either; [`Knob::when`] is not looked at.
    ///
    /// # Errors
    /// There is no such knob for users, or it cannot be that; nothing has changed then.
    pub fn set(&mut self, key: &str, text: &str) -> Result<Value, TunableError> {
        let refuse = |why| TunableError::new(key, why);
        let knob = Knob::find(key).map_err(refuse)?;
        let (old, new) = (knob.value(self), knob.kind.parse(text).map_err(refuse)?);
        (knob.put)(self, new);
        Ok(old)
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// The first knob that is out of its range.
    pub fn validate(&self) -> Result<(), TunableError> {
        Tunables::from_words(&self.to_words()).map(|_| ())
    }

    /// The knobs of users, for who passes them on in shared memory.
    pub fn to_words(&self) -> [u64; Tunables::WORDS] {
        core::array::from_fn(|i| {
            let knob = &Tunables::KNOBS[i];
            knob.kind.shared((knob.get)(self))
        })
    }

    /// From such words. If all are 0, all is off and without a limit, and what has no off is as by
    /// default.
    ///
    /// # Errors
    /// What [`to_words`](Tunables::to_words) of knobs in their ranges never made.
    pub fn from_words(words: &[u64; Tunables::WORDS]) -> Result<Tunables, TunableError> {
        let mut t = Tunables::default();
        for (knob, word) in Tunables::KNOBS.iter().zip(words) {
            let value = knob.kind.shared(*word);
            if value > knob.kind.max() {
                let why = knob.kind.refusal(knob.kind.show(value));
                return Err(TunableError::new(knob.key, why));
            }
            (knob.put)(&mut t, value);
        }
        Ok(t)
    }

    /// Whether a huge page with `live` pages to keep is shattered while `free` frames are left.
    /// No live page: a part of it goes for good.
    pub(crate) fn shatters<E: Env>(&self, live: u32, free: u64) -> bool {
        match self.split_mode {
            SplitMode::InPlace => false,
            SplitMode::Shatter => true,
            SplitMode::Auto => E::Frames::may_move_out(live, free),
        }
    }

    /// Whether the shrinker runs at all: it is on, and the threshold can be passed. Linux
    /// 6.18 takes 511 as off; profile `deckle` scans then too, since 512 zeros are more.
    pub fn shrinks(&self) -> bool {
        self.shrink_underused && (self.max_ptes_none < 511 || self.beyond(Beyond::Scan511))
    }
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables::of_profile(Profile::Deckle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_value_is_in_range_written_as_it_is_read_and_passed_on() {
        for knob in Tunables::KNOBS {
            for value in [0, 1, knob.kind.max()] {
                let (mut t, mut other) = (Tunables::default(), Tunables::default());
                (knob.put)(&mut t, value);
                assert_eq!((knob.get)(&t), value, "{}", knob.key);
                assert_eq!(Tunables::from_words(&t.to_words()), Ok(t), "{}", knob.key);
                let (old, new) = (knob.value(&other), knob.value(&t).to_string());
                assert_eq!(other.set(knob.key, &new), Ok(old), "{} = {new}", knob.key);
                assert_eq!(other, t, "{} = {new}", knob.key);
            }
        }
        let linux = Tunables::of_profile(Profile::Linux);
        assert_eq!(Tunables::from_words(&linux.to_words()), Ok(linux));
    }

    #[test]
    fn what_is_out_of_range_is_refused_and_changes_nothing() {
        for (i, knob) in Tunables::KNOBS.iter().enumerate() {
            let mut t = Tunables::default();
            for text in ["", "-1", "x", "18446744073709551616"] {
                assert!(t.set(knob.key, text).is_err(), "{} = {text}", knob.key);
            }
            assert_eq!(t, Tunables::default());
            let mut words = t.to_words();
            let Some(above) = knob.kind.max().checked_add(1) else {
                continue;
            };
            for word in [above, u64::MAX] {
                words[i] = word;
                let error = Tunables::from_words(&words).unwrap_err();
                assert_eq!(error.key, knob.key);
            }
        }
    }

    #[test]
    fn a_page_that_nobody_wrote_to_has_everything_off_and_no_limit() {
        let t = Tunables::from_words(&[0; Tunables::WORDS]).unwrap();
        let not_off = |knob: &&Knob| knob.value(&t) != knob.kind.show(0);
        assert_eq!(Tunables::KNOBS.iter().filter(not_off).count(), 1);
        assert_eq!(t.thp_waste_max, u64::MAX);
        assert_eq!((t.profile, t.zero_drop), (Profile::Deckle, true));
    }

    #[test]
    fn errors_say_what_to_do() {
        let mut t = Tunables::default();
        for (key, text, why) in [
            ("vm.page-cluster", "9", "`9` is not in 0 to 8 (order)"),
            (
                "vm.swap_cache",
                "yes",
                "`yes` is not one of true, false, on, off",
            ),
            ("profile", "bsd", "`bsd` is not one of deckle, linux"),
            (
                "page-cluster",
                "1",
                "there is no such setting: did you mean `vm.page-cluster`?",
            ),
            ("split_mode", "auto", "there is no such setting"),
        ] {
            assert_eq!(t.set(key, text).unwrap_err().why, why);
        }
        t.page_cluster = 9;
        let error = t.validate().unwrap_err().to_string();
        assert_eq!(error, "vm.page-cluster: `9` is not in 0 to 8 (order)");
    }
}
