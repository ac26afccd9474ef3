//! What needs a kernel below: forks whose pages are guarded by write protection, and discards that
//! the manager does not see.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of, tunables};
use super::suites::memory::{races, seeds};
use deckle_mm::{Advice, Item};
#[cfg(feature = "huge-pages")]
use deckle_mm::{SizeMode, Sizes, ThpMode, Tunables};

#[test]
fn r148_p20_what_forks_share_is_charged_at_the_first_write_and_no_byte_is_lost() {
    seeds(1001, 60, 200, true, false);
}

#[test]
fn what_is_discarded_unseen_never_comes_back() {
    seeds(2001, 60, 200, true, true);
}

#[test]
fn what_is_discarded_unseen_while_reclaim_races_never_comes_back() {
    races(2001, true, true);
}

#[test]
fn r53_r98_r131_r148_p20_programs_whose_children_share_race_and_lose_nothing() {
    races(1, true, false);
}

#[test]
#[cfg(feature = "huge-pages")]
fn who_finds_nothing_of_its_own_gives_up_what_is_shared() {
    let rig = Rig::new(64, 1, 1, true, tunables(409));
    let small = rig.mmap(0, 64);
    rig.advise(small, 64, Advice::NoHugePage);
    (0..64).for_each(|i| rig.write(small.add(i), byte_of(i)));
    let huge = rig.huge(BLOCK, 0..BLOCK);
    assert!(!rig.mm.is_crowded());
    assert!(rig.fork());
    assert_eq!(rig.stat(Item::NrShared), 64 + BLOCK);
    assert!(rig.mm.is_crowded());
    // A portion of sixteen at a time: what was asked for, and not the huge page as well.
    assert_eq!(rig.mm.reclaim_shared(40).pages(), 48);
    assert_eq!(rig.mm.reclaim_shared(1).pages(), 16);
    assert_eq!(rig.stat(Item::NrShared), BLOCK);
    // As much of its own is no crowd, in use or not.
    let own = rig.mmap(2 * BLOCK, BLOCK);
    rig.advise(own, BLOCK, Advice::NoHugePage);
    (0..BLOCK).for_each(|i| rig.write(own.add(i), byte_of(i)));
    assert!(!rig.mm.is_crowded());
    rig.advise(own, BLOCK / 2, Advice::Cold);
    assert!(rig.stat(Item::NrInactive) == BLOCK / 2 && !rig.mm.is_crowded());
    rig.munmap(own, 1);
    assert!(rig.mm.is_crowded());
    rig.munmap(own, BLOCK);
    assert_eq!(rig.mm.reclaim_shared(40).pages(), 48);
    assert_eq!(rig.mm.reclaim_shared(BLOCK - 48).pages(), BLOCK - 48);
    assert_eq!((rig.stat(Item::NrShared), rig.resident()), (0, 0));
    assert_eq!(rig.mm.reclaim_shared(40).pages(), 0);
    // Nothing is shared, and there is nothing else: that is no crowd.
    assert!(!rig.mm.is_crowded());
    rig.verify(&"given up");
    (0..64).for_each(|i| assert!(rig.holds(small.add(i), byte_of(i))));
    (0..BLOCK).for_each(|i| assert!(rig.holds(huge.add(i), byte_of(i))));
}

#[test]
#[cfg(feature = "huge-pages")]
fn a_large_folio_is_given_up_a_portion_at_a_time() {
    let t = Tunables {
        thp: ThpMode::Never,
        sizes: Sizes::NEVER.with(8, SizeMode::Always),
        fault_max: 1 << 20,
        ..tunables(409)
    };
    for at in [0, BLOCK / 2] {
        let rig = Rig::new(64, 1, 1, true, t);
        let start = rig.mmap(at, BLOCK / 2);
        (0..BLOCK / 2).for_each(|i| rig.write(start.add(i), byte_of(i)));
        assert_eq!(rig.folio(start).order, 8);
        assert!(rig.fork());
        for portion in 1..16 {
            let left = BLOCK / 2 - portion * 16;
            assert_eq!(rig.mm.reclaim_shared(1).pages(), 16);
            assert_eq!((rig.stat(Item::NrShared), rig.resident()), (left, left));
            rig.verify(&left);
        }
        assert_eq!((rig.mm.reclaim_shared(1).pages(), rig.resident()), (16, 0));
        rig.verify(&at);
        (0..BLOCK / 2).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    }
}

