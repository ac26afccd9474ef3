//! Splitting folios: lists, references, flags, failures, pages of zeros.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::engine::lru::Which;
use deckle_mm::{
    Advice, Charge, Item, LockClass, MapError, Pfn, Profile, Prot, SizeItem, SizeMode, Sizes,
    SplitError, SplitFlags, SplitMode, Tunables, Vpn,
};

fn rig_of(order: u8) -> Rig {
    let t = Tunables {
        sizes: Sizes::NEVER.with(order, SizeMode::Always),
        fault_max: 1 << 20,
        ..Tunables::of_profile(Profile::Deckle)
    };
    Rig::new(64, 1, 1, true, t)
}

/// A folio of that order whose pages of even number hold a byte, the others zeros.
fn half(order: u8) -> (Rig, Vpn) {
    let rig = rig_of(order);
    let start = rig.mmap(0, BLOCK);
    let n = 1 << order;
    rig.write(start, byte_of(0));
    (0..n)
        .step_by(2)
        .for_each(|i| rig.write(start.add(i), byte_of(i)));
    let folio = rig.folio(start);
    assert_eq!((folio.order, folio.frame), (order, folio.head));
    (rig, start)
}

fn intact(rig: &Rig, start: Vpn, pages: u64) {
    for i in 0..pages {
        let byte = if i % 2 == 0 { byte_of(i) } else { 0 };
        assert!(rig.holds(start.add(i), byte), "page {i}");
    }
}

/// It was split none the less, and the huge page in its place became a table whose 512 entries
/// held one reference.
#[test]
fn r31_r92_a_folio_whose_pages_have_gone_leaves_its_block_alone() {
    let (rig, start) = half(4);
    let mut list = rig.mm.isolate_page(rig.space, start).unwrap();
    rig.advise(start, BLOCK, Advice::DontNeed);
    rig.mm.set_tunables(rig_of(9).mm.tunables()).unwrap();
    (0..BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert_eq!(rig.folio(start).order, 9);
    let done = rig.mm.split_isolated(&mut list, 0, SplitFlags::NONE);
    assert_eq!(done, Err(SplitError::NoFolio));
    rig.mm.putback_list(list);
    assert_eq!((rig.folio(start).order, rig.folio(start).refs), (9, 1));
    rig.verify(&"put back");
    (0..BLOCK).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i)), "page {i}"));
}

#[test]
fn r93_the_lru_lock_is_taken_once_for_what_is_on_the_list_and_never_for_what_is_isolated() {
    let taken = |rig: &Rig| rig.machine.locks_taken(LockClass::Lru);
    for order in [4, 9] {
        let (rig, start) = half(order);
        let before = taken(&rig);
        rig.mm
            .split_page(rig.space, start, 0, SplitFlags::NONE)
            .unwrap();
        assert_eq!(taken(&rig), before + 1);
        rig.verify(&"on the list");
        let (rig, start) = half(order);
        let mut list = rig.mm.isolate_page(rig.space, start).unwrap();
        let before = taken(&rig);
        let done = rig.mm.split_isolated(&mut list, 0, SplitFlags::DROP_ZERO);
        assert_eq!(done.unwrap().parts, 1 << order);
        assert_eq!(taken(&rig), before);
        // All go back under one.
        rig.mm.putback_list(list);
        assert_eq!(taken(&rig), before + 1);
        rig.verify(&"isolated");
    }
}

#[test]
fn r94_what_is_on_the_list_is_not_split_as_isolated() {
    let (rig, start) = half(4);
    let done = rig.mm.split_page(rig.space, start, 0, SplitFlags::ISOLATED);
    assert_eq!(done, Err(SplitError::Listed));
    assert_eq!(rig.folio(start).order, 4);
    rig.verify(&"refused");
}

#[test]
fn r95_r96_parts_follow_the_folio_with_a_reference_each_and_keep_place_and_flags() {
    for (order, to) in [(4, 0), (4, 2), (9, 4), (9, 0)] {
        let (rig, start) = half(order);
        let inactive = to == 0;
        if inactive {
            rig.advise(start, 1 << order, Advice::Cold);
        }
        let head = rig.folio(start).head;
        let mut list = rig.mm.isolate_page(rig.space, start).unwrap();
        rig.mm
            .split_isolated(&mut list, to, SplitFlags::NONE)
            .unwrap();
        let n = 1u32 << (order - to);
        let want: Vec<Pfn> = (0..n).map(|k| head.add(k << to)).collect();
        assert_eq!(list.folios(), want);
        for k in 0..u64::from(n) {
            let part = rig.folio(start.add(k << to));
            assert_eq!((part.order, part.head), (to, want[k as usize]));
            assert_eq!(part.refs, (1 << to) + 1);
            assert_eq!(part.active, !inactive);
            let t = rig.model.translation(rig.space, start.add(k << to));
            assert_eq!(t.is_none(), inactive);
        }
        rig.mm.putback_list(list);
        assert_eq!(rig.folio(start).refs, 1 << to);
        let which = if inactive {
            Which::Inactive
        } else {
            Which::Active
        };
        assert_eq!(rig.mm.lru_pages(which), 1 << order);
        rig.verify(&(order, to));
        intact(&rig, start, 1 << order);
    }
}

