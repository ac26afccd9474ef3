//! What the shrinker learns from its splits, and what it does before memory is short; counters.

use super::common::hand::{BLOCK, intact, shrink, tunables};
use super::common::{BASE, Rig};
use deckle_mm::{FaultMode, Item, Profile, Prot, SizeItem, SizeMode, Sizes, ThpMode, Tunables};

fn rig(t: Tunables) -> Rig {
    Rig::new(64, 1, 1, true, t)
}

#[test]
fn r143_pages_that_are_soon_written_again_count_and_make_the_shrinker_careful() {
    let rig = rig(tunables(409));
    let base = rig.mm.underused_threshold(&rig.mm.tunables());
    assert_eq!(base, 409);
    // Two huge pages are split, and most of what was dropped is written at once.
    for k in 0..2 {
        rig.huge(k * BLOCK, 0..10);
    }
    assert_eq!(shrink(&rig), 2 * 502);
    let faults = rig.stat(Item::Pgfault);
    for i in 0..2 * BLOCK {
        rig.write(BASE.add(i), 1);
    }
    // Each fault was a write to a dropped page; the others came back with one of them.
    let faults = rig.stat(Item::Pgfault) - faults;
    assert_eq!(rig.stat(Item::ThpUnderusedRetouch), faults);
    assert!((2 * 8..2 * 502).contains(&faults), "{faults}");
    assert!(rig.mm.retouch_percent() >= 50);
    assert_eq!(rig.mm.underused_threshold(&rig.mm.tunables()), 511);
    // Profile linux learns nothing.
    let t = Tunables {
        max_ptes_none: 409,
        ..Tunables::of_profile(Profile::Linux)
    };
    assert_eq!(rig.mm.underused_threshold(&t), 409);
    // So a page like them stays; one without any filled page goes.
    let kept = rig.huge(2 * BLOCK, 0..10);
    rig.huge(3 * BLOCK, []);
    assert_eq!(shrink(&rig), BLOCK);
    assert_eq!(rig.folio(kept).order, 9);
    // With time it tries again.
    for k in 4..60 {
        let again = rig.huge(k % 4 * BLOCK, 0..10);
        shrink(&rig);
        if rig.folio(again).order == 0 {
            rig.verify(&"trying again");
            return;
        }
    }
    panic!("the shrinker never recovers");
}

#[test]
fn r143_what_comes_back_with_a_written_page_is_not_counted() {
    let rig = rig(tunables(409));
    rig.huge(0, 0..10);
    assert_eq!(shrink(&rig), 502);
    let before = rig.stat(Item::NrAnon);
    for (n, i) in (64..BLOCK).step_by(64).enumerate() {
        rig.write(BASE.add(i), 1);
        assert_eq!(rig.stat(Item::ThpUnderusedRetouch), n as u64 + 1);
    }
    let back = rig.stat(Item::NrAnon) - before;
    assert!(back > 7, "{back} pages came back with seven writes");
    rig.verify(&"one write each");
}

#[test]
fn r143_a_write_long_after_the_split_does_not_count() {
    let rig = rig(tunables(409));
    rig.huge(0, 0..10);
    shrink(&rig);
    for _ in 0..8 {
        rig.huge(BLOCK, 0..10);
        shrink(&rig);
    }
    rig.write(BASE.add(300), 1);
    assert_eq!(rig.stat(Item::ThpUnderusedRetouch), 0);
    rig.verify(&"late");
    // In profile linux nothing is learned.
    let t = Tunables {
        max_ptes_none: 409,
        ..Tunables::of_profile(Profile::Linux)
    };
    rig.mm.set_tunables(t).unwrap();
    assert_eq!(rig.mm.underused_threshold(&t), 409);
}

