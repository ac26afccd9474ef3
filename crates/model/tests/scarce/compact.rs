//! Pages that move to other frames, one by one and to form a free block.

use super::common::hand::{BLOCK, byte_of};
use super::common::{BASE, Rig};
use deckle_mm::frame::Watermarks;
use deckle_mm::{
    Advice, Charge, Item, MigrateError, Pfn, Profile, Prot, SizeMode, Sizes, ThpMode, Tunables, Vpn,
};
use deckle_model::{Chance, Injection};

fn tunables(order: u8) -> Tunables {
    Tunables {
        thp: ThpMode::Always,
        sizes: match order {
            0 => Sizes::NEVER,
            _ => Sizes::NEVER.with(order, SizeMode::Always),
        },
        fault_max: 1 << 20,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

/// A machine of `mib`, whose faults get folios of `order`.
fn rig(mib: u64, order: u8) -> Rig {
    Rig::new(mib, 1, 3, true, tunables(order))
}

fn frame(rig: &Rig, page: Vpn) -> Pfn {
    let at = rig.model.translation(rig.space, page).expect("mapped");
    at.frame.expect("not the zero page")
}

#[test]
fn r98_r100_r114_a_page_that_moves_takes_its_bytes_along_zeros_too() {
    let rig = rig(8, 0);
    let start = rig.mmap(0, 8);
    let byte = |i: u64| if i.is_multiple_of(2) { byte_of(i) } else { 0 };
    (0..8).for_each(|i| rig.write(start.add(i), byte(i)));
    let before: Vec<Pfn> = (0..8).map(|i| frame(&rig, start.add(i))).collect();
    for i in 0..8u64 {
        let done = rig.mm.migrate_page(rig.space, start.add(i), i < 4).unwrap();
        assert_eq!((done.moved, done.zeros), (1, 0));
        assert_ne!(frame(&rig, start.add(i)), before[i as usize]);
        rig.verify(&i);
    }
    assert_eq!((rig.charge.usage(), rig.stat(Item::NrZero)), (8, 0));
    assert_eq!(rig.stat(Item::PgmigrateSuccess), 8);
    assert_eq!(rig.stat(Item::PgmigrateZero), 0);
    (0..8).for_each(|i| assert!(rig.holds(start.add(i), byte(i))));
    rig.verify(&"moved");
}

#[test]
fn r139_locked_pages_move_and_stay_locked_and_are_never_dropped() {
    let rig = rig(8, 4);
    let start = rig.mmap(0, 32);
    rig.write(start, 7);
    rig.mm.mlock(rig.space, start, 32).unwrap();
    let (resident, before) = (rig.resident(), frame(&rig, start));
    for page in [start, start.add(16)] {
        let done = rig.mm.migrate_page(rig.space, page, true).unwrap();
        assert_eq!((done.moved, done.zeros), (16, 0));
    }
    assert_ne!(frame(&rig, start), before);
    assert_eq!((rig.resident(), rig.stat(Item::NrZero)), (resident, 0));
    let there = |i: u64| rig.model.translation(rig.space, start.add(i)).is_some();
    assert!((0..32).all(there));
    // Reclaim leaves them alone still.
    rig.mm.reclaim(1000);
    assert_eq!(rig.resident(), resident);
    assert!(rig.holds(start, 7));
    rig.verify(&"locked");
}

#[test]
fn r135_r148_what_is_held_stays_where_it_is() {
    let rig = rig(8, 4);
    let start = rig.mmap(0, 16);
    (0..16).for_each(|i| rig.write(start.add(i), byte_of(i)));
    let frames = || -> Vec<Pfn> { (0..16).map(|i| frame(&rig, start.add(i))).collect() };
    let before = frames();
    let stays = |why| {
        let done = rig.mm.migrate_page(rig.space, start.add(3), true);
        assert_eq!(done, Err(why));
        assert_eq!(frames(), before);
        rig.verify(&why);
    };
    rig.model.pin(rig.space, start.add(9));
    stays(MigrateError::Pinned);
    rig.model.unpin(rig.space, start.add(9));
    let list = rig.mm.isolate_page(rig.space, start).unwrap();
    assert_eq!(
        rig.mm.migrate_page(rig.space, start, true),
        Err(MigrateError::NoFolio)
    );
    rig.mm.putback_list(list);
    // The machine has no memory for the copy.
    rig.model.set_injection(Injection {
        no_memory: Chance(1000),
        ..Injection::default()
    });
    let done = rig.mm.migrate_page(rig.space, start, true);
    rig.model.set_injection(Injection::default());
    assert_eq!(done, Err(MigrateError::NoMemory));
    (0..16).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    rig.verify(&"no memory");
    // What a fork shares is not this manager's alone.
    rig.fork();
    assert_eq!(
        rig.mm.migrate_page(rig.space, start, true),
        Err(MigrateError::Shared)
    );
    rig.others_are_gone();
    assert!(rig.mm.migrate_page(rig.space, start, true).is_ok());
    (0..16).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    rig.verify(&"moved at last");
}

#[test]
fn r132_r109_a_folio_moves_whole_unless_a_part_of_it_is_not_in_use() {
    for order in [2, 3, 4, 6, 8, 9] {
        let rig = rig(8, order);
        let n = 1 << order;
        let start = rig.mmap(0, BLOCK);
        (0..n).for_each(|i| rig.write(start.add(i), byte_of(i)));
        let before = frame(&rig, start);
        let done = rig.mm.migrate_page(rig.space, start.add(n / 2), true);
        assert_eq!(u64::from(done.unwrap().moved), n);
        assert_eq!(rig.folio(start).order, order);
        assert_ne!(frame(&rig, start), before);
        if order == 9 {
            assert!(rig.model.translation(rig.space, start).unwrap().huge);
        } else {
            rig.munmap(start.add(n / 4), n / 4);
            assert!(rig.mm.migrate_page(rig.space, start, true).is_ok());
            assert_eq!(rig.folio(start).order, 0);
            assert_eq!(rig.charge.usage(), n - n / 4);
        }
        for i in (0..n).filter(|i| order == 9 || *i < n / 4 || *i >= n / 2) {
            assert!(
                rig.holds(start.add(i), byte_of(i)),
                "order {order} page {i}"
            );
        }
        rig.verify(&order);
    }
}

/// Fills a machine of four blocks with single pages and gives every second one back.
fn fragmented(rig: &Rig) -> Vpn {
    let start = rig.mmap(0, 4 * BLOCK);
    let mut n = 0;
    while rig.mm.frames_used() < 4 * BLOCK - 4 {
        rig.write(start.add(n), byte_of(n));
        n += 1;
    }
    (0..n)
        .step_by(2)
        .for_each(|i| rig.advise(start.add(i), 1, Advice::DontNeed));
    rig.verify(&"fragmented");
    // So little memory is no more than its marks and what a move needs.
    rig.mm.set_watermarks(Watermarks::default());
    start
}

fn odd_pages_hold(rig: &Rig, start: Vpn) {
    (1..4 * BLOCK - 8)
        .step_by(2)
        .for_each(|i| assert!(rig.holds(start.add(i), byte_of(i)), "page {i}"));
}

#[test]
fn r19_r54_a_huge_fault_gets_its_block_by_moving_pages_and_evicts_nothing() {
    let rig = rig(8, 0);
    let start = fragmented(&rig);
    let huge = Tunables {
        thp: ThpMode::Madvise,
        ..Tunables::of_profile(Profile::Deckle)
    };
    rig.mm.set_tunables(huge).unwrap();
    let at = rig.mmap(8 * BLOCK, BLOCK);
    rig.advise(at, BLOCK, Advice::HugePage);
    let usage = rig.charge.usage();
    rig.fault(at, true).unwrap();
    assert_eq!(rig.folio(at).order, 9);
    assert_eq!(rig.charge.usage(), usage + BLOCK);
    let counted = [Item::CompactStall, Item::CompactSuccess, Item::CompactFail];
    assert_eq!(counted.map(|item| rig.stat(item)), [1, 1, 0]);
    assert!(rig.stat(Item::CompactMigrateScanned) >= BLOCK);
    assert!(rig.stat(Item::CompactFreeScanned) >= BLOCK);
    assert!(rig.stat(Item::PgmigrateSuccess) >= 200);
    assert_eq!(rig.stat(Item::PgstealDirect) + rig.stat(Item::Pswpout), 0);
    // What was moved away was captured.
    let capture = rig.mm.capture_stats();
    assert_eq!((capture.successes, capture.now), (1, 0), "{capture:?}");
    odd_pages_hold(&rig, start);
    rig.verify(&"compacted");
}

#[test]
fn r148_a_block_with_a_page_that_cannot_be_moved_is_left_out() {
    let rig = rig(8, 0);
    let start = fragmented(&rig);
    // One in each block of frames but the second.
    let mut pinned = Vec::new();
    let page_of = |block: u32| {
        (1..4 * BLOCK - 8)
            .step_by(2)
            .map(|i| start.add(i))
            .find(|p| {
                let first = rig.mm.folio_at(rig.space, *p).unwrap().frame.0;
                (first - deckle_model::FIRST_FRAME.0) / 512 == block
            })
    };
    for block in [0, 2, 3] {
        let page = page_of(block).unwrap();
        rig.model.pin(rig.space, page);
        pinned.push((page, frame(&rig, page)));
    }
    let done = rig.mm.compact(9);
    assert_eq!(done.blocks.0, 0, "{done:?}");
    assert!(done.pages.moved > 0, "{done:?}");
    for (page, frame_then) in &pinned {
        assert_eq!(frame(&rig, *page), *frame_then);
        rig.model.unpin(rig.space, *page);
    }
    odd_pages_hold(&rig, start);
    rig.verify(&"pinned");
    let done = rig.mm.compact(9);
    assert!(done.blocks.1 >= 1, "{done:?}");
    odd_pages_hold(&rig, start);
    rig.verify(&"unpinned");
}

#[test]
fn r148_compaction_forms_blocks_of_every_order_and_loses_nothing_when_copies_fail() {
    for order in 1..=9 {
        let rig = rig(8, 0);
        let start = fragmented(&rig);
        rig.model.set_injection(Injection {
            no_memory: Chance(300),
            ..Injection::default()
        });
        let shaken = rig.mm.compact(order);
        rig.model.set_injection(Injection::default());
        rig.verify(&(order, shaken));
        let done = rig.mm.compact(order);
        assert!(done.blocks.1 > 0, "order {order}: {shaken:?}, {done:?}");
        assert_eq!(rig.mm.compact(order).pages.zeros, 0);
        odd_pages_hold(&rig, start);
        rig.verify(&(order, done));
    }
}

#[test]
fn r97_r110_r114_zeros_are_dropped_where_a_folio_is_split_to_be_moved_and_nowhere_else() {
    for profile in [Profile::Deckle, Profile::Linux] {
        for order in [0, 4] {
            let rig = rig(8, order);
            let start = rig.mmap(0, 3 * BLOCK);
            let byte = |i: u64| if i % 4 == 1 { byte_of(i) } else { 0 };
            (0..3 * BLOCK).for_each(|i| rig.write(start.add(i), byte(i)));
            // Every third folio of 16 pages goes, and a page of each other.
            let gone = |i: &u64| i % 48 < 16 || i.is_multiple_of(16);
            (0..3 * BLOCK)
                .filter(gone)
                .for_each(|i| rig.advise(start.add(i), 1, Advice::DontNeed));
            let t = Tunables {
                profile,
                ..tunables(0)
            };
            rig.mm.set_tunables(t).unwrap();
            let resident = rig.resident();
            let done = rig.mm.compact(9).pages;
            assert!(done.moved > 0, "{done:?}");
            // 11 of the 15 pages that a folio has left are zeros.
            let zeros = u64::from(done.zeros);
            assert_eq!(zeros > 2 * u64::from(done.moved), order > 0, "{done:?}");
            assert_eq!(zeros > 0, order > 0);
            assert_eq!(rig.stat(Item::PgmigrateZero), zeros);
            assert_eq!(rig.resident(), resident - zeros);
            assert_eq!(rig.stat(Item::NrZero), zeros);
            let left = |i: u64| if gone(&i) { 0 } else { byte(i) };
            (0..3 * BLOCK).for_each(|i| assert!(rig.holds(start.add(i), left(i))));
            rig.verify(&(profile, order));
        }
    }
}

#[test]
fn r148_after_failures_fewer_tries_are_made() {
    let rig = rig(8, 0);
    fragmented(&rig);
    // Nothing can be moved.
    for i in 0..4 * BLOCK {
        let page = BASE.add(i);
        if rig.model.translation(rig.space, page).is_some() {
            rig.model.pin(rig.space, page);
        }
    }
    let t = Tunables {
        thp: ThpMode::Madvise,
        ..Tunables::of_profile(Profile::Linux)
    };
    rig.mm.set_tunables(t).unwrap();
    let at = rig.mmap(8 * BLOCK, 12 * BLOCK);
    rig.advise(at, 12 * BLOCK, Advice::HugePage);
    rig.charge.set_max(rig.charge.usage() + 2 * BLOCK);
    for i in 0..12 {
        rig.fault(at.add(i * BLOCK), true).unwrap();
        rig.verify(&i);
    }
    let (tries, failures) = (rig.stat(Item::CompactStall), rig.stat(Item::CompactFail));
    assert!((1..=4).contains(&tries), "{tries}");
    assert_eq!(tries, failures);
    assert_eq!(rig.stat(Item::CompactSuccess), 0);
}

#[test]
fn r97_rights_and_lazy_pages_survive_a_move() {
    let rig = rig(8, 0);
    let start = rig.mmap(0, 4);
    (0..4).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.mm.mprotect(rig.space, start, 2, Prot::R).unwrap();
    rig.mm
        .mprotect(rig.space, start.add(1), 1, Prot::NONE)
        .unwrap();
    rig.advise(start.add(3), 1, Advice::Free);
    for i in 0..4 {
        rig.mm.migrate_page(rig.space, start.add(i), true).unwrap();
    }
    assert!(rig.fault(start, true).is_err());
    assert!(rig.holds(start, byte_of(0)));
    assert!(rig.fault(start.add(1), false).is_err());
    rig.mm.mprotect(rig.space, start, 2, Prot::RW).unwrap();
    (0..3).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    rig.write(start.add(3), 9);
    rig.mm.reclaim(4);
    assert!(rig.holds(start.add(3), 9));
    rig.verify(&"rights");
}