/// Everything that a failed split must leave alone.
fn picture(rig: &Rig) -> impl PartialEq + std::fmt::Debug {
    let counts: Vec<u64> = Item::ALL
        .iter()
        .filter(|i| **i != Item::NrPinned)
        .map(|i| rig.stat(*i))
        .collect();
    let shown = rig.model.translations(rig.space);
    let frames: Vec<_> = shown.iter().map(|(p, t)| (*p, t.frame, t.prot)).collect();
    let folios: Vec<_> = shown.iter().map(|(p, _)| rig.folio_at(*p)).collect();
    (frames, folios, counts, rig.charge.usage())
}

#[test]
fn r100_r114_r135_a_split_that_fails_leaves_every_page_as_it_was_zeros_too() {
    for order in [3, 4, 9] {
        for at in [0, 1, (1 << order) - 1] {
            let (rig, start) = half(order);
            rig.model.pin(rig.space, start.add(at));
            let before = picture(&rig);
            let done = rig
                .mm
                .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO);
            assert_eq!(done, Err(SplitError::Pinned));
            assert_eq!(picture(&rig), before);
            rig.verify(&(order, at));
            // The shrinker neither.
            assert_eq!(rig.mm.shrink_underused(10, 1000), 0);
            let queued = rig.folio(start).queued;
            assert!(!queued && rig.folio(start).order == order);
            assert_eq!(
                rig.folio(start).refs,
                if order == 9 { 1 } else { 1 << order }
            );
            intact(&rig, start, 1 << order);
            rig.model.unpin(rig.space, start.add(at));
            let done = rig
                .mm
                .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO)
                .unwrap();
            assert_eq!(done.dropped, 1 << (order - 1));
            intact(&rig, start, 1 << order);
            rig.verify(&(order, at));
        }
    }
}

#[test]
fn r106_r100_r149_a_folio_that_somebody_holds_is_neither_split_nor_freed() {
    for order in [4, 9] {
        let (rig, start) = half(order);
        assert_eq!(rig.stat(Item::NrIsolated), 0);
        let holder = rig.mm.isolate_page(rig.space, start).unwrap();
        assert_eq!(rig.stat(Item::NrIsolated), 1 << order);
        let before = picture(&rig);
        for flags in [SplitFlags::NONE, SplitFlags::DROP_ZERO] {
            let done = rig.mm.split_page(rig.space, start, 0, flags);
            assert_eq!(done, Err(SplitError::Referenced));
            assert_eq!(picture(&rig), before);
        }
        assert_eq!(holder.folios(), [rig.folio(start).head]);
        rig.mm.putback_list(holder);
        intact(&rig, start, 1 << order);
        rig.verify(&order);
    }
}

#[test]
fn r101_locked_pages_are_never_dropped() {
    let (rig, start) = half(9);
    rig.mm.mlock(rig.space, start, BLOCK).unwrap();
    assert_eq!(rig.mm.shrink_underused(10, 1000), 0);
    rig.mm.reclaim(1000);
    let done = rig
        .mm
        .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO)
        .unwrap();
    assert_eq!((done.dropped, done.freed), (0, 0));
    assert_eq!(rig.stat(Item::NrAnon), BLOCK);
    assert_eq!(rig.stat(Item::NrZero), 0);
    rig.verify(&"locked");
    // Locked in part: the others go.
    let (rig, start) = half(4);
    rig.mm.lock_present(rig.space, start.add(3), 4).unwrap();
    let done = rig
        .mm
        .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO)
        .unwrap();
    assert_eq!(done.dropped, 8 - 2);
    (3..7).for_each(|i| assert!(rig.model.translation(rig.space, start.add(i)).is_some()));
    rig.verify(&"locked in part");
    // A part of a locked huge page changes its rights: all stays resident, both ways.
    for split_mode in [SplitMode::Shatter, SplitMode::InPlace] {
        let (rig, start) = half(9);
        let t = Tunables {
            split_mode,
            ..rig.mm.tunables()
        };
        rig.mm.set_tunables(t).unwrap();
        rig.mm.mlock(rig.space, start, BLOCK).unwrap();
        rig.mm
            .mprotect(rig.space, start.add(7), 9, Prot::R)
            .unwrap();
        assert_eq!((rig.resident(), rig.stat(Item::NrZero)), (BLOCK, 0));
        rig.verify(&split_mode);
    }
}

