//! Underused huge pages: who is looked at, who is taken apart, what becomes of the pages.

use super::common::hand::{BLOCK, intact, shrink, tunables};
use super::common::{BASE, Rig};
use deckle_mm::{
    Advice, Charge, FaultError, Item, Machine, Profile, Served, Site, SizeItem, Sizes, SplitError,
    SplitFlags, SplitMode, ThpMode, Tunables,
};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn rig(t: Tunables) -> Rig {
    Rig::new(64, 1, 1, true, t)
}

#[test]
fn r116_every_huge_page_is_queued_at_birth_and_nothing_else() {
    let rig = rig(tunables(409));
    for k in 0..3 {
        let huge = rig.huge(k * BLOCK, 0..4);
        assert!(rig.folio(huge).queued && !rig.folio(huge).partial);
        assert_eq!(rig.mm.queued(), k + 1);
    }
    let small = rig.mmap(3 * BLOCK, BLOCK);
    let t = Tunables {
        thp: ThpMode::Madvise,
        ..rig.mm.tunables()
    };
    rig.mm.set_tunables(t).unwrap();
    rig.write(small, 1);
    assert_eq!((rig.folio(small).order, rig.mm.queued()), (4, 3));
    let t = Tunables {
        sizes: Sizes::NEVER,
        ..t
    };
    rig.mm.set_tunables(t).unwrap();
    rig.write(small.add(100), 1);
    assert_eq!((rig.folio(small.add(100)).order, rig.mm.queued()), (0, 3));
    // Not counted as deferred: nothing was unmapped.
    assert_eq!(rig.stat(Item::ThpDeferredSplitPage), 0);
    // A huge page that went out leaves the queue.
    rig.mm.page_out(rig.space, BASE, BLOCK).unwrap();
    assert_eq!(rig.mm.queued(), 2);
    rig.verify(&"queueing");
}

#[test]
fn r117_a_limit_runs_the_shrinker_before_anything_is_stored() {
    let rig = rig(tunables(409));
    for k in 0..4 {
        rig.huge(k * BLOCK, 0..10);
    }
    rig.charge.set_max(4 * BLOCK);
    // A fault over the limit.
    let small = rig.mmap(4 * BLOCK, 16);
    rig.write(small, 1);
    assert!(rig.stat(Item::ThpUnderusedSplitPage) > 0);
    assert_eq!(rig.stat(Item::Pswpout), 0);
    rig.verify(&"limit");
}

#[test]
fn r118_r119_the_threshold_is_exact_and_the_scan_ends_when_it_is_certain() {
    for max_none in [0, 1, 64, 255, 409, 450, 510, 511] {
        // Zeros first, or filled pages first; so many zeros.
        for zeros in [max_none, max_none + 1].into_iter().filter(|z| *z <= 512) {
            for zeros_first in [true, false] {
                let filled = BLOCK - zeros;
                let live = move |i: u64| match zeros_first {
                    true => i >= zeros,
                    false => i < filled,
                };
                let rig = rig(tunables(max_none as u16));
                let start = rig.huge(0, (0..BLOCK).filter(|i| live(*i)));
                let underused = zeros > max_none;
                let freed = shrink(&rig);
                assert_eq!(freed, if underused { zeros } else { 0 });
                assert_eq!(
                    rig.folio_at(start.add(BLOCK - 1))
                        .is_some_and(|f| f.order == 9),
                    !underused
                );
                let split = u64::from(underused);
                assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), split);
                let before = if zeros_first { 0 } else { filled };
                let looked = match underused {
                    // All that was filled, then one zero more than the threshold.
                    true => before + max_none + 1,
                    false if zeros_first => zeros + BLOCK - max_none,
                    false => BLOCK - max_none,
                };
                assert_eq!(rig.stat(Item::ThpUnderusedScan), looked);
                intact(&rig, start, live);
                rig.verify(&(max_none, zeros, zeros_first));
            }
        }
    }
}

#[test]
fn r120_at_511_a_page_of_nothing_but_zeros_goes_and_512_is_no_threshold() {
    for profile in [Profile::Deckle, Profile::Linux] {
        let t = Tunables {
            max_ptes_none: 511,
            ..Tunables::of_profile(profile)
        };
        let rig = rig(t);
        rig.huge(0, []);
        rig.huge(BLOCK, [300]);
        // Linux 6.18 takes it as off.
        let freed = if profile == Profile::Deckle { BLOCK } else { 0 };
        assert_eq!(shrink(&rig), freed);
        rig.verify(&profile);
    }
    for n in 0..=511 {
        assert!(tunables(n).validate().is_ok());
    }
    assert!(tunables(512).validate().is_err());
}

