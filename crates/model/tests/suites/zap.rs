//! Unmapping in batches, and folios of which a part stays.

use super::P;
use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{
    Advice, Charge, Item, LockClass, Profile, Prot, SizeItem, SizeMode, Sizes, Tunables, Vpn,
};
use deckle_model::Profile as _;

/// Folios of one order and no other.
fn only(order: u8) -> Rig {
    let t = Tunables {
        sizes: Sizes::NEVER.with(order, SizeMode::Always),
        fault_max: 1 << 20,
        ..Tunables::of_profile(Profile::Deckle)
    };
    Rig::new(64, 1, 1, true, t)
}

/// A block of folios of that order, every page written.
fn filled(order: u8) -> (Rig, Vpn) {
    let rig = only(order);
    let start = rig.mmap(0, BLOCK);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert_eq!(rig.folio(start).order, order);
    if order > 0 {
        assert_eq!(rig.mm.stats().size(order, SizeItem::NrAnon), BLOCK >> order);
    }
    (rig, start)
}

#[test]
fn r83_a_batch_counts_as_its_pages_one_by_one() {
    let (batch, start) = filled(4);
    let (single, _) = filled(4);
    for (from, pages) in [(3, 7), (20, 1), (32, 100), (140, 4), (400, 112)] {
        batch.munmap(start.add(from), pages);
        (from..from + pages).for_each(|i| single.munmap(start.add(i), 1));
        let state = |rig: &Rig| {
            let folio = |i| {
                rig.folio_at(start.add(i))
                    .map(|f| (f.order, f.refs, f.partial))
            };
            let folios: Vec<_> = (0..BLOCK).map(folio).collect();
            let nr = |i: &&Item| i.name().starts_with("nr_");
            let gauges: Vec<_> = Item::ALL.iter().filter(nr).map(|i| rig.stat(*i)).collect();
            (folios, gauges, rig.charge.usage(), rig.mm.queued())
        };
        assert_eq!(state(&batch), state(&single));
        batch.verify(&from);
        single.verify(&from);
    }
    // What was added in a batch is what one by one adds.
    let (large, small) = (only(4), only(0));
    for rig in [&large, &small] {
        let start = rig.mmap(0, 16);
        (0..16).for_each(|i| rig.write(start.add(i), 1));
        assert_eq!((rig.resident(), rig.charge.usage()), (16, 16));
    }
}

#[test]
fn r84_a_folio_that_goes_whole_is_never_queued() {
    for order in 2..=8 {
        let (rig, start) = filled(order);
        let n = 1 << order;
        rig.munmap(start, n);
        rig.advise(start.add(n), n, Advice::DontNeed);
        rig.munmap(start, BLOCK);
        assert_eq!(rig.mm.stats().size(order, SizeItem::SplitDeferred), 0);
        assert_eq!((rig.mm.queued(), rig.charge.usage()), (0, 0));
        rig.verify(&order);
    }
}

#[test]
fn r85_r128_r133_r145_a_folio_that_goes_in_part_is_queued_once_whatever_its_order() {
    for order in 2..=8 {
        let (rig, start) = filled(order);
        let deferred = || rig.mm.stats().size(order, SizeItem::SplitDeferred);
        let partial = || rig.mm.stats().size(order, SizeItem::NrAnonPartiallyMapped);
        rig.munmap(start.add(1), 1);
        assert_eq!((deferred(), partial(), rig.mm.queued()), (1, 1, 1));
        rig.munmap(start.add(2), 1);
        rig.advise(start.add(3), 1, Advice::DontNeed);
        assert_eq!((deferred(), partial(), rig.mm.queued()), (1, 1, 1));
        // It does not revert, whatever comes to its holes.
        rig.mmap(1, 2);
        (1..4).for_each(|i| rig.write(start.add(i), 9));
        let folio = rig.folio(start);
        assert!(folio.partial && folio.queued && folio.order == order);
        rig.verify(&order);
        // It ends with the folio.
        rig.munmap(start, BLOCK);
        assert_eq!((deferred(), partial(), rig.mm.queued()), (1, 0, 0));
        assert_eq!(rig.stat(Item::NrAnonPartiallyMapped), 0);
        // Only huge pages count here.
        assert_eq!(rig.stat(Item::ThpDeferredSplitPage), 0);
        rig.verify(&order);
    }
    // Folios of one page have no part, and a huge page is taken apart at once.
    for order in [0, 9] {
        let (rig, start) = filled(order);
        rig.advise(start.add(1), 1, Advice::DontNeed);
        assert_eq!(rig.stat(Item::NrAnonPartiallyMapped), 0);
        assert_eq!((rig.mm.queued(), rig.charge.usage()), (0, BLOCK - 1));
        rig.verify(&order);
    }
}