/// As with Linux: the huge page was taken apart for nothing.
#[test]
fn rights_that_are_there_already_leave_a_huge_page_whole() {
    let (rig, start) = half(9);
    (rig.mm.mprotect(rig.space, start.add(7), 9, Prot::RW)).unwrap();
    assert_eq!(rig.folio(start).order, 9);
    (rig.mm.mprotect(rig.space, start.add(7), 9, Prot::R)).unwrap();
    assert!(rig.folio(start).order < 9);
    intact(&rig, start, BLOCK);
    rig.verify(&"rights");
}

/// What lies behind a hole was populated, and with other rights it was the error that counted.
#[test]
fn populating_goes_in_order_and_ends_at_a_hole() {
    let rig = rig_of(9);
    let start = rig.mmap(0, 16);
    (rig.mm.mprotect(rig.space, start.add(12), 4, Prot::NONE)).unwrap();
    rig.munmap(start.add(4), 4);
    let done = (rig.mm).madvise(rig.space, start, 16, Advice::PopulateWrite);
    assert_eq!(done, Err(MapError::Hole(start)));
    assert_eq!(rig.resident(), 4);
    rig.verify(&"populated");
}

#[test]
fn r102_r136_only_pages_that_become_single_ones_are_looked_at() {
    for order in [4, 6, 9] {
        for to in (2..order).chain([0]) {
            let (rig, start) = half(order);
            let done = rig
                .mm
                .split_page(rig.space, start, to, SplitFlags::DROP_ZERO)
                .unwrap();
            let scanned = rig.model.counters().scanned_bytes;
            if to > 0 {
                assert_eq!((done.dropped, done.freed, scanned), (0, 0, 0));
                assert_eq!(rig.folio(start.add(1)).order, to);
            } else {
                assert_eq!(
                    (done.dropped, done.freed),
                    (1 << (order - 1), 1 << (order - 1))
                );
                // Half of them end with their first byte.
                assert_eq!(scanned, (1 << (order - 1)) * 4097);
            }
            intact(&rig, start, 1 << order);
            rig.verify(&(order, to));
        }
    }
}

#[test]
fn r105_r107_r108_r109_empty_parts_are_free_at_once_but_for_the_callers_own() {
    for order in [2, 4, 9] {
        let rig = rig_of(order);
        let start = rig.mmap(0, BLOCK);
        let n = 1 << order;
        // All zeros; a quarter of a small one is unmapped before.
        rig.fault(start, true).unwrap();
        let cut = if order < 9 { n / 4 } else { 0 };
        if cut > 0 {
            rig.munmap(start.add(n - cut), cut);
        }
        // Inactive or active, the flags of what is freed are clear, or the zone refuses it.
        let mut list = rig.mm.isolate_page(rig.space, start).unwrap();
        let head = list.folios()[0];
        let done = rig
            .mm
            .split_isolated(&mut list, 0, SplitFlags::DROP_ZERO)
            .unwrap();
        assert_eq!(u64::from(done.dropped), n - cut);
        assert_eq!(u64::from(done.freed), n - 1);
        assert_eq!(list.folios(), [head]);
        assert_eq!(rig.charge.usage(), 1);
        assert_eq!(rig.stat(Item::ThpSplitFree), n - 1);
        assert_eq!(rig.stat(Item::ThpSplitUnmap), n - cut);
        rig.mm.putback_list(list);
        assert_eq!((rig.charge.usage(), rig.resident()), (0, 0));
        // verify() wants no page isolated.
        rig.verify(&order);
    }
}

#[test]
fn r109_nothing_stays_isolated_after_reclaim_of_what_is_split() {
    for mode in [SplitMode::Auto, SplitMode::InPlace] {
        let (rig, start) = half(9);
        let t = Tunables {
            split_mode: mode,
            ..rig.mm.tunables()
        };
        rig.mm.set_tunables(t).unwrap();
        // Some pages are refused by the store, so the huge page is taken apart.
        (0..20).for_each(|i| rig.write(start.add(10 * i), 0xee));
        rig.mm.page_out(rig.space, start, BLOCK).unwrap();
        assert_eq!(rig.charge.usage(), 20 + rig.mm.store_charged());
        assert_eq!(rig.stat(Item::ThpSplitPage), 1);
        rig.verify(&mode);
        let small = rig.mmap(BLOCK, 64);
        (0..64).for_each(|i| rig.write(small.add(i), 1));
        let mut list = rig.mm.isolate_page(rig.space, small).unwrap();
        let _ = rig.mm.split_isolated(&mut list, 2, SplitFlags::NONE);
        rig.mm.putback_list(list);
        rig.verify(&mode);
    }
}