#[test]
fn r121_r104_dropped_pages_are_zero_pages_that_may_be_read_and_not_written() {
    let rig = rig(tunables(409));
    let start = rig.huge(0, 0..10);
    assert_eq!(shrink(&rig), 502);
    // Armed or not, they are not missing.
    for armed in [false, true] {
        if armed {
            rig.mm.uffd_register(rig.space, start, BLOCK).unwrap();
        }
        let at = if armed { 400 } else { 100 };
        assert!(matches!(
            rig.fault(start.add(at), false),
            Ok(Served::Mapped(_))
        ));
        let shown = rig.model.translation(rig.space, start.add(at)).unwrap();
        assert_eq!(shown.frame, None);
        let write = rig.model.store(0, rig.space, start.add(at).addr(), &[1]);
        assert!(write.is_err(), "the zero page was written");
        rig.verify(&armed);
    }
    intact(&rig, start, |i| i < 10);
    rig.verify(&"read");
}

#[test]
fn r122_where_the_zero_page_is_forbidden_pages_of_zeros_stay() {
    let rig = rig(tunables(0));
    rig.mm.forbid_zero_page(rig.space).unwrap();
    let start = rig.huge(0, 0..10);
    assert!(rig.mm.forbid_zero_page(rig.space).is_err(), "too late");
    assert_eq!(shrink(&rig), 0);
    assert_eq!(rig.folio(start).order, 9);
    // Evicted they are stored as they are, and come back.
    rig.mm.page_out(rig.space, start, BLOCK).unwrap();
    assert_eq!(rig.stat(Item::Pswpout), BLOCK);
    intact(&rig, start, |i| i < 10);
    // A read of a hole takes a page.
    let other = rig.mmap(BLOCK, BLOCK);
    assert!(rig.holds(other.add(3), 0));
    let shown = rig.model.translations(rig.space);
    assert!(shown.iter().all(|(_, t)| t.frame.is_some()));
    assert_eq!(rig.stat(Item::NrZero), 0);
    rig.verify(&"forbidden");
}

#[test]
fn r123_showing_a_zero_page_flushes_nothing() {
    let rig = rig(tunables(409));
    let start = rig.huge(0, 0..10);
    // The CPU has the huge mapping in its TLB; the shrinker takes it away with a flush.
    rig.read(start.add(300));
    let before = rig.model.counters().flushes;
    assert_eq!(shrink(&rig), 502);
    let after = rig.model.counters().flushes;
    assert!(after > before);
    intact(&rig, start, |i| i < 10);
    assert_eq!(rig.model.counters().flushes, after);
    // Writers on other CPUs lose nothing meanwhile.
    for seed in 1..40 {
        let rig = Rig::new(64, 2, seed, true, tunables(409));
        let start = rig.huge(0, 0..10);
        let jobs = vec![
            deckle_model::cpu(|| {
                for i in (0..BLOCK).step_by(37) {
                    rig.write_on(0, start.add(i), 77);
                    let mut byte = [0];
                    while let Err(f) = rig.model.load(0, rig.space, start.add(i).addr(), &mut byte)
                    {
                        rig.fault(f.page, f.write).unwrap();
                    }
                    assert_eq!(byte, [77], "page {i}");
                }
            }),
            deckle_model::cpu(|| {
                for _ in 0..4 {
                    rig.mm.shrink_underused(10, 10_000);
                    rig.mm.reclaim(64);
                }
            }),
        ];
        if let Err(e) = rig.machine.run(jobs) {
            panic!("seed {seed}: {e}");
        }
        (0..BLOCK)
            .step_by(37)
            .for_each(|i| assert!(rig.holds(start.add(i), 77)));
        rig.verify(&seed);
    }
}

#[test]
fn r124_the_resident_set_shrinks_by_each_dropped_page_and_contents_stay() {
    for split_mode in [SplitMode::Shatter, SplitMode::InPlace] {
        let t = Tunables {
            split_mode,
            ..tunables(409)
        };
        let rig = rig(t);
        let start = rig.huge(0, [5, 77]);
        for k in 1..5 {
            rig.huge(k * BLOCK, []);
        }
        assert_eq!(rig.resident(), 5 * BLOCK);
        assert_eq!(shrink(&rig), 5 * BLOCK - 2);
        assert_eq!(rig.resident(), 2);
        assert_eq!(rig.charge.usage(), 2);
        assert_eq!(rig.stat(Item::ThpSplitUnmap), 5 * BLOCK - 2);
        assert_eq!(rig.stat(Item::NrThp), 0);
        intact(&rig, start, |i| i == 5 || i == 77);
        assert_eq!(rig.resident(), 2, "reading took pages");
        rig.verify(&split_mode);
    }
}