#[test]
fn r86_a_batch_ends_with_the_range_and_counts_folio_by_folio() {
    let (rig, start) = filled(4);
    // The end of one folio, a whole one, the beginning of a third, and a fourth whose pages
    // are not in a row.
    rig.munmap(start.add(8), 16 + 16);
    assert_eq!(rig.resident(), BLOCK - 32);
    assert_eq!(rig.stat(Item::NrAnonPartiallyMapped), 2);
    let (a, b) = (rig.folio(start), rig.folio(start.add(47)));
    assert_eq!((a.refs, b.refs), (8, 8));
    assert!(a.head != b.head && rig.folio_at(start.add(24)).is_none());
    rig.munmap(start.add(50), 2);
    rig.mmap(50, 2);
    rig.write(start.add(50), 7);
    rig.munmap(start.add(49), 3);
    assert_eq!(rig.folio(start.add(48)).refs, 13);
    assert_eq!(rig.resident(), BLOCK - 32 - 3);
    for i in (0..8).chain(40..49).chain(52..BLOCK) {
        assert!(rig.holds(start.add(i), byte_of(i)), "page {i}");
    }
    rig.verify(&"cut");
}

#[test]
fn r88_who_frees_a_folio_takes_the_queues_lock_only_if_it_is_queued() {
    let (rig, start) = filled(4);
    let taken = || rig.machine.locks_taken(LockClass::SplitQueue);
    let before = taken();
    rig.munmap(start, 160);
    rig.advise(start.add(160), 32, Advice::DontNeed);
    assert_eq!(taken(), before);
    // Queued once, and taken off once.
    rig.munmap(start.add(192), 4);
    rig.munmap(start.add(196), 4);
    assert_eq!(taken(), before + 1);
    rig.munmap(start.add(200), 8);
    assert_eq!(taken(), before + 2);
    rig.verify(&"counting");
}

#[test]
fn r91_a_large_folio_of_ones_own_that_is_given_up_is_freed_whole() {
    for order in [2, 4, 7, 9] {
        let (rig, start) = filled(order);
        let n = 1 << order;
        rig.advise(start, n, Advice::Free);
        rig.mm.page_out(rig.space, start, n).unwrap();
        assert_eq!(rig.stat(Item::Pglazyfreed), n);
        assert_eq!(rig.stat(Item::Pswpout) + rig.stat(Item::SwpoutZero), 0);
        assert_eq!(rig.charge.usage(), BLOCK - n);
        assert_eq!(rig.mm.stats().size(order, SizeItem::Split), 0);
        assert!(rig.holds(start, 0));
        rig.verify(&order);
    }
}

#[test]
fn r91_r92_a_part_of_a_huge_page_that_is_given_up_goes_if_it_is_the_larger_one() {
    // Less than would have to be copied stays as it is.
    let (rig, start) = filled(9);
    rig.advise(start, 255, Advice::Free);
    assert_eq!(rig.charge.usage(), BLOCK);
    assert_eq!(rig.folio(start).order, 9);
    for (from, pages) in [(0, 256), (100, 300), (1, 511)] {
        let (rig, start) = filled(9);
        rig.advise(start.add(from), pages, Advice::Free);
        assert_eq!(rig.charge.usage(), BLOCK - pages, "{from} {pages}");
        for i in 0..BLOCK {
            let gone = (from..from + pages).contains(&i);
            let byte = if gone { 0 } else { byte_of(i) };
            assert!(rig.holds(start.add(i), byte), "page {i}");
        }
        rig.verify(&(from, pages));
    }
}