#[test]
fn a_budget_for_waste_is_kept_by_looking_at_a_few_pages_at_a_time() {
    let t = Tunables {
        thp_waste_max: 3 * 502 * 4096,
        ..tunables(409)
    };
    let rig = rig(t);
    for k in 0..16 {
        // Half of them are in use.
        let live = if k % 2 == 0 { 10 } else { BLOCK };
        rig.huge(k * BLOCK, 0..live);
    }
    let first = rig.mm.trim();
    assert_eq!(first.looked, 8);
    assert!(rig.stat(Item::ThpWasteScan) <= 8 * 32);
    for _ in 0..20 {
        let before = rig.stat(Item::ThpWasteScan);
        let done = rig.mm.trim();
        assert!(done.looked <= 8 && rig.stat(Item::ThpWasteScan) - before <= 8 * 32);
    }
    // Down to the budget, give or take what an estimate is worth, and none that is in use.
    let left = rig.stat(Item::NrThp);
    assert!((8..=8 + 5).contains(&left), "{left} huge pages left");
    for k in (1..16).step_by(2) {
        assert_eq!(rig.folio(BASE.add(k * BLOCK)).order, 9);
    }
    assert_eq!(
        rig.mm.waste_estimate().min(BLOCK * 5),
        rig.mm.waste_estimate()
    );
    assert_eq!(rig.stat(Item::NrThpWaste), rig.mm.waste_estimate());
    for k in 0..16 {
        let live = if k % 2 == 0 { 10 } else { BLOCK };
        intact(&rig, BASE.add(k * BLOCK), |i| i < live);
    }
    rig.verify(&"trimmed");
    // Nothing without a budget.
    let rig = Rig::new(64, 1, 1, true, tunables(409));
    rig.huge(0, []);
    assert_eq!(rig.mm.trim(), deckle_mm::Trimmed::default());
    assert_eq!(rig.stat(Item::NrThpWaste), 0);
    assert_eq!(rig.stat(Item::NrThp), 1);
    // A budget that is never met shows how much it would have to be.
    let rig = Rig::new(
        64,
        1,
        1,
        true,
        Tunables {
            thp_waste_max: u64::MAX - 1,
            ..tunables(409)
        },
    );
    rig.huge(0, 0..10);
    rig.huge(BLOCK, []);
    rig.mm.trim();
    // By every sixteenth subpage, from another one each time: one in use of 32, or none.
    let waste = rig.stat(Item::NrThpWaste);
    assert!((1008 - 32..=1024).contains(&waste), "{waste}");
    assert_eq!(rig.stat(Item::NrThp), 2);
}

#[test]
fn each_call_goes_on_where_the_last_one_stopped() {
    let rig = rig(Tunables {
        thp_waste_max: u64::MAX - 1,
        ..tunables(409)
    });
    (0..8).for_each(|k| _ = rig.huge(k * BLOCK, 0..BLOCK));
    (8..16).for_each(|k| _ = rig.huge(k * BLOCK, []));
    for waste in [0, 8 * BLOCK] {
        let done = rig.mm.trim();
        assert_eq!((done.looked, done.waste), (8, waste));
    }
    rig.verify(&"looked at");
}

#[test]
fn no_layout_hides_from_looks_at_every_sixteenth_subpage() {
    let rig = rig(Tunables {
        thp_waste_max: u64::MAX - 1,
        ..tunables(409)
    });
    rig.huge(0, (0..BLOCK).step_by(16));
    // Others each time: after as many calls all have been looked at.
    (0..16).for_each(|_| assert_eq!(rig.mm.trim().looked, 1));
    assert_eq!(rig.mm.waste_estimate(), BLOCK - BLOCK / 16);
    rig.verify(&"looked at");
}

