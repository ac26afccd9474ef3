//! Without huge pages: switched off by knobs, and built without (the feature `huge-pages`), where
//! no knob and no advice brings one.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{
    Advice, CollapseError, FaultOrder, HUGE_PAGES, Item, Profile, SizeItem, SizeMode, Sizes,
    ThpMode, Tunables, Vpn,
};

/// Knobs that ask for as much as can be asked for.
fn all(fault_order: FaultOrder) -> Tunables {
    let sizes = (2..=9).fold(Sizes::NEVER, |s, order| s.with(order, SizeMode::Always));
    Tunables {
        thp: ThpMode::Always,
        sizes,
        fault_max: 1 << 20,
        fault_order,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

/// What a program may do: writes, holes, swapping, and back, with a byte of each page checked.
fn live_through(rig: &Rig) -> Vpn {
    rig.charge.set_max(300);
    let start = rig.mmap(0, BLOCK);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.munmap(start.add(100), 10);
    rig.mm.reclaim(50);
    for i in (0..100).chain(110..BLOCK) {
        assert!(rig.holds(start.add(i), byte_of(i)), "page {i}");
    }
    assert!(rig.stat(Item::Pswpout) > 0);
    start
}

#[test]
fn r112_without_any_large_size_all_of_it_works() {
    let t = Tunables {
        thp: ThpMode::Never,
        sizes: Sizes::NEVER,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    live_through(&rig);
    for order in 1..=9 {
        assert_eq!(rig.mm.stats().size(order, SizeItem::AnonFaultAlloc), 0);
    }
    assert_eq!((rig.mm.queued(), rig.stat(Item::ThpSplitPage)), (0, 0));
    rig.verify(&"small pages");
}

#[test]
fn r112_built_without_huge_pages_nothing_brings_one() {
    for fault_order in [FaultOrder::Fixed, FaultOrder::Auto] {
        let rig = Rig::new(64, 1, 1, true, all(fault_order));
        let start = live_through(&rig);
        rig.charge.set_max(u64::MAX);
        // By advice, by request and in the background.
        let asked = rig.mmap(BLOCK, BLOCK);
        rig.advise(asked, BLOCK, Advice::HugePage);
        (0..BLOCK).for_each(|i| rig.write(asked.add(i), byte_of(i)));
        rig.munmap(start.add(110), 10);
        let (one, range) = (
            rig.mm.collapse(rig.space, asked),
            rig.mm.collapse_range(rig.space, asked, BLOCK),
        );
        let background = rig.mm.khugepaged_scan(u32::MAX).collapsed;
        let folios: u64 = (1..=9)
            .map(|order| rig.mm.stats().size(order, SizeItem::NrAnon))
            .sum();
        match HUGE_PAGES {
            true => assert!(folios > 0 && range.is_ok(), "{range:?}"),
            false => {
                assert_eq!((folios, background), (0, 0));
                assert_eq!((one, range.is_err()), (Err(CollapseError::Vma), true));
                let large = [
                    Item::ThpFaultAlloc,
                    Item::AnonFaultAlloc,
                    Item::ThpCollapseAlloc,
                ];
                assert_eq!(large.map(|item| rig.stat(item)), [0; 3]);
                assert_eq!(
                    (rig.mm.queued(), rig.mm.shrink_underused(100, 1000)),
                    (0, 0)
                );
            }
        }
        rig.verify(&fault_order);
    }
}
