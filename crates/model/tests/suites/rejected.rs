//! Pages that the store has refused, and that hold zeros by now: nothing is out of memory while
//! they are there.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{Advice, Charge, FaultError, Item, Profile, ThpMode, Tunables, Vpn};

/// What the store of the tests refuses.
const REFUSED: u8 = 0xee;

fn rig(thp: ThpMode) -> Rig {
    let t = Tunables {
        thp,
        fault_max: 0,
        ..Tunables::of_profile(Profile::Deckle)
    };
    Rig::new(64, 1, 1, true, t)
}

/// Pages that were paged out in vain.
fn refused(rig: &Rig, pages: u64) -> Vpn {
    let start = rig.mmap(0, pages);
    (0..pages).for_each(|i| rig.write(start.add(i), REFUSED));
    rig.advise(start, pages, Advice::PageOut);
    assert_eq!(
        (rig.stat(Item::StoreReject), rig.resident()),
        (pages, pages)
    );
    assert_eq!(
        rig.mm.store().refused_pages(),
        vec![REFUSED; pages as usize]
    );
    start
}

/// A huge page of them.
fn refused_huge(rig: &Rig) -> Vpn {
    let start = rig.huge(0, []);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), REFUSED));
    rig.advise(start, BLOCK, Advice::PageOut);
    assert_eq!(rig.folio(start).order, 9);
    start
}

/// Other pages need the room of those at `start`, which hold `byte` now.
fn make_way(rig: &Rig, start: Vpn, pages: u64, byte: u8) {
    rig.charge.set_max(rig.charge.usage() + 8);
    let more = rig.mmap(4 * BLOCK, pages);
    (0..pages).for_each(|i| rig.write(more.add(i), REFUSED));
    assert_eq!(rig.stat(Item::OomKill), 0);
    rig.verify(&"grown");
    (0..pages).for_each(|i| assert!(rig.holds(more.add(i), REFUSED)));
    (0..pages).for_each(|i| assert!(rig.holds(start.add(i), byte)));
    rig.verify(&"read");
}

#[test]
fn r137_pages_that_were_refused_and_are_zeros_now_are_dropped_before_anything_is_out() {
    let rig = rig(ThpMode::Never);
    let start = refused(&rig, 256);
    (0..256).for_each(|i| rig.write(start.add(i), 0));
    make_way(&rig, start, 256, 0);
}

#[test]
fn r137_pages_that_were_only_read_and_then_changed_with_no_fault_are_looked_at_again() {
    for byte in [0, byte_of(0)] {
        let rig = rig(ThpMode::Never);
        let start = refused(&rig, 256);
        (0..256).for_each(|i| assert!(rig.holds(start.add(i), REFUSED)));
        for i in 0..256 {
            let addr = start.add(i).addr();
            rig.model.store(0, rig.space, addr, &[byte]).unwrap();
        }
        // Half of them: what is stored takes room, too.
        make_way(&rig, start, 128, byte);
    }
}

#[test]
fn r137_a_refused_huge_page_that_holds_zeros_now_is_dropped() {
    let rig = rig(ThpMode::Always);
    let start = refused_huge(&rig);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), 0));
    make_way(&rig, start, 256, 0);
}

#[test]
fn r137_what_was_refused_is_not_offered_again_by_advice_before_it_is_touched() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        let rig = rig(thp);
        let start = match thp {
            ThpMode::Never => refused(&rig, BLOCK),
            _ => refused_huge(&rig),
        };
        rig.advise(start, BLOCK, Advice::PageOut);
        assert_eq!(rig.stat(Item::StoreReject), BLOCK, "{thp:?}");
        rig.write(start.add(3), REFUSED);
        rig.advise(start, BLOCK, Advice::PageOut);
        let again = if thp == ThpMode::Never { 1 } else { BLOCK };
        assert_eq!(rig.stat(Item::StoreReject), BLOCK + again, "{thp:?}");
        rig.verify(&thp);
    }
}