#[test]
fn a_huge_page_stays_whole_where_a_range_has_all_of_it_or_nothing() {
    for (from, pages, cut) in [
        (0, 3 * BLOCK, [false; 3]),
        (BLOCK, BLOCK, [false; 3]),
        (0, 1, [true, false, false]),
        (BLOCK, BLOCK - 1, [false, true, false]),
        (BLOCK + 1, BLOCK - 1, [false, true, false]),
        (2 * BLOCK - 1, 1, [false, true, false]),
        (1, 2 * BLOCK - 1, [true, false, false]),
        (BLOCK, BLOCK + 1, [false, false, true]),
        (BLOCK / 2, 2 * BLOCK, [true, false, true]),
    ] {
        let rig = Rig::new(64, 1, 1, true, Tunables::of_profile(Profile::Deckle));
        let start = rig.huge(0, 0..BLOCK);
        (1..3).for_each(|k| _ = rig.huge(k * BLOCK, 0..BLOCK));
        let part = start.add(from);
        rig.mm.mprotect(rig.space, part, pages, Prot::R).unwrap();
        let orders = [0, 1, 2].map(|k| rig.folio(start.add(k * BLOCK)).order < 9);
        assert_eq!(orders, cut, "{from} {pages}");
        // Where it is copied to be taken apart, it is taken as one before any part changes.
        let torn = rig.model.counters().huge_splits;
        assert!(P::RAM || torn == 0, "{from} {pages}: {torn}");
        let split = rig.stat(Item::ThpSplitPage);
        rig.munmap(part, pages);
        assert_eq!(rig.stat(Item::ThpSplitPage), split);
        rig.verify(&(from, pages));
    }
}

#[test]
fn r92_what_stays_of_a_huge_page_stays_large() {
    let (rig, start) = filled(9);
    rig.advise(start, 256, Advice::DontNeed);
    // Frames for blocks are for blocks alone where they are slots: what stays becomes pages.
    let part = if P::RAM { (8, 256) } else { (0, 1) };
    let folio = rig.folio(start.add(300));
    assert_eq!((folio.order, folio.refs), part);
    assert_eq!(rig.charge.usage(), 256);
    // Cut where nothing is aligned: every part is as large as it can be.
    let (rig, start) = filled(9);
    rig.advise(start.add(21), 1, Advice::DontNeed);
    let order = |i| rig.folio(start.add(i)).order;
    let orders = [0, 16, 20, 22, 23, 24, 32, 64, 128, 256].map(order);
    assert_eq!(rig.charge.usage(), BLOCK - 1);
    if P::RAM {
        assert_eq!(orders, [4, 2, 0, 0, 0, 3, 5, 6, 7, 8]);
        let moved = rig.model.counters();
        assert_eq!((moved.copied, moved.unmapped), (0, 0));
    } else {
        assert_eq!(orders, [0; 10]);
    }
    for i in (0..BLOCK).filter(|i| *i != 21) {
        assert!(rig.holds(start.add(i), byte_of(i)), "page {i}");
    }
    rig.verify(&"cut");
    // The shrinker does the same with smaller folios.
    let (rig, start) = filled(6);
    rig.munmap(start.add(40), 24);
    let used = rig.charge.usage();
    assert_eq!(rig.mm.shrink_underused(10, 1), 24);
    assert_eq!(rig.charge.usage(), used - 24);
    let orders = [0, 31, 32, 39].map(|i| rig.folio(start.add(i)).order);
    assert_eq!(orders, [5, 5, 3, 3]);
    rig.verify(&"shrinking");
}

#[test]
fn r129_what_is_partly_mapped_is_split_unseen_and_queued_again_if_it_cannot_be() {
    let (rig, start) = filled(4);
    // Zeros do not matter here, nor does the knob.
    let t = Tunables {
        shrink_underused: false,
        ..rig.mm.tunables()
    };
    rig.mm.set_tunables(t).unwrap();
    rig.munmap(start, 15);
    let holder = rig.mm.isolate_page(rig.space, start.add(15)).unwrap();
    assert_eq!(rig.mm.shrink_underused(10, 100), 0);
    let folio = rig.folio(start.add(15));
    assert!(
        folio.partial && folio.queued && folio.refs == 2,
        "{folio:?}"
    );
    rig.mm.putback_list(holder);
    rig.verify(&"held");
    assert_eq!(rig.mm.shrink_underused(10, 100), 15);
    let folio = rig.folio(start.add(15));
    assert_eq!((folio.order, folio.refs, folio.queued), (0, 1, false));
    assert_eq!(rig.model.counters().scanned_bytes, 0);
    assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 0);
    assert!(rig.holds(start.add(15), byte_of(15)));
    rig.verify(&"split");
}

