//! What profile `deckle` does otherwise than Linux, where no other suite has it: the rows of
//! docs/profiles.md.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of, intact};
use deckle_mm::space::remap::Remap;
use deckle_mm::{Advice, Charge, FaultError, Item, Profile, Prot, SizeMode, Sizes, Tunables, Vpn};

fn both() -> [Tunables; 2] {
    [Profile::Deckle, Profile::Linux].map(Tunables::of_profile)
}

#[test]
fn r40_r59_a_huge_page_comes_where_a_read_has_left_a_table_in_profile_deckle_alone() {
    for (t, order) in both().into_iter().zip([9, 0]) {
        let rig = Rig::new(64, 1, 1, true, t);
        let start = rig.mmap(0, 2 * BLOCK);
        // Where no huge page may be, a read leaves single pages of zeros.
        rig.advise(start, BLOCK, Advice::NoHugePage);
        rig.read(start.add(77));
        rig.advise(start, BLOCK, Advice::HugePage);
        rig.write(start.add(100), 1);
        assert_eq!(rig.folio(start.add(100)).order, order, "{:?}", t.profile);
        // Where there is none, both have one.
        rig.write(start.add(BLOCK), 1);
        assert_eq!(rig.folio(start.add(BLOCK)).order, 9);
        rig.verify(&t.profile);
    }
}

#[test]
fn r40_r59_a_read_of_an_empty_block_is_a_huge_page_of_zeros_in_profile_linux() {
    let t = Tunables::of_profile(Profile::Linux);
    let rig = Rig::new(64, 1, 1, true, t);
    let start = rig.mmap(0, 3 * BLOCK + 100);
    let shown = || rig.model.translations(rig.space).len() as u64;
    rig.read(start.add(77));
    assert_eq!((shown(), rig.resident()), (BLOCK, 0));
    // The next write takes its place, whatever may be had by now, with a huge page.
    rig.advise(start, BLOCK, Advice::NoHugePage);
    rig.write(start.add(100), 1);
    assert_eq!(rig.folio(start.add(100)).order, 9);
    assert!(rig.holds(start.add(100), 1) && rig.holds(start.add(77), 0));
    // Of one that was cut each page is copied alone.
    let second = start.add(BLOCK);
    rig.read(second);
    rig.mm.mprotect(rig.space, second, 7, Prot::R).unwrap();
    rig.mm.mprotect(rig.space, second, 7, Prot::RW).unwrap();
    rig.write(second.add(9), 2);
    assert_eq!(rig.folio(second.add(9)).order, 0);
    // So is one that came page by page, and one of a block that is not all of the mapping's.
    let third = start.add(2 * BLOCK);
    rig.advise(third, BLOCK, Advice::NoHugePage);
    (0..BLOCK).for_each(|i| assert_eq!(rig.read(third.add(i)), [0; 4096]));
    rig.advise(third, BLOCK, Advice::HugePage);
    rig.write(third, 3);
    assert_eq!(rig.folio(third).order, 0);
    let before = shown();
    rig.read(start.add(3 * BLOCK + 7));
    assert_eq!(shown(), before + 1);
    rig.verify(&"huge pages of zeros");
}

#[test]
fn r40_r59_a_huge_page_of_zeros_moves_whole_and_is_cut_by_advice_in_profile_linux() {
    let rig = Rig::new(64, 1, 1, true, Tunables::of_profile(Profile::Linux));
    let start = rig.mmap(0, 4 * BLOCK);
    let zeros = |at: Vpn| (0..BLOCK).for_each(|i| assert_eq!(rig.read(at.add(i)), [0; 4096]));
    let order = |at: Vpn| {
        rig.write(at.add(9), 1);
        rig.folio(at.add(9)).order
    };
    let to = |from: Vpn, pages: u64, at: Vpn| {
        let moved = rig
            .mm
            .mremap(rig.space, from, pages, pages, Remap::Fixed(at));
        assert_eq!(moved, Ok(at));
    };
    // Moved to where a table can hold it whole it is one still, seen there or not.
    let far = start.add(8 * BLOCK);
    (0..4).for_each(|i| zeros(start.add(i * BLOCK)));
    to(start, BLOCK, far);
    zeros(far);
    assert_eq!(order(far), 9);
    to(start.add(BLOCK), BLOCK, far.add(BLOCK));
    assert_eq!(order(far.add(BLOCK)), 9);
    // At an odd place it is so many pages; and so is another that was at that place.
    let other = far.add(4 * BLOCK);
    rig.mmap(12 * BLOCK, 2 * BLOCK);
    zeros(other);
    to(start.add(2 * BLOCK), BLOCK, other.add(3));
    rig.mmap(12 * BLOCK, 3);
    zeros(other);
    assert_eq!(order(other), 0);
    // Two mappings have a part of it each for a time.
    let last = start.add(3 * BLOCK);
    rig.advise(last, BLOCK, Advice::HugePage);
    assert_eq!(order(last), 9);
    rig.munmap(last, BLOCK);
    rig.mmap(3 * BLOCK, BLOCK);
    zeros(last);
    rig.advise(last.add(100), 400, Advice::NoHugePage);
    rig.advise(last, BLOCK, Advice::HugePage);
    assert_eq!(order(last), 0);
    rig.verify(&"huge pages of zeros");
}

