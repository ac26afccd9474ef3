//! Page-out by advice, beside reclaim.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{Advice, Item, Profile, SizeMode, Sizes, ThpMode, Tunables, Vpn};

/// Huge pages with zeros and without, small pages of bytes and of zeros.
fn mixed() -> (Rig, Vpn) {
    let t = Tunables {
        shrink_underused: false,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    let start = rig.huge(0, 0..100);
    rig.huge(BLOCK, 0..BLOCK);
    rig.huge(2 * BLOCK, [511]);
    let small = rig.mmap(3 * BLOCK, 64);
    rig.advise(small, 64, Advice::NoHugePage);
    for i in 0..64 {
        rig.write(small.add(i), if i % 2 == 0 { byte_of(i) } else { 0 });
    }
    (rig, start)
}

/// Who pages out.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Advice,
    Direct,
    Background,
}

#[test]
fn r97_r110_r111_page_out_by_advice_does_what_background_and_direct_reclaim_do() {
    let fates = [By::Advice, By::Direct, By::Background].map(|by| {
        let (rig, start) = mixed();
        match by {
            By::Advice => rig.advise(start, 3 * BLOCK + 64, Advice::PageOut),
            // The second chance of what was just used takes rounds.
            By::Direct => while rig.mm.reclaim(10_000) > 0 {},
            By::Background => {
                rig.charge.set_high(0);
                while rig.mm.reclaim_background() {}
                rig.charge.set_high(u64::MAX);
            }
        }
        let stolen = [Item::PgstealDirect, Item::PgstealKswapd].map(|item| rig.stat(item) > 0);
        assert_eq!(stolen, [by == By::Direct, by == By::Background]);
        assert_eq!(rig.resident(), 0, "{by:?}");
        let counted = [
            Item::Pswpout,
            Item::SwpoutZero,
            Item::ThpSwpout,
            Item::ThpSplitPage,
            Item::ThpSplitUnmap,
            Item::ThpSplitFree,
            Item::ThpUnderusedSplitPage,
            Item::NrSwapped,
            Item::NrZero,
        ];
        let counted = counted.map(|item| (item.name(), rig.stat(item)));
        // Of what holds zeros nothing was copied on the way.
        let moved = rig.model.counters();
        assert!(moved.copied <= rig.stat(Item::Pswpout), "{moved:?}");
        rig.verify(&by);
        for (at, live) in [(0, 100), (BLOCK, BLOCK), (2 * BLOCK, 0)] {
            for i in 0..BLOCK {
                let used = i < live || live == 0 && i == 511;
                let byte = if used { byte_of(i) } else { 0 };
                assert!(rig.holds(start.add(at + i), byte), "page {at} + {i}");
            }
        }
        (counted, moved.copied)
    });
    assert_eq!(fates[0], fates[1]);
    assert_eq!(fates[0], fates[2]);
    let stored = fates[0].0[0].1;
    assert_eq!(stored, 100 + BLOCK + 1 + 32);
}

#[test]
fn page_out_says_how_many_pages_came_free_and_counts_huge_pages_that_were_stored() {
    let (rig, start) = mixed();
    let out = |at: u64, pages: u64| rig.mm.page_out(rig.space, start.add(at), pages).unwrap();
    assert_eq!(out(3 * BLOCK, 64), 64);
    assert_eq!((out(3 * BLOCK, 64), rig.stat(Item::ThpSwpout)), (0, 0));
    assert_eq!((out(BLOCK, BLOCK), rig.stat(Item::ThpSwpout)), (BLOCK, 1));
    // One of zeros goes and is not stored.
    let zeros = rig.huge(4 * BLOCK, []);
    assert_eq!(rig.mm.page_out(rig.space, zeros, BLOCK).unwrap(), BLOCK);
    assert_eq!(rig.stat(Item::ThpSwpout), 1);
    // Of one that the store takes in part, what it has taken.
    let part = rig.huge(5 * BLOCK, 0..BLOCK);
    (0..12).for_each(|i| rig.write(part.add(i), 0xee));
    assert_eq!(rig.mm.page_out(rig.space, part, BLOCK).unwrap(), BLOCK - 12);
    rig.verify(&"paged out");
}

#[test]
fn a_page_that_is_pinned_stays_and_the_rest_of_its_folio_goes() {
    let t = Tunables {
        thp: ThpMode::Never,
        sizes: Sizes::NEVER.with(4, SizeMode::Always),
        fault_max: 1 << 20,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    let start = rig.mmap(0, 16);
    (0..16).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert_eq!(rig.folio(start).order, 4);
    rig.model.pin(rig.space, start.add(5));
    assert_eq!(rig.mm.page_out(rig.space, start, 16).unwrap(), 15);
    let there = |i: &u64| rig.model.translation(rig.space, start.add(*i)).is_some();
    assert_eq!((0..16).filter(there).collect::<Vec<_>>(), [5]);
    rig.verify(&"paged out");
    (0..16).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
}

#[test]
fn r136_a_page_whose_memory_has_failed_is_not_read_to_be_paged_out() {
    let (rig, start) = mixed();
    for (at, pages) in [(BLOCK, BLOCK), (3 * BLOCK + 8, 1)] {
        let page = start.add(at);
        assert!(rig.mm.poison(rig.folio(page.add(pages / 2)).frame));
        let (read, order) = (rig.model.counters().scanned_bytes, rig.folio(page).order);
        assert_eq!(rig.mm.page_out(rig.space, page, pages).unwrap(), 0);
        assert_eq!(rig.model.counters().scanned_bytes, read);
        assert_eq!(rig.folio(page).order, order);
    }
    assert_eq!(rig.stat(Item::NrSwapped), 0);
    rig.verify(&"bad frames");
}
