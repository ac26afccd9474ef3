//! What profile `deckle` does otherwise than Linux, where no other suite has it: the rows of
//! docs/profiles.md.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{Charge, FaultError, Item, Profile, Sizes, Tunables};

fn both() -> [Tunables; 2] {
    [Profile::Deckle, Profile::Linux].map(Tunables::of_profile)
}

#[test]
fn r40_r59_a_huge_page_comes_where_a_read_has_left_a_table_in_profile_deckle_alone() {
    for (t, order) in both().into_iter().zip([9, 0]) {
        let rig = Rig::new(64, 1, 1, true, t);
        let start = rig.mmap(0, 2 * BLOCK);
        rig.read(start.add(77));
        rig.write(start.add(100), 1);
        assert_eq!(rig.folio(start.add(100)).order, order, "{:?}", t.profile);
        // Where there is none, both have one.
        rig.write(start.add(BLOCK), 1);
        assert_eq!(rig.folio(start.add(BLOCK)).order, 9);
        rig.verify(&t.profile);
    }
}

#[test]
fn r140_khugepaged_keeps_below_memory_high_in_profile_deckle_alone() {
    for (t, collapsed) in both().into_iter().zip([0, 1]) {
        let t = Tunables {
            khugepaged_scan_sleep_millisecs: 100,
            max_ptes_none: 409,
            ..t
        };
        let sizes = Sizes::NEVER;
        let rig = Rig::new(64, 1, 1, true, Tunables { sizes, ..t });
        let start = rig.mmap(0, BLOCK);
        (0..300).for_each(|i| rig.write(start.add(i), byte_of(i)));
        rig.mm.set_tunables(t).unwrap();
        rig.charge.set_high(400);
        let done = rig.mm.khugepaged_scan(u32::MAX);
        assert_eq!(done.collapsed, collapsed, "{:?}", t.profile);
        (0..300).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
        rig.verify(&t.profile);
    }
}

/// A huge page that is not underused, by a limit that leaves room for nothing else, and no swap.
#[test]
fn r137_zeros_are_dropped_before_anybody_is_killed_where_the_knob_says_so() {
    for t in both() {
        for oom_zero_drop in [true, false] {
            let t = Tunables {
                oom_zero_drop,
                max_ptes_none: 409,
                ..t
            };
            let rig = Rig::new(64, 1, 1, false, t);
            let start = rig.huge(0, 0..200);
            rig.charge.set_max(BLOCK);
            let other = rig.mmap(BLOCK, 1);
            let served = rig.fault(other, true);
            // Profile `deckle` has met the zeros on the way there: reclaim looks at pages that
            // could not go anywhere.
            let lives = oom_zero_drop || t.profile == Profile::Deckle;
            match served {
                Ok(_) => assert!(lives, "{t:?}"),
                Err(FaultError::Oom(_)) => assert!(!lives, "{t:?}"),
                Err(e) => panic!("{e}"),
            }
            assert_eq!(rig.stat(Item::OomKill), u64::from(!lives));
            let usage = if lives { 201 } else { BLOCK };
            assert_eq!(rig.charge.usage(), usage, "{t:?}");
            (0..200).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
            rig.verify(&t);
        }
    }
    let of = both().map(|t| t.oom_zero_drop);
    assert_eq!(of, [true, false]);
}