#[test]
fn r129_r145_the_shrinker_frees_what_is_unmapped_of_folios_of_every_order() {
    for order in 2..=8 {
        for (from, pages) in [(1, (1 << order) - 1), (0, 1), ((1 << order) - 1, 1)] {
            let (rig, start) = filled(order);
            let used = rig.charge.usage();
            rig.munmap(start.add(from), pages);
            assert_eq!(rig.mm.shrink_underused(10, 10_000), pages, "order {order}");
            assert_eq!((rig.charge.usage(), rig.mm.queued()), (used - pages, 0));
            assert_eq!(rig.mm.stats().size(order, SizeItem::Split), 1);
            rig.verify(&order);
            // Reclaim meets them, too.
            let next = start.add(1 << order);
            if order < 8 {
                rig.munmap(next.add(from), pages);
                let used = rig.charge.usage();
                let all = 1 << order;
                rig.mm.page_out(rig.space, next, all).unwrap();
                assert!(rig.charge.usage() + all <= used + rig.mm.store_charged());
                assert_eq!(rig.mm.queued(), 0);
                rig.verify(&order);
            }
            let live = |i: &u64| !(from..from + pages).contains(&(i % (1 << order)));
            for i in (0..2 << order).filter(|i| *i < BLOCK).filter(live) {
                assert!(rig.holds(start.add(i), byte_of(i)), "page {i}");
            }
        }
    }
}

/// Linux's shrinker splits into pages and drops those of zeros; profile `deckle` keeps the parts
/// large, and so looks at no byte.
#[test]
fn r129_what_the_shrinker_makes_of_a_folio_in_parts_in_each_profile() {
    for (profile, order, zeros) in [(Profile::Deckle, 3, 0), (Profile::Linux, 0, 6)] {
        let t = Tunables {
            sizes: Sizes::NEVER.with(4, SizeMode::Always),
            ..Tunables::of_profile(profile)
        };
        let rig = Rig::new(64, 1, 1, true, t);
        let start = rig.mmap(0, 16);
        (0..16).for_each(|i| rig.write(start.add(i), u8::from(i % 2 == 0)));
        rig.munmap(start, 4);
        assert_eq!((rig.charge.usage(), rig.mm.queued()), (16, 1));
        assert_eq!(rig.mm.shrink_underused(10, 1000), 4 + zeros);
        assert_eq!(rig.charge.usage(), 12 - zeros);
        assert_eq!(rig.folio(start.add(8)).order, order);
        assert_eq!(rig.stat(Item::NrZero), zeros);
        assert_eq!(rig.model.counters().scanned_bytes > 0, zeros > 0);
        (4..16).for_each(|i| assert!(rig.holds(start.add(i), u8::from(i % 2 == 0))));
        rig.verify(&profile);
    }
}

#[test]
fn r132_reclaim_splits_at_once_only_what_is_partly_mapped() {
    let (rig, start) = filled(4);
    // Nothing of it can be stored.
    (0..32).for_each(|i| rig.write(start.add(i), 0xee));
    rig.munmap(start, 6);
    let used = rig.charge.usage();
    rig.mm.page_out(rig.space, start.add(6), 26).unwrap();
    // The unmapped part is free without I/O; the folio that is mapped whole stays whole.
    assert_eq!(rig.charge.usage(), used - 6);
    assert_eq!(rig.stat(Item::Pswpout), 0);
    assert_eq!(rig.folio(start.add(8)).order, 3);
    assert_eq!(rig.folio(start.add(16)).order, 4);
    assert_eq!(rig.stat(Item::NrAnonPartiallyMapped), 0);
    (6..32).for_each(|i| assert!(rig.holds(start.add(i), 0xee)));
    rig.verify(&"refused");
}

#[test]
fn r90_a_mapping_without_a_place_is_not_aligned_beyond_what_is_asked() {
    let rig = only(4);
    let map = |pages, align| {
        let at = rig.mm.mmap(rig.space, None, pages, align, Prot::RW);
        at.unwrap()
    };
    let first = map(3, 1);
    // Neighbours, so that they are one mapping.
    assert_eq!(map(20, 1), first.add(3));
    assert_eq!(rig.mm.mappings(rig.space), 1);
    assert_eq!(map(16, 16).0 % 16, 0);
    assert_eq!(rig.mm.mappings(rig.space), 2);
}