/// Pages that were written since the fork, and are charged here, stayed with the shared ones of
/// their folio: who had hundreds of them had nothing to reclaim, and was killed.
#[test]
#[cfg(feature = "huge-pages")]
fn p20_what_was_written_of_a_shared_folio_can_be_reclaimed() {
    let t = Tunables {
        thp: ThpMode::Never,
        sizes: Sizes::NEVER.with(8, SizeMode::Always),
        fault_max: 1 << 20,
        ..tunables(409)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    let start = rig.mmap(0, BLOCK / 2);
    (0..BLOCK / 2).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert_eq!(rig.folio(start).order, 8);
    assert!(rig.fork());
    (0..BLOCK / 2)
        .step_by(9)
        .for_each(|i| rig.write(start.add(i), byte_of(i + 1)));
    let shared = rig.stat(Item::NrShared);
    let own = BLOCK / 2 - shared;
    assert!((29..BLOCK / 4).contains(&own), "{own} pages of its own");
    rig.verify(&"written");
    // Less what the store has grown by.
    let freed: u64 = (0..4).map(|_| rig.mm.reclaim(BLOCK)).sum();
    assert!((1..=own).contains(&freed), "{freed} of {own}");
    assert_eq!((rig.resident(), rig.stat(Item::NrShared)), (shared, shared));
    rig.verify(&"reclaimed");
    let holds = |i| rig.holds(start.add(i), byte_of(i + u64::from(i % 9 == 0)));
    assert!((0..BLOCK / 2).all(holds));
}

#[test]
fn p20_what_the_store_refuses_stays_shared_is_offered_once_and_costs_nothing() {
    /// The test's store refuses pages that begin so.
    const REFUSED: u8 = 0xEE;
    let rig = Rig::new(64, 1, 1, true, tunables(409));
    let start = rig.mmap(0, 200);
    rig.advise(start, 200, Advice::NoHugePage);
    let byte = |i: u64| match i {
        150.. => 0,
        _ if i % 10 == 3 => REFUSED,
        _ => byte_of(i),
    };
    (0..200).for_each(|i| rig.write(start.add(i), 1));
    (0..200).for_each(|i| rig.write(start.add(i), byte(i)));
    assert!(rig.fork());
    assert_eq!(rig.mm.reclaim_shared(1000).pages(), 185);
    let stats = [Item::NrShared, Item::StoreReject, Item::NrZero];
    assert_eq!(stats.map(|item| rig.stat(item)), [15, 15, 50]);
    assert_eq!(rig.resident(), 15);
    rig.verify(&"given up");
    assert_eq!(rig.mm.reclaim_shared(1000).pages(), 0);
    assert_eq!(rig.stat(Item::StoreReject), 15, "offered again");
    // They are this manager's own if it asks for it.
    assert_eq!(
        (rig.mm.take_over_shared(), rig.stat(Item::NrShared)),
        (15, 0)
    );
    rig.verify(&"taken over");
    (0..200).for_each(|i| assert!(rig.holds(start.add(i), byte(i))));
}

#[test]
fn p20_where_nothing_can_be_stored_and_what_is_locked_stays_shared() {
    for swap in [false, true] {
        let rig = Rig::new(64, 1, 1, swap, tunables(409));
        let start = rig.mmap(0, 64);
        rig.advise(start, 64, Advice::NoHugePage);
        (0..64).for_each(|i| rig.write(start.add(i), byte_of(i)));
        rig.mm.mlock(rig.space, start, 32).unwrap();
        assert!(rig.fork());
        let given = if swap { 32 } else { 0 };
        assert_eq!(rig.mm.reclaim_shared(1000).pages(), given);
        assert_eq!(rig.stat(Item::NrShared), 64 - given);
        rig.verify(&swap);
        (0..64).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    }
}

#[test]
fn p20_a_sample_of_what_is_shared_takes_some_pages_of_several_places() {
    let rig = Rig::new(64, 1, 1, true, tunables(409));
    let start = rig.mmap(0, 8 * BLOCK);
    rig.advise(start, 8 * BLOCK, Advice::NoHugePage);
    let mine = |k: &u64| k % BLOCK < 40;
    (0..8 * BLOCK)
        .filter(mine)
        .for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert_eq!(
        rig.mm.reclaim_shared_sample().pages(),
        0,
        "nothing is shared"
    );
    assert!(rig.fork());
    let done = rig.mm.reclaim_shared_sample();
    assert_eq!((done.zeros, done.stored, done.refused), (0, 8 * 4, 0));
    assert_eq!(rig.stat(Item::NrShared), 8 * 36);
    rig.verify(&"sampled");
    (0..8 * BLOCK)
        .filter(mine)
        .for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
}