#[test]
fn r113_r114_one_word_says_how_and_without_it_no_page_of_zeros_goes() {
    assert_eq!(size_of::<SplitFlags>(), 1);
    let both = SplitFlags::DROP_ZERO | SplitFlags::ISOLATED;
    assert!(both.has(SplitFlags::DROP_ZERO) && both.has(SplitFlags::ISOLATED));
    assert!(!SplitFlags::DROP_ZERO.has(SplitFlags::ISOLATED));
    for order in [4, 9] {
        // As migration does it that goes well, and as everything but reclaim does.
        let (rig, start) = half(order);
        let mut list = rig.mm.isolate_page(rig.space, start).unwrap();
        rig.mm
            .split_isolated(&mut list, 0, SplitFlags::NONE)
            .unwrap();
        rig.mm.putback_list(list);
        rig.mm
            .mprotect(rig.space, start.add(1), 1, Prot::R)
            .unwrap();
        assert_eq!((rig.resident(), rig.stat(Item::NrZero)), (1 << order, 0));
        assert_eq!(rig.model.counters().scanned_bytes, 0);
        rig.verify(&order);
    }
}

#[test]
fn r146_zeros_are_dropped_from_folios_of_every_order() {
    for order in 2..=9 {
        let n = 1u64 << order;
        // By reclaim, which splits what it cannot store.
        let (rig, start) = half(order);
        (0..n)
            .step_by(2)
            .for_each(|i| rig.write(start.add(i), 0xee));
        rig.mm.page_out(rig.space, start, n).unwrap();
        if order == 9 || rig.charge.usage() == n / 2 {
            assert_eq!(rig.stat(Item::NrZero), n / 2, "order {order}");
        }
        assert_eq!(rig.charge.usage(), n / 2, "order {order}");
        rig.verify(&order);
        // By a split.
        let (rig, start) = half(order);
        let done = rig
            .mm
            .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO)
            .unwrap();
        assert_eq!(u64::from(done.dropped), n / 2);
        assert_eq!(rig.charge.usage(), n / 2);
        assert_eq!(rig.mm.stats().size(order, SizeItem::Split), 1);
        assert_eq!(rig.mm.stats().size(order, SizeItem::NrAnon), 0);
        intact(&rig, start, n);
        rig.verify(&order);
    }
}

/// Where pages are copied for it, profile `deckle` spares the copy of those of zeros; nothing else
/// looks at bytes that nobody is short of.
#[test]
fn r114_a_program_that_changes_a_part_of_a_huge_page_keeps_the_zeros_of_the_rest() {
    type Change = fn(&Rig, Vpn);
    let changes: [(Change, u64); 3] = [
        (|rig, at| rig.advise(at, 8, Advice::DontNeed), 8),
        (|rig, at| rig.munmap(at, 8), 8),
        (
            |rig, at| rig.mm.mprotect(rig.space, at, 8, Prot::R).unwrap(),
            0,
        ),
    ];
    for (profile, split_mode) in [
        (Profile::Linux, SplitMode::Auto),
        (Profile::Linux, SplitMode::Shatter),
        (Profile::Linux, SplitMode::InPlace),
        (Profile::Deckle, SplitMode::InPlace),
        (Profile::Deckle, SplitMode::Shatter),
    ] {
        let spares = (profile, split_mode) == (Profile::Deckle, SplitMode::Shatter);
        for (change, gone) in changes {
            let t = Tunables {
                split_mode,
                ..Tunables::of_profile(profile)
            };
            let rig = Rig::new(64, 1, 1, true, t);
            let start = rig.huge(0, (0..BLOCK).step_by(2));
            change(&rig, start.add(64));
            let zeros = if spares { (BLOCK - gone) / 2 } else { 0 };
            assert_eq!(rig.resident(), BLOCK - gone - zeros, "{t:?}");
            assert_eq!(rig.stat(Item::NrZero), zeros);
            assert_eq!(rig.model.counters().scanned_bytes > 0, spares);
            rig.verify(&t);
        }
    }
}