/// A huge page of which subpages 0 to 99 and 300 hold something, and a folio of 64 KiB of which
/// one does.
fn large() -> (Rig, Vpn, Vpn) {
    let t = Tunables::of_profile(Profile::Linux);
    let sizes = t.sizes.with(4, SizeMode::Always);
    let rig = Rig::new(64, 1, 1, false, Tunables { sizes, ..t });
    let start = rig.huge(0, (0..100).chain([300]));
    let small = rig.mmap(BLOCK, 64);
    rig.write(small.add(3), byte_of(3));
    assert_eq!(rig.folio(small).order, 4);
    (rig, start, small)
}

fn still_there(rig: &Rig, start: Vpn, small: Vpn) {
    intact(rig, start, |i| i < 100 || i == 300);
    assert!(rig.holds(small.add(3), byte_of(3)) && rig.holds(small.add(4), 0));
    rig.verify(&"large folios");
}

#[test]
fn r97_advice_on_a_part_of_a_large_folio_splits_it_in_profile_linux() {
    for advice in [Advice::Cold, Advice::Free, Advice::PageOut] {
        // All of them: whole they stay.
        if advice != Advice::PageOut {
            let (rig, start, small) = large();
            rig.advise(start, BLOCK, advice);
            rig.advise(small, 16, advice);
            assert_eq!((rig.folio(start).order, rig.folio(small).order), (9, 4));
            assert_eq!(rig.resident(), BLOCK + 16);
            still_there(&rig, start, small);
        }
        // A part of each, without a page that holds anything.
        let (rig, start, small) = large();
        rig.advise(start.add(400), 10, advice);
        rig.advise(small.add(15), 20, advice);
        assert_eq!(
            (rig.folio(start).order, rig.folio(small.add(3)).order),
            (0, 0)
        );
        assert_eq!(
            (rig.resident(), rig.charge.usage()),
            (102, 102),
            "{advice:?}"
        );
        assert_eq!(rig.stat(Item::NrZero), BLOCK + 16 - 102);
        still_there(&rig, start, small);
        // All of one that is of several mappings, each of which has a part.
        let (rig, start, small) = large();
        rig.advise(start.add(200), 50, Advice::NoHugePage);
        rig.advise(start, BLOCK, advice);
        assert_eq!((rig.folio(start).order, rig.resident()), (0, 101 + 16));
        still_there(&rig, start, small);
        // What a child of fork has, too, stays.
        let (rig, start, small) = large();
        if rig.fork() {
            rig.advise(start, 10, advice);
            rig.advise(small, 10, advice);
            assert_eq!((rig.folio(start).order, rig.folio(small).order), (9, 4));
            assert_eq!(rig.resident(), BLOCK + 16);
            rig.others_are_gone();
            still_there(&rig, start, small);
        }
    }
}

#[test]
fn r97_page_out_without_swap_splits_all_and_takes_what_was_given_up_in_profile_linux() {
    let (rig, start, small) = large();
    rig.advise(start, BLOCK, Advice::PageOut);
    rig.advise(small, 16, Advice::PageOut);
    assert_eq!(
        (rig.folio(start).order, rig.folio(small.add(3)).order),
        (0, 0)
    );
    assert_eq!(
        (rig.resident(), rig.stat(Item::NrZero)),
        (102, BLOCK + 16 - 102)
    );
    // A page of zeros is no large folio any more.
    rig.write(start.add(7), 0);
    rig.advise(start.add(7), 1, Advice::PageOut);
    assert_eq!(rig.resident(), 102);
    rig.write(start.add(7), byte_of(7));
    still_there(&rig, start, small);
    // What was given up goes, small or huge.
    let (rig, start, small) = large();
    rig.advise(start, BLOCK, Advice::Free);
    rig.advise(small, 16, Advice::Free);
    rig.advise(start, BLOCK + 16, Advice::PageOut);
    assert_eq!((rig.resident(), rig.charge.usage()), (0, 0));
    assert_eq!(rig.stat(Item::Pglazyfreed), BLOCK + 16);
    rig.verify(&"what was given up");
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
