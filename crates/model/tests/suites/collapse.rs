//! Small pages that become a huge one: which blocks, what becomes of the pages, and who undoes
//! whose work.

use super::common::hand::{self, BLOCK, byte_of};
use super::common::{BASE, Rig};
use deckle_mm::{
    Advice, Charge, CollapseError, FaultOrder, Item, Prot, SizeMode, Sizes, ThpMode, Tunables, Vpn,
};
use deckle_model::{Chance, Injection};

fn tunables(max_ptes_none: u16) -> Tunables {
    Tunables {
        khugepaged_scan_sleep_millisecs: 100,
        ..hand::tunables(max_ptes_none)
    }
}

/// A block of single pages and 64 KiB folios, mixed, of which the first `live` are written.
fn small(rig: &Rig, at: u64, live: u64) -> Vpn {
    let before = rig.mm.tunables();
    let start = rig.mmap(at, BLOCK);
    for i in 0..live {
        let sizes = match i / 32 % 2 {
            0 => Sizes::NEVER,
            _ => Sizes::NEVER.with(4, SizeMode::Always),
        };
        let small = Tunables {
            thp: ThpMode::Always,
            sizes,
            ..before
        };
        // The last folio must not reach beyond.
        let end = i / 16 * 16 + 16 > live;
        let single = Tunables {
            sizes: Sizes::NEVER,
            ..before
        };
        rig.mm
            .set_tunables(if end { single } else { small })
            .unwrap();
        rig.write(start.add(i), byte_of(i));
    }
    rig.mm.set_tunables(before).unwrap();
    start
}

fn intact(rig: &Rig, start: Vpn, live: u64) {
    hand::intact(rig, start, |i| i < live);
}

#[test]
fn r116_r140_a_block_is_collapsed_up_to_the_limit_of_holes_and_no_further() {
    for max_none in [0, 1, 64, 255, 409, 510, 511] {
        for none in [max_none, max_none + 1].into_iter().filter(|n| *n < BLOCK) {
            let rig = Rig::new(64, 1, 1, true, tunables(max_none as u16));
            let live = BLOCK - none;
            let start = small(&rig, 0, live);
            // Zero pages count as holes.
            if none > 0 {
                rig.read(start.add(BLOCK - 1));
            }
            let done = rig.mm.collapse(rig.space, start.add(7));
            if none > max_none {
                assert_eq!(done, Err(CollapseError::ExceedNone(none as u32)));
                assert_eq!(rig.charge.usage(), live);
            } else {
                done.unwrap();
                let folio = rig.folio(start.add(100));
                assert_eq!((folio.order, folio.refs, folio.queued), (9, 1, true));
                assert!(rig.model.translation(rig.space, start).unwrap().huge);
                assert_eq!(rig.charge.usage(), BLOCK);
                assert_eq!(rig.stat(Item::ThpCollapseAlloc), 1);
            }
            rig.verify(&(max_none, none));
            intact(&rig, start, live);
            rig.verify(&(max_none, none));
        }
    }
}

#[test]
fn r140_neither_undoes_what_the_other_has_done() {
    for max_none in [64, 255, 409, 490] {
        let rig = Rig::new(64, 1, 1, true, tunables(max_none as u16));
        // The shrinker first: as few are in use as it takes.
        let live = BLOCK - max_none - 1;
        let start = rig.huge(0, 0..live);
        assert_eq!(rig.mm.shrink_underused(10, 10_000), max_none + 1);
        for _ in 0..10 {
            assert_eq!(rig.mm.khugepaged().collapsed, 0);
            assert_eq!(rig.mm.shrink_underused(10, 10_000), 0);
        }
        assert_eq!(rig.charge.usage(), live);
        intact(&rig, start, live);
        // One page more in use: now it is collapsed, and stays so.
        rig.write(start.add(live), byte_of(live));
        assert_eq!(rig.mm.khugepaged().collapsed, 1);
        for _ in 0..10 {
            assert_eq!(rig.mm.shrink_underused(10, 10_000), 0);
            assert_eq!(rig.mm.khugepaged().collapsed, 0);
        }
        assert_eq!(rig.folio(start).order, 9);
        intact(&rig, start, live + 1);
        rig.verify(&max_none);
    }
}

#[test]
fn r140_pages_in_the_store_are_read_back_up_to_their_limit() {
    for (swapped, collapses) in [(0, true), (64, true), (65, false)] {
        let rig = Rig::new(64, 1, 1, true, tunables(409));
        let start = small(&rig, 0, BLOCK);
        if swapped > 0 {
            let first = start.add(BLOCK - swapped);
            rig.mm.page_out(rig.space, first, swapped).unwrap();
        }
        let stored = rig.stat(Item::NrSwapped);
        let done = rig.mm.collapse(rig.space, start);
        match collapses {
            true => assert_eq!(done, Ok(())),
            false => assert_eq!(done, Err(CollapseError::ExceedSwap(stored as u32))),
        }
        assert_eq!(
            rig.stat(Item::NrSwapped),
            if collapses { 0 } else { stored }
        );
        intact(&rig, start, BLOCK);
        rig.verify(&swapped);
    }
}

