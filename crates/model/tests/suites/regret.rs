//! Who the shrinker looks at when, how much it takes, and how what it took comes back.

use super::common::Rig;
use super::common::hand::BLOCK;
use deckle_mm::{Charge, Item, Profile, Sizes, Tunables};

/// With the threshold of the series, in both profiles.
fn both() -> [Tunables; 2] {
    [Profile::Deckle, Profile::Linux].map(|profile| Tunables {
        max_ptes_none: 409,
        ..Tunables::of_profile(profile)
    })
}

fn rig(t: Tunables) -> Rig {
    Rig::new(64, 1, 1, false, t)
}

#[test]
fn r143_a_young_huge_page_sits_out_a_pass_while_nobody_waits() {
    for t in both() {
        let rig = rig(t);
        let old = rig.huge(0, 0..10);
        assert_eq!(rig.mm.reclaim_gently(1), 0, "nobody has seen it before");
        assert_eq!((rig.folio(old).order, rig.mm.queued()), (9, 1));
        let young = rig.huge(BLOCK, 0..10);
        // However much is asked for.
        assert_eq!(rig.mm.reclaim_gently(100_000), 502);
        assert_eq!((rig.folio(old).order, rig.folio(young).order), (0, 9));
        assert_eq!(rig.mm.reclaim_gently(100_000), 502);
        assert_eq!((rig.folio(young).order, rig.mm.queued()), (0, 0));
        rig.verify(&t.profile);
    }
}

#[test]
fn r143_who_waits_gets_what_young_huge_pages_waste_at_once() {
    for t in both() {
        let rig = rig(t);
        for k in 0..4 {
            rig.huge(k * BLOCK, 0..10);
        }
        rig.charge.set_max(4 * BLOCK);
        let small = rig.mmap(4 * BLOCK, 16);
        rig.write(small, 1);
        assert!(rig.stat(Item::ThpUnderusedSplitPage) > 0, "{:?}", t.profile);
        assert_eq!(rig.stat(Item::OomKill), 0);
        rig.verify(&t.profile);
    }
}

#[test]
fn r143_the_oldest_goes_first_and_no_more_than_is_asked_for() {
    for t in both() {
        let rig = rig(t);
        let pages: Vec<_> = (0..6).map(|k| rig.huge(k * BLOCK, 0..10)).collect();
        rig.mm.reclaim_gently(1);
        let order = |k: usize| rig.folio(pages[k]).order;
        assert_eq!(rig.mm.reclaim_gently(1), 502);
        assert_eq!((order(0), order(1)), (0, 9));
        assert_eq!(rig.mm.reclaim_gently(503), 1004);
        assert_eq!((order(1), order(2), order(3)), (0, 0, 9));
        assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 3);
        rig.verify(&t.profile);
    }
}

#[test]
fn r129_of_a_folio_in_parts_what_is_unmapped_is_free_before_anything_is_looked_at() {
    let rig = rig(both()[0]);
    let young = rig.huge(0, 0..10);
    let parts = rig.mmap(BLOCK, 16);
    rig.write(parts, 1);
    rig.munmap(parts.add(3), 1);
    assert!(rig.folio(parts).partial && rig.mm.queued() == 2);
    // It is younger than the huge page, which sits this pass out.
    assert_eq!(rig.mm.reclaim_gently(100), 1);
    assert_eq!((rig.folio(young).order, rig.mm.queued()), (9, 1));
    assert_eq!(rig.stat(Item::ThpUnderusedScan), 0);
    rig.verify(&"parts");
}

