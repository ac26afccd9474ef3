//! What the system does by itself where frames are slots: holes that are left to it.

use super::common::hand::byte_of;
use super::common::{BASE, Rig};
use deckle_mm::{
    Advice, Charge, FaultError, FaultMode, FaultOrder, Item, Profile, Prot, Sizes, Tunables, Vpn,
};

const LIMIT: u64 = 4000;

/// Small pages, holes that are left to the system below half of the limit.
fn rig() -> Rig {
    let t = Tunables {
        sizes: Sizes::NEVER,
        fault_order: FaultOrder::Auto,
        fault_open_ratio: 50,
        ..Tunables::default()
    };
    let rig = Rig::new(64, 1, 1, true, t);
    rig.charge.set_max(LIMIT);
    rig.charge.set_high(LIMIT);
    rig
}

/// A mapping of 64 pages that is open from the beginning.
fn open(rig: &Rig) -> Vpn {
    assert!(rig.mm.charge_new(Prot::RW, 64));
    rig.model.leave(rig.space, BASE, 64);
    let start = rig.mm.mmap_open(rig.space, BASE, 64, Prot::RW).unwrap();
    rig.verify(&"open");
    assert_eq!((rig.stat(Item::NrOpen), rig.charge.usage()), (64, 64));
    start
}

#[test]
fn r148_what_the_system_makes_of_open_pages_is_booked_when_they_are_closed() {
    let rig = rig();
    let start = open(&rig);
    (0..8).for_each(|i| rig.write(start.add(i), 7));
    (8..12).for_each(|i| assert!(rig.holds(start.add(i), 0)));
    assert_eq!((rig.model.counters().made, rig.stat(Item::Pgfault)), (8, 0));
    rig.verify(&"touched");
    // Somebody looks.
    rig.advise(start, 64, Advice::PageOut);
    rig.verify(&"closed");
    assert_eq!((rig.stat(Item::NrOpen), rig.stat(Item::NrSwapped)), (0, 8));
    assert!((0..64).all(|i| !rig.model.is_open(rig.space, start.add(i))));
    for i in 0..64 {
        assert!(rig.holds(start.add(i), if i < 8 { 7 } else { 0 }), "{i}");
    }
    rig.verify(&"read");
}

#[test]
fn r148_what_a_new_mapping_was_charged_comes_back_if_it_fails() {
    let rig = rig();
    assert!(rig.mm.charge_new(Prot::RW, 64));
    assert_eq!(rig.charge.usage(), 64);
    let outside = Vpn(BASE.0 - 1);
    assert!(rig.mm.mmap_open(rig.space, outside, 64, Prot::RW).is_err());
    assert_eq!(rig.charge.usage(), 0);
    rig.verify(&"refused");
}

#[test]
fn r127_no_write_to_what_is_open_is_lost_to_who_tracks_writes() {
    let rig = rig();
    let start = open(&rig);
    rig.write(start, 7);
    rig.mm.clear_soft_dirty(rig.space).unwrap();
    rig.verify(&"cleared");
    let dirty = |i| {
        let info = rig.mm.page_info(rig.space, start.add(i)).unwrap();
        info.soft_dirty
    };
    assert!((0..64).all(|i| !dirty(i)));
    rig.write(start, 8);
    rig.write(start.add(1), 8);
    assert!(dirty(0) && dirty(1));
    rig.verify(&"written again");
}

#[test]
fn r150_open_pages_are_closed_before_anything_is_stored() {
    let rig = rig();
    let start = open(&rig);
    (0..8).for_each(|i| rig.write(start.add(i), 7));
    assert!(rig.mm.reclaim(32) >= 32);
    assert_eq!((rig.stat(Item::NrOpen), rig.stat(Item::Pswpout)), (0, 0));
    assert_eq!(rig.charge.usage(), 8);
    rig.verify(&"reclaim");
    (0..8).for_each(|i| assert!(rig.holds(start.add(i), 7)));
}

#[test]
#[cfg(feature = "huge-pages")]
fn a_huge_page_is_written_whole_again_when_nobody_else_holds_it() {
    for alone in [true, false] {
        let rig = Rig::new(64, 1, 1, true, Tunables::default());
        let start = rig.huge(0, 0..300);
        assert!(rig.fork());
        rig.charge.set_alone(alone);
        // Who serves faults hands it over: others may have the block in work.
        let no_wait = rig.mm.fault(rig.space, start, true, FaultMode::NoWait);
        assert_eq!(matches!(no_wait, Err(FaultError::Busy)), alone);
        rig.write(start.add(7), 9);
        assert_eq!(rig.folio(start).order, if alone { 9 } else { 0 });
        let shared = (0..512).filter(|&i| rig.mm.is_shared(rig.space, start.add(i)));
        assert_eq!(shared.count() == 0, alone);
        (8..300).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
        rig.others_are_gone();
        rig.verify(&alone);
    }
}

#[test]
#[cfg(feature = "huge-pages")]
fn r97_advice_on_a_part_splits_what_nobody_else_holds_any_more_in_profile_linux() {
    for alone in [true, false] {
        let t = Tunables::of_profile(Profile::Linux);
        let rig = Rig::new(64, 1, 1, true, t);
        let start = rig.huge(0, 0..100);
        assert!(rig.fork());
        rig.charge.set_alone(alone);
        rig.advise(start.add(300), 10, Advice::Cold);
        let (order, resident) = if alone { (0, 100) } else { (9, 512) };
        assert_eq!((rig.folio(start).order, rig.resident()), (order, resident));
        (0..100).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
        rig.others_are_gone();
        rig.verify(&alone);
    }
}