#[test]
fn r140_what_cannot_be_moved_is_left_as_it_was() {
    let rig = Rig::new(64, 1, 1, true, tunables(409));
    let start = small(&rig, 0, 300);
    let stuck = |i| Err(CollapseError::Page(start.add(i)));
    let refused = |want: Result<(), CollapseError>| {
        let frames = || rig.model.translations(rig.space);
        let shape = || -> Vec<_> {
            frames()
                .iter()
                .map(|(p, t)| (*p, t.frame, t.prot))
                .collect()
        };
        let (before, used) = (shape(), rig.charge.usage());
        assert_eq!(rig.mm.collapse(rig.space, start), want);
        assert_eq!((shape(), rig.charge.usage()), (before, used));
        rig.verify(&want);
    };
    rig.model.pin(rig.space, start.add(77));
    refused(stuck(77));
    rig.model.unpin(rig.space, start.add(77));
    let holder = rig.mm.isolate_page(rig.space, start.add(40)).unwrap();
    assert_eq!(rig.mm.collapse(rig.space, start), stuck(32));
    rig.mm.putback_list(holder);
    rig.mm.lock_present(rig.space, start, BLOCK).unwrap();
    assert_eq!(rig.mm.collapse(rig.space, start), stuck(0));
    rig.mm.munlock(rig.space, start, BLOCK).unwrap();
    // No memory for the copy, at any point of it.
    for _ in 0..20 {
        rig.model.set_injection(Injection {
            no_memory: Chance(700),
            ..Injection::default()
        });
        let done = rig.mm.collapse(rig.space, start);
        rig.model.set_injection(Injection::default());
        if done.is_ok() {
            break;
        }
        // What could not be mapped again is so at the next touch.
        let known = [CollapseError::NoMemory, CollapseError::Cold];
        assert!(done.is_err_and(|e| known.contains(&e)), "{done:?}");
        rig.verify(&"no memory");
        rig.read(start);
    }
    intact(&rig, start, 300);
    // No huge page within the limit.
    let other = small(&rig, BLOCK, 200);
    rig.charge.set_max(rig.charge.usage() + 100);
    let failed = rig.stat(Item::ThpCollapseAllocFailed);
    assert_eq!(rig.mm.collapse(rig.space, other), Err(CollapseError::Limit));
    assert_eq!(rig.stat(Item::ThpCollapseAllocFailed), failed + 1);
    intact(&rig, other, 200);
    rig.verify(&"the limit");
}

#[test]
fn r58_r140_holes_that_the_program_serves_itself_are_not_filled() {
    let rig = Rig::new(64, 1, 1, true, tunables(511));
    let start = small(&rig, 0, 511);
    rig.mm.uffd_register(rig.space, start, BLOCK).unwrap();
    let done = rig.mm.collapse(rig.space, start);
    assert_eq!(done, Err(CollapseError::ExceedNone(1)));
    rig.mm.uffd_unregister(rig.space, start, BLOCK).unwrap();
    rig.mm.collapse(rig.space, start).unwrap();
    // Nor is what no mapping covers, or what was advised against.
    let half = rig.mmap(2 * BLOCK, 256);
    rig.write(half, 1);
    let refused = Err(CollapseError::Vma);
    assert_eq!(rig.mm.collapse(rig.space, half), refused);
    let other = small(&rig, BLOCK, BLOCK);
    rig.advise(other, BLOCK, Advice::NoHugePage);
    assert_eq!(rig.mm.collapse(rig.space, other), refused);
    rig.advise(other, BLOCK, Advice::HugePage);
    rig.mm.mprotect(rig.space, other, 1, Prot::R).unwrap();
    assert_eq!(rig.mm.collapse(rig.space, other), refused);
    assert_eq!(rig.mm.collapse(rig.space, start), Err(CollapseError::Huge));
    rig.verify(&"refused");
}