#[test]
fn r125_postcopy_hears_of_the_discarded_pages_and_of_no_other() {
    let rig = rig(tunables(409));
    let start = rig.mmap(0, 4 * BLOCK);
    let received = |i: u64| i.is_multiple_of(9);
    let pass = |rig: &Rig| {
        rig.mm.shrink_underused(100, 100_000);
        rig.mm.reclaim(300);
        rig.verify(&"a pass");
    };
    // Before the switch: pages come in, half of them zeros.
    for i in (0..4 * BLOCK).filter(|i| received(*i)) {
        rig.write(start.add(i), if i.is_multiple_of(2) { 0 } else { 7 });
    }
    pass(&rig);
    rig.advise(start, 4 * BLOCK, Advice::NoHugePage);
    pass(&rig);
    // Of every 64 pages eight are to be sent again.
    let discarded = |i: u64| i % 64 < 8;
    for i in (0..4 * BLOCK).step_by(64) {
        rig.advise(start.add(i), 8, Advice::DontNeed);
    }
    pass(&rig);
    rig.mm.uffd_register(rig.space, start, 4 * BLOCK).unwrap();
    pass(&rig);
    for i in 0..4 * BLOCK {
        let heard = matches!(rig.fault(start.add(i), false), Err(FaultError::ToProgram));
        if received(i) && !discarded(i) {
            assert!(!heard, "page {i} would be asked for again, for ever");
            let byte = if i.is_multiple_of(2) { 0 } else { 7 };
            assert!(rig.holds(start.add(i), byte), "page {i}");
        }
        if discarded(i) {
            assert!(heard, "page {i} is not missed");
        }
        if i % 700 == 0 {
            pass(&rig);
        }
    }
    rig.verify(&"the end");
}

#[test]
fn r130_who_is_in_use_is_looked_at_once() {
    let rig = rig(tunables(409));
    let used = rig.huge(0, 0..200);
    let pinned = rig.huge(BLOCK, [0]);
    rig.model.pin(rig.space, pinned);
    assert_eq!(shrink(&rig), 0);
    assert_eq!(rig.mm.queued(), 0);
    let scanned = rig.stat(Item::ThpUnderusedScan);
    assert_eq!(scanned, 103);
    rig.model.unpin(rig.space, pinned);
    assert_eq!(shrink(&rig), 0);
    assert_eq!(rig.stat(Item::ThpUnderusedScan), scanned);
    // Mapped as before, and still huge.
    for page in [used, pinned] {
        assert!(rig.model.translation(rig.space, page).unwrap().huge);
    }
    // Unless a part of it goes.
    rig.advise(used, 8, Advice::DontNeed);
    assert_eq!(rig.stat(Item::ThpSplitPage), 1);
    rig.verify(&"once");
}

#[test]
fn r131_huge_pages_that_go_while_the_shrinker_is_at_work_leave_the_queue_exact() {
    // Seeds in which the program was faster with some of its pages, and slower with others.
    let mut met = 0;
    for seed in 1..80 {
        let rig = Rig::new(64, 2, seed, true, tunables(409));
        rig.machine.set_switch_of([1, 4, 16][seed as usize % 3]);
        let ready = AtomicBool::new(false);
        let shrinker = || {
            for k in 0..6 {
                rig.huge(k * BLOCK, 0..10);
            }
            ready.store(true, SeqCst);
            shrink(&rig);
        };
        let program = || {
            while !ready.load(SeqCst) {
                rig.machine.preempt(Site::Relock);
            }
            for k in (1..6).rev() {
                (0..seed % 20 * 5).for_each(|_| rig.machine.preempt(Site::Relock));
                match seed % 2 {
                    0 => rig.munmap(BASE.add(k * BLOCK), BLOCK),
                    _ => rig.advise(BASE.add(k * BLOCK), BLOCK, Advice::DontNeed),
                }
            }
        };
        let jobs = vec![deckle_model::cpu(shrinker), deckle_model::cpu(program)];
        if let Err(e) = rig.machine.run(jobs) {
            panic!("seed {seed}: {e}");
        }
        let splits = rig.stat(Item::ThpUnderusedSplitPage);
        met += u32::from((2..6).contains(&splits));
        // What was given up is free, and of the first block ten pages are left.
        assert_eq!(
            (rig.mm.queued(), rig.charge.usage()),
            (0, 10),
            "seed {seed}"
        );
        assert_eq!(rig.stat(Item::NrThp), 0);
        intact(&rig, BASE, |i| i < 10);
        rig.verify(&seed);
    }
    assert!(met > 0);
}

#[test]
fn r133_splits_for_underuse_are_counted_apart() {
    let rig = rig(tunables(409));
    let start = rig.huge(0, 0..10);
    rig.huge(BLOCK, 0..10);
    rig.mm
        .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO)
        .unwrap();
    assert_eq!(rig.stat(Item::ThpSplitPage), 1);
    assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 0);
    shrink(&rig);
    assert_eq!(rig.stat(Item::ThpSplitPage), 2);
    assert_eq!(rig.stat(Item::ThpUnderusedSplitPage), 1);
    assert_eq!(rig.mm.stats().size(9, SizeItem::Split), 2);
    assert_eq!(rig.stat(Item::ThpDeferredSplitPage), 0);
    rig.verify(&"counting");
}