#[test]
fn r137_what_was_refused_and_has_not_changed_is_not_offered_again() {
    let rig = rig(ThpMode::Never);
    let start = refused(&rig, 256);
    (0..256).for_each(|i| assert!(rig.holds(start.add(i), REFUSED)));
    let before = rig.stat(Item::StoreReject);
    (0..8).for_each(|_| assert_eq!(rig.mm.reclaim(64), 0));
    assert_eq!(rig.stat(Item::StoreReject), before);
    // Only who is out of memory has every page that was touched looked at again: once.
    rig.charge.set_max(rig.charge.usage());
    let more = rig.mmap(4 * BLOCK, 8);
    for i in 0..8 {
        let done = rig.fault(more.add(i), true);
        let Err(FaultError::Oom(report)) = done else {
            panic!("{done:?}");
        };
        assert!(!report.lacks_frames(), "{report}");
    }
    assert_eq!(rig.stat(Item::StoreReject), before + 256);
    rig.verify(&"refused");
}

#[test]
fn what_the_store_gives_back_by_moving_its_pages_together_goes_before_memory_is_out() {
    let rig = rig(ThpMode::Never);
    refused(&rig, 256);
    // More than it moves at once.
    rig.mm.store().loosen(80 << 12);
    rig.mm.settle_store();
    rig.charge.set_max(rig.charge.usage());
    let more = rig.mmap(4 * BLOCK, 81);
    (0..80).for_each(|i| rig.write(more.add(i), REFUSED));
    assert_eq!(rig.stat(Item::OomKill), 0);
    let done = rig.fault(more.add(80), true);
    assert!(matches!(done, Err(FaultError::Oom(_))), "{done:?}");
    // For another manager, too.
    rig.mm.store().loosen(16 << 12);
    rig.mm.settle_store();
    assert_eq!((rig.mm.reclaim(16), rig.mm.reclaim_hard(16)), (0, 16));
    rig.verify(&"moved");
}

#[test]
fn r137_who_reclaims_hard_looks_again_at_what_was_refused_and_touched_since() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        let rig = rig(thp);
        let t = Tunables {
            shrink_underused: false,
            oom_zero_drop: false,
            ..rig.mm.tunables()
        };
        rig.mm.set_tunables(t).unwrap();
        let start = match thp {
            ThpMode::Never => refused(&rig, BLOCK),
            _ => refused_huge(&rig),
        };
        // What nobody has touched since is what it was.
        let tried = rig.stat(Item::StoreReject);
        assert_eq!(rig.mm.reclaim_hard(64), 0);
        assert_eq!(rig.stat(Item::StoreReject), tried, "{thp:?}");
        for i in 0..BLOCK {
            assert!(rig.holds(start.add(i), REFUSED));
            let addr = start.add(i).addr();
            rig.model.store(0, rig.space, addr, &[0]).unwrap();
        }
        assert_eq!(rig.mm.reclaim(64), 0, "nobody has said that it changed");
        assert!(rig.mm.reclaim_hard(64) > 0, "{thp:?}");
        assert!(rig.stat(Item::NrZero) > 0);
        rig.verify(&thp);
    }
}

#[test]
fn r104_a_page_of_zeros_that_is_dropped_is_counted_once() {
    // By reclaim; by the shrinker; before memory is out.
    for (zeros, max_ptes_none) in [(100, 511), (450, 409), (10, 511)] {
        let t = Tunables {
            max_ptes_none,
            ..Tunables::of_profile(Profile::Deckle)
        };
        let rig = Rig::new(64, 1, 1, false, t);
        rig.huge(0, zeros..BLOCK);
        rig.charge.set_max(BLOCK);
        let more = rig.mmap(4 * BLOCK, 1);
        rig.write(more, 1);
        // Of a folio that can go nowhere the store is shown the first page that holds something.
        if max_ptes_none == 511 {
            assert_eq!(rig.mm.store().refused_pages()[0], byte_of(zeros));
        }
        let dropped = rig.stat(Item::SwpoutZero) + rig.stat(Item::ThpSplitUnmap);
        assert_eq!(dropped, zeros, "{max_ptes_none}");
        assert_eq!(dropped, rig.stat(Item::NrZero));
        rig.verify(&zeros);
    }
}