#[test]
fn r143_r147_what_is_wanted_back_comes_in_ever_larger_parts() {
    for t in both() {
        // The sizes that faults on holes may have play no part.
        for sizes in [Sizes::NEVER, t.sizes] {
            let rig = rig(Tunables { sizes, ..t });
            rig.mm.set_tunables(t).unwrap();
            let start = rig.huge(0, 0..10);
            assert_eq!(rig.mm.shrink_underused(1, 1), 502);
            rig.mm.set_tunables(Tunables { sizes, ..t }).unwrap();
            let (used, faults) = (rig.charge.usage(), rig.stat(Item::Pgfault));
            // Single writes stay single pages.
            for i in [100, 200, 300, 400] {
                rig.write(start.add(i), 1);
                assert_eq!(rig.folio(start.add(i)).order, 0);
            }
            assert_eq!(rig.charge.usage(), used + 4);
            // Then never more than twice what was written.
            for (n, i) in (10..BLOCK).filter(|i| i % 100 != 0).enumerate() {
                rig.write(start.add(i), 1);
                let back = rig.charge.usage() - used;
                assert!(back <= 2 * (n as u64 + 5), "{back} pages after {n} writes");
            }
            assert_eq!(rig.charge.usage(), used + 502);
            let took = rig.stat(Item::Pgfault) - faults;
            // Those that stand alone are in the way of larger ones.
            assert!(took <= 50, "{took} faults");
            for i in 10..BLOCK {
                assert!(rig.holds(start.add(i), u8::from(i != 500)), "page {i}");
            }
            assert_eq!(rig.stat(Item::NrZero), 0);
            rig.verify(&t.profile);
        }
    }
}

#[test]
fn r143_what_the_program_gave_up_of_such_a_block_comes_back_like_the_rest() {
    for t in both() {
        let rig = rig(t);
        let start = rig.huge(0, 0..10);
        assert_eq!(rig.mm.shrink_underused(1, 1), 502);
        for i in 10..74 {
            rig.write(start.add(i), 1);
        }
        rig.mm
            .madvise(rig.space, start.add(64), 448, deckle_mm::Advice::DontNeed)
            .unwrap();
        let faults = rig.stat(Item::Pgfault);
        for i in 64..128 {
            rig.write(start.add(i), 2);
        }
        assert!(rig.stat(Item::Pgfault) - faults <= 2);
        rig.verify(&t.profile);
    }
}

#[test]
fn r143_what_the_program_gave_up_of_a_huge_page_comes_back_in_ever_larger_parts() {
    let linux = Tunables {
        shrink_underused: false,
        ..both()[1]
    };
    for (t, most) in both().map(|t| (t, 12)).into_iter().chain([(linux, 448)]) {
        let rig = rig(t);
        let start = rig.huge(0, 0..BLOCK);
        rig.mm
            .madvise(rig.space, start.add(64), 448, deckle_mm::Advice::DontNeed)
            .unwrap();
        let (used, faults) = (rig.charge.usage(), rig.stat(Item::Pgfault));
        for (n, i) in (64..BLOCK).enumerate() {
            rig.write(start.add(i), 2);
            let back = rig.charge.usage() - used;
            // What the profile has for holes by itself is another matter.
            let bound = 2 * (n as u64 + 5);
            let linux = t.profile == Profile::Linux;
            assert!(!linux || back <= bound, "{back} pages after {n} writes");
        }
        assert_eq!(rig.charge.usage(), used + 448);
        let took = rig.stat(Item::Pgfault) - faults;
        assert!(took <= most, "{took} faults");
        // With the shrinker off there are Linux's faults, and no others.
        assert!(t.shrink_underused || took == most, "{took} faults");
        assert_eq!(rig.stat(Item::ThpUnderusedRetouch), 0);
        for i in 0..BLOCK {
            let byte = if i < 64 { i as u8 + 1 } else { 2 };
            assert!(rig.holds(start.add(i), byte), "page {i}");
        }
        rig.verify(&t.profile);
    }
}

#[test]
fn without_swap_nothing_is_unmapped_for_who_can_wait() {
    for t in both() {
        let rig = rig(t);
        let filled = rig.huge(0, 0..BLOCK);
        let small = rig.mmap(BLOCK, 16);
        rig.write(small, 1);
        for _ in 0..3 {
            assert_eq!(rig.mm.reclaim_gently(1000), 0);
        }
        assert_eq!(rig.stat(Item::Pgdeactivate), 0);
        assert_eq!(rig.stat(Item::NrInactive), 0);
        // What is lazily freed goes.
        rig.mm
            .madvise(rig.space, filled, BLOCK, deckle_mm::Advice::Free)
            .unwrap();
        let gone = rig.mm.reclaim_gently(1000);
        assert_eq!(gone, u64::from(t.profile == Profile::Deckle) * BLOCK);
        rig.verify(&t.profile);
    }
}