#[test]
fn r134_switched_off_new_huge_pages_are_not_queued_and_parts_still_are() {
    assert!(Tunables::default().shrink_underused);
    let t = Tunables {
        shrink_underused: false,
        ..tunables(409)
    };
    let rig = rig(t);
    rig.huge(0, 0..10);
    assert_eq!((rig.mm.queued(), shrink(&rig)), (0, 0));
    let small = rig.mmap(BLOCK, BLOCK);
    let t = Tunables {
        thp: ThpMode::Madvise,
        ..t
    };
    rig.mm.set_tunables(t).unwrap();
    rig.write(small, 1);
    rig.munmap(small.add(1), 3);
    assert_eq!((rig.mm.queued(), shrink(&rig)), (1, 3));
    // On again, for those that come from now on.
    rig.mm.set_tunables(tunables(409)).unwrap();
    rig.huge(2 * BLOCK, 0..10);
    assert_eq!((rig.mm.queued(), shrink(&rig)), (1, 502));
    rig.verify(&"switching");
}

#[test]
fn r139_locked_huge_pages_are_passed_over_unseen() {
    let rig = rig(tunables(409));
    let start = rig.huge(0, 0..10);
    rig.mm.mlock(rig.space, start, BLOCK).unwrap();
    let unmapped = rig.model.counters().unmapped;
    assert_eq!(shrink(&rig), 0);
    assert_eq!(rig.stat(Item::ThpUnderusedScan), 0);
    assert_eq!(rig.model.counters().unmapped, unmapped);
    assert_eq!(rig.folio(start).order, 9);
    // Unlocked it is a huge page like any other.
    rig.mm.munlock(rig.space, start, BLOCK).unwrap();
    assert_eq!(shrink(&rig), 502);
    rig.verify(&"locked");
}

#[test]
fn r141_r142_as_many_frames_stay_as_pages_are_in_use_and_the_block_may_go_back_whole() {
    for (split_mode, whole) in [(SplitMode::Shatter, true), (SplitMode::InPlace, false)] {
        let t = Tunables {
            split_mode,
            ..tunables(409)
        };
        let rig = rig(t);
        let start = rig.huge(0, (0..10).map(|i| 50 * i));
        let old = rig.folio(start).head;
        assert_eq!(shrink(&rig), 502);
        assert_eq!((rig.resident(), rig.charge.usage()), (10, 10));
        for i in (0..10).map(|i| 50 * i) {
            let folio = rig.folio(start.add(i));
            assert_eq!((folio.order, folio.refs), (0, 1));
            let inside = (old.0..old.0 + 512).contains(&folio.frame.0);
            assert_eq!(inside, !whole, "{split_mode:?} page {i}");
        }
        intact(&rig, start, |i| i.is_multiple_of(50) && i < 500);
        rig.verify(&split_mode);
    }
}

#[test]
fn r147_a_write_beside_what_the_shrinker_left_does_not_inflate() {
    for profile in [Profile::Deckle, Profile::Linux] {
        let t = Tunables {
            max_ptes_none: 409,
            sizes: Tunables::of_profile(Profile::Deckle).sizes,
            ..Tunables::of_profile(profile)
        };
        let rig = rig(t);
        let start = rig.huge(0, 0..10);
        shrink(&rig);
        let used = rig.charge.usage();
        for (n, i) in [100, 101, 300, 511].into_iter().enumerate() {
            rig.write(start.add(i), 1);
            assert_eq!(rig.folio(start.add(i)).order, 0);
            assert_eq!(rig.charge.usage(), used + n as u64 + 1);
        }
        rig.verify(&profile);
    }
}

#[test]
fn r136_a_page_whose_memory_has_failed_is_neither_read_nor_split() {
    for split_mode in [SplitMode::Shatter, SplitMode::InPlace] {
        let t = Tunables {
            split_mode,
            thp_waste_max: 0,
            ..tunables(409)
        };
        let rig = rig(t);
        let start = rig.huge(0, 0..10);
        let bad = rig.folio(start.add(300)).frame;
        assert!(rig.mm.poison(bad));
        assert_eq!((shrink(&rig), rig.mm.trim().freed), (0, 0));
        let done = rig
            .mm
            .split_page(rig.space, start, 0, SplitFlags::DROP_ZERO);
        assert_eq!(done, Err(SplitError::Bad));
        assert_eq!(rig.model.counters().scanned_bytes, 0);
        assert_eq!(rig.folio(start).order, 9);
        // The others are.
        rig.huge(BLOCK, 0..10);
        assert_eq!(shrink(&rig), 502);
        rig.verify(&split_mode);
    }
}