#[test]
fn r140_khugepaged_looks_at_so_many_pages_in_so_many_ticks() {
    let t = Tunables {
        khugepaged_pages_to_scan: 2 * BLOCK as u32,
        khugepaged_scan_sleep_millisecs: 300,
        ..tunables(409)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    (0..7).for_each(|k| assert_eq!(small(&rig, k * BLOCK, 200), BASE.add(k * BLOCK)));
    let mut collapsed = 0;
    for tick in 0..12 {
        let done = rig.mm.khugepaged();
        assert!((1..=1024).contains(&done.scanned) == (tick % 3 == 0));
        collapsed += done.collapsed;
        assert_eq!(u64::from(collapsed), (tick / 3 * 2 + 2).min(7));
    }
    assert_eq!(rig.stat(Item::NrThp), 7);
    (0..7).for_each(|k| intact(&rig, BASE.add(k * BLOCK), 200));
    rig.verify(&"ticks");
}

#[test]
fn r140_what_the_program_asks_for_is_collapsed_whatever_the_knobs_say() {
    let off = Tunables {
        thp: ThpMode::Never,
        max_ptes_swap: 0,
        ..tunables(0)
    };
    let rig = Rig::new(64, 1, 1, true, off);
    let one = small(&rig, 0, 1);
    let away = small(&rig, BLOCK, 300);
    let empty = rig.mmap(2 * BLOCK, BLOCK);
    rig.mm.page_out(rig.space, away, BLOCK).unwrap();
    let range = |start, pages| rig.mm.collapse_range(rig.space, start, pages);
    let is_huge = |start| {
        let there = rig.model.translation(rig.space, start);
        there.is_some_and(|t| t.huge)
    };
    assert_eq!(
        rig.mm.collapse(rig.space, one),
        Err(CollapseError::Vma),
        "it is not enabled"
    );
    // No whole block is in it.
    assert_eq!(range(one.add(1), BLOCK), Ok(()));
    assert!(!is_huge(one) && !is_huge(away));
    for _ in 0..2 {
        assert_eq!(range(one, 2 * BLOCK), Ok(()));
        assert!(is_huge(one) && is_huge(away));
        assert_eq!(rig.stat(Item::ThpCollapseAlloc), 2);
        rig.verify(&"collapsed");
    }
    intact(&rig, one, 1);
    intact(&rig, away, 300);
    // One that was paged out whole.
    rig.mm.page_out(rig.space, one, BLOCK).unwrap();
    assert_eq!(range(one, BLOCK), Ok(()));
    assert!(is_huge(one));
    intact(&rig, one, 1);
    // The others are done, whatever keeps one from it.
    rig.mm.page_out(rig.space, one, BLOCK).unwrap();
    assert_eq!(range(one, 3 * BLOCK), Err(CollapseError::Cold));
    assert!(is_huge(one));
    rig.write(empty, 9);
    rig.mm.lock_present(rig.space, empty, BLOCK).unwrap();
    assert_eq!(range(empty, BLOCK), Err(CollapseError::Page(empty)));
    rig.mm.munlock(rig.space, empty, BLOCK).unwrap();
    let advise = |advice| rig.mm.madvise(rig.space, empty, BLOCK, advice).unwrap();
    advise(Advice::NoHugePage);
    assert_eq!(range(empty, BLOCK), Err(CollapseError::Vma));
    advise(Advice::HugePage);
    // There is no room, and nothing that could make any.
    rig.mm.lock_present(rig.space, one, 2 * BLOCK).unwrap();
    rig.charge.set_max(rig.charge.usage() + 100);
    assert_eq!(range(empty, BLOCK), Err(CollapseError::Limit));
    rig.charge.set_max(rig.charge.usage() + BLOCK);
    assert_eq!(range(empty, BLOCK), Ok(()));
    assert!(is_huge(empty) && rig.holds(empty, 9) && rig.holds(empty.add(1), 0));
    rig.verify(&"all");
}

#[test]
fn r140_khugepaged_fills_few_holes_while_the_order_of_faults_follows_what_pays() {
    // The eighth of a block, and one more; then with a knob below it.
    for (max_none, most) in [(511, 64), (409, 64), (64, 64), (30, 30)] {
        for (fault_order, most) in [(FaultOrder::Auto, most), (FaultOrder::Fixed, max_none)] {
            let t = Tunables {
                fault_order,
                ..tunables(max_none)
            };
            let rig = Rig::new(64, 1, 1, true, t);
            let live = BLOCK - u64::from(most);
            let fits = small(&rig, 0, live);
            let done = rig.mm.khugepaged_scan(u32::MAX);
            assert_eq!(
                done.collapsed, 1,
                "{fault_order:?} {max_none}: {most} holes"
            );
            intact(&rig, fits, live);
            if most < 511 {
                let over = small(&rig, BLOCK, live - 1);
                let done = rig.mm.khugepaged_scan(u32::MAX);
                assert_eq!(done.collapsed, 0, "{fault_order:?} {max_none}: {most} + 1");
                assert_eq!(rig.stat(Item::ThpScanExceedNonePte), 1);
                // Who asks for it by name gets what the knob says.
                if most < max_none {
                    rig.mm.collapse(rig.space, over).unwrap();
                }
                intact(&rig, over, live - 1);
            }
            rig.verify(&"few holes");
        }
    }
}
