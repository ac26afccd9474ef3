//! Who the shrinker looks at when, how much it takes, and how what it took comes back.

use super::common::Rig;
use super::common::hand::BLOCK;
use deckle_mm::{Advice, Charge, Item, Profile, Sizes, Tunables, Vpn};

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
    let rig = rig(both()[0]);
    let old = rig.huge(0, 0..10);
    assert_eq!(rig.mm.reclaim_gently(1), 0, "nobody has seen it before");
    assert_eq!((rig.folio(old).order, rig.mm.queued()), (9, 1));
    let young = rig.huge(BLOCK, 0..10);
    // However much is asked for.
    assert_eq!(rig.mm.reclaim_gently(100_000), 502);
    assert_eq!((rig.folio(old).order, rig.folio(young).order), (0, 9));
    assert_eq!(rig.mm.reclaim_gently(100_000), 502);
    assert_eq!((rig.folio(young).order, rig.mm.queued()), (0, 0));
    rig.verify(&"young");
}

#[test]
fn r117_in_profile_linux_every_pass_is_the_whole_queue_whoever_asks() {
    let passes: [fn(&Rig) -> bool; 3] = [
        |rig| rig.mm.reclaim_gently(1) > 0,
        |rig| rig.mm.reclaim(1) > 0,
        |rig| {
            rig.charge.set_high(rig.charge.usage() - 1);
            rig.mm.reclaim_background();
            true
        },
    ];
    for pass in passes {
        let rig = rig(both()[1]);
        // More than a pass of profile `deckle` looks at is not needed: one page is asked for.
        let pages: Vec<_> = (0..6).map(|k| rig.huge(k * BLOCK, 0..10)).collect();
        assert!(pass(&rig));
        assert!(pages.iter().all(|p| rig.folio(*p).order == 0));
        assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 6);
        assert_eq!((rig.mm.queued(), rig.charge.usage()), (0, 60));
        rig.verify(&"a pass");
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
    let rig = rig(both()[0]);
    let pages: Vec<_> = (0..6).map(|k| rig.huge(k * BLOCK, 0..10)).collect();
    rig.mm.reclaim_gently(1);
    let order = |k: usize| rig.folio(pages[k]).order;
    assert_eq!(rig.mm.reclaim_gently(1), 502);
    assert_eq!((order(0), order(1)), (0, 9));
    assert_eq!(rig.mm.reclaim_gently(503), 1004);
    assert_eq!((order(1), order(2), order(3)), (0, 0, 9));
    assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 3);
    rig.verify(&"the oldest");
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

/// A huge page of ten pages that the shrinker has taken apart.
fn taken_apart(t: Tunables) -> (Rig, Vpn) {
    let rig = rig(t);
    let start = rig.huge(0, 0..10);
    assert_eq!(rig.mm.shrink_underused(1, 1), 502);
    (rig, start)
}

#[test]
fn r143_what_is_wanted_back_comes_in_ever_larger_parts_in_profile_deckle() {
    let (rig, start) = taken_apart(both()[0]);
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
    rig.verify(&"back");
}

#[test]
fn r35_r147_without_a_size_and_in_profile_linux_what_is_wanted_back_comes_page_by_page() {
    let [deckle, linux] = both();
    let all = deckle.sizes;
    for (profile, sizes) in [
        (deckle, Sizes::NEVER),
        (linux, Sizes::NEVER),
        (linux, linux.sizes),
        // Large folios, where all around is a hole; here are pages that reclaim has left.
        (linux, all),
    ] {
        let (rig, start) = taken_apart(profile);
        rig.mm.set_tunables(Tunables { sizes, ..profile }).unwrap();
        let (used, faults) = (rig.charge.usage(), rig.stat(Item::Pgfault));
        for (n, i) in (10..BLOCK).rev().enumerate() {
            rig.write(start.add(i), 1);
            assert_eq!(rig.folio(start.add(i)).order, 0, "page {i}");
            assert_eq!(rig.charge.usage(), used + n as u64 + 1);
        }
        assert_eq!(rig.stat(Item::Pgfault) - faults, 502);
        rig.verify(&profile.profile);
    }
}

#[test]
fn r35_without_a_size_what_the_program_gave_up_comes_page_by_page_too() {
    for t in both() {
        for shrink_underused in [true, false] {
            let rig = rig(Tunables {
                shrink_underused,
                ..t
            });
            let start = rig.huge(0, 0..BLOCK);
            rig.advise(start.add(64), 448, Advice::DontNeed);
            let sizes = Sizes::NEVER;
            rig.mm.set_tunables(Tunables { sizes, ..t }).unwrap();
            let used = rig.charge.usage();
            for (n, i) in (64..BLOCK).enumerate() {
                rig.write(start.add(i), 2);
                assert_eq!(rig.charge.usage(), used + n as u64 + 1);
            }
            rig.verify(&(t.profile, shrink_underused));
        }
    }
}

#[test]
fn r143_what_the_program_gave_up_of_such_a_block_comes_back_like_the_rest() {
    let (rig, start) = taken_apart(both()[0]);
    for i in 10..74 {
        rig.write(start.add(i), 1);
    }
    rig.advise(start.add(64), 448, Advice::DontNeed);
    let faults = rig.stat(Item::Pgfault);
    for i in 64..128 {
        rig.write(start.add(i), 2);
    }
    assert!(rig.stat(Item::Pgfault) - faults <= 2);
    rig.verify(&"given up");
}

#[test]
fn r143_what_the_program_gave_up_of_a_huge_page_comes_back_in_ever_larger_parts() {
    let [deckle, linux] = both();
    let off = Tunables {
        shrink_underused: false,
        ..linux
    };
    // In profile `linux` there are Linux's faults, and no others.
    for (t, most) in [(deckle, 12), (linux, 448), (off, 448)] {
        let rig = rig(t);
        let start = rig.huge(0, 0..BLOCK);
        rig.advise(start.add(64), 448, Advice::DontNeed);
        let (used, faults) = (rig.charge.usage(), rig.stat(Item::Pgfault));
        for i in 64..BLOCK {
            rig.write(start.add(i), 2);
        }
        assert_eq!(rig.charge.usage(), used + 448);
        let took = rig.stat(Item::Pgfault) - faults;
        assert!(took <= most, "{took} faults");
        assert!(t.profile == Profile::Deckle || took == most, "{took}");
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
        rig.advise(filled, BLOCK, Advice::Free);
        let gone = rig.mm.reclaim_gently(1000);
        assert_eq!(gone, u64::from(t.profile == Profile::Deckle) * BLOCK);
        rig.verify(&t.profile);
    }
}