#[test]
fn what_is_wasted_is_estimated_by_what_was_seen_lately_in_all_spaces() {
    let t = Tunables {
        thp_waste_max: u64::MAX - 1,
        ..tunables(409)
    };
    let rig = rig(t);
    for k in 0..3 {
        rig.huge(k * BLOCK, []);
    }
    let other = rig.mm.create_space(BASE, BLOCK).unwrap();
    let start = rig.mm.mmap(other, Some(BASE), BLOCK, 1, Prot::RW).unwrap();
    let done = rig.mm.fault(other, start, true, FaultMode::MayWait);
    done.unwrap();
    // What is remembered is as much as 32 of these calls see.
    for _ in 0..64 {
        assert_eq!(rig.mm.trim().looked, 4);
        assert_eq!(rig.mm.waste_estimate(), 4 * BLOCK);
    }
    for i in 0..3 * BLOCK {
        rig.write(BASE.add(i), 1);
    }
    for _ in 0..64 {
        rig.mm.trim();
    }
    let waste = rig.mm.waste_estimate();
    assert!((BLOCK - 16..BLOCK * 3 / 2).contains(&waste), "{waste}");
    // Without room for any waste the one that is left goes, and is said to have gone.
    let t = Tunables {
        thp_waste_max: 0,
        ..t
    };
    rig.mm.set_tunables(t).unwrap();
    assert_eq!(rig.mm.trim().freed, BLOCK);
    assert_eq!(rig.stat(Item::NrThp), 3);
    rig.verify(&"trimmed");
}

#[test]
fn r149_every_counter_has_the_name_that_users_know() {
    let names: Vec<&str> = Item::ALL.iter().map(|i| i.name()).collect();
    for name in [
        "thp_split_free",
        "nr_isolated_anon",
        "capture_begin",
        "capture_success",
        "capture_pages",
        "nr_captured",
        "pgreuse",
        "pgcopy",
        "allocstall",
        "thp_split_unmap",
        "thp_split_page",
        "thp_underused_split_page",
        "thp_deferred_split_page",
        "thp_fault_alloc",
        "thp_fault_fallback",
        "thp_fault_fallback_charge",
        "nr_anon_partially_mapped",
        "nr_anon_transparent_hugepages",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    let sizes: Vec<&str> = SizeItem::ALL.iter().map(|i| i.name()).collect();
    for name in [
        "anon_fault_alloc",
        "anon_fault_fallback",
        "split",
        "split_deferred",
        "nr_anon",
        "nr_anon_partially_mapped",
    ] {
        assert!(sizes.contains(&name), "{name}");
    }
    // Read and set while it runs.
    let t = Tunables {
        thp: ThpMode::Madvise,
        sizes: Sizes::NEVER.with(3, SizeMode::Always),
        ..tunables(17)
    };
    let rig = rig(tunables(409));
    rig.mm.set_tunables(t).unwrap();
    assert_eq!(rig.mm.tunables(), t);
    let start = rig.mmap(0, BLOCK);
    rig.write(start, 1);
    let stats = rig.mm.stats();
    assert_eq!(stats.size(3, SizeItem::AnonFaultAlloc), 1);
    assert_eq!(stats.size(3, SizeItem::NrAnon), 1);
    rig.mm.mprotect(rig.space, start, 1, Prot::R).unwrap();
    rig.verify(&"names");
}

#[test]
fn pages_of_huge_pages_all_over_are_shown_and_stay_what_they_are() {
    let rig = rig(tunables(409));
    for k in 0..8 {
        let start = rig.huge(k * BLOCK, []);
        (0..BLOCK).for_each(|i| rig.write(start.add(i), k as u8 + 1));
    }
    for (most, blocks) in [(4, vec![2, 4, 6, 8]), (100, (1..=8).collect()), (0, vec![])] {
        let mut shown = Vec::new();
        let look = &mut |page: &[u8]| {
            assert_eq!(page.len(), 4096);
            shown.push(page[0]);
        };
        rig.mm.look_into_huge(most, look);
        assert_eq!(shown, blocks, "of {most}");
        rig.verify(&"shown");
    }
    for k in 0..8 {
        let start = BASE.add(k * BLOCK);
        assert_eq!(rig.folio(start).order, 9);
        assert!((0..BLOCK).all(|i| rig.holds(start.add(i), k as u8 + 1)));
    }
    assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 0);
}
