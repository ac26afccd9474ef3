//! Forks of small and large folios, one step at a time.

use crate::cow::machine::{BASE, Bare};
use deckle_mm::{Advice, Charge, Item, Sizes, ThpMode};

fn fill(m: &Bare, pages: u64) {
    for i in 0..pages {
        m.write(m.space, BASE.add(i), (i as u8).wrapping_add(1));
    }
}

#[test]
fn r75_a_child_that_ends_leaves_the_parent_all_its_pages_without_a_copy() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        let m = Bare::simple(thp);
        m.map(0, 512);
        fill(&m, 16);
        let frames: Vec<_> = (0..16).map(|i| m.frame(m.space, BASE.add(i))).collect();
        let child = m.mm.fork(m.space).unwrap();
        m.verify(&"fork");
        assert_eq!(m.read(child, BASE.add(3))[0], 4);
        m.mm.destroy_space(child).unwrap();
        m.verify(&"the child's end");
        m.write(m.space, BASE.add(3), 99);
        let whole = if thp == ThpMode::Always { 512 } else { 16 };
        assert_eq!((m.get(Item::Pgcopy), m.get(Item::Pgreuse)), (0, whole));
        for i in 0..16 {
            let t = m.model.translation(m.space, BASE.add(i)).unwrap();
            assert!(!t.wp && t.frame == frames[i as usize], "page {i}: {t:?}");
        }
        m.verify(&"reuse");
    }
}

#[test]
fn each_side_writes_its_own() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        for parent_first in [true, false] {
            let m = Bare::simple(thp);
            m.map(0, 600);
            fill(&m, 40);
            m.write(m.space, BASE.add(550), 7);
            let child = m.mm.fork(m.space).unwrap();
            let (a, b) = match parent_first {
                true => (m.space, child),
                false => (child, m.space),
            };
            for i in 0..40 {
                m.write(a, BASE.add(i), 100 + i as u8);
                m.verify(&("write", i));
                assert_eq!(m.read(b, BASE.add(i))[0], i as u8 + 1);
                m.write(b, BASE.add(i), 200);
                assert_eq!(m.read(a, BASE.add(i))[0], 100 + i as u8);
                m.verify(&("both", i));
            }
            m.mm.destroy_space(a).unwrap();
            m.verify(&"end of one");
            for i in 0..40 {
                assert_eq!(m.read(b, BASE.add(i))[0], 200);
            }
            assert_eq!(m.read(b, BASE.add(550))[0], 7);
            m.mm.destroy_space(b).unwrap();
            m.verify(&"end of all");
            assert_eq!(m.charge.usage(), 0);
        }
    }
}

#[test]
fn stored_and_zero_pages_are_duplicated_and_each_side_reads_its_own() {
    for thp in [ThpMode::Never, ThpMode::Always] {
        let m = Bare::simple(thp);
        m.map(0, 512);
        fill(&m, 20);
        m.mm.madvise(m.space, BASE, 512, Advice::PageOut).unwrap();
        assert!(m.get(Item::NrSwapped) >= 20);
        m.verify(&"page out");
        let child = m.mm.fork(m.space).unwrap();
        m.verify(&"fork");
        for i in 0..20 {
            assert_eq!(m.read(child, BASE.add(i))[0], i as u8 + 1);
            m.write(child, BASE.add(i), 50);
            m.verify(&("in", i));
        }
        m.mm.destroy_space(child).unwrap();
        m.verify(&"child's end");
        for i in 0..20 {
            assert_eq!(m.read(m.space, BASE.add(i))[0], i as u8 + 1);
        }
        m.verify(&"parent in");
    }
}

#[test]
fn r103_what_is_reclaimed_leaves_each_space_that_shares_it() {
    for (thp, swap) in [
        (ThpMode::Never, true),
        (ThpMode::Always, true),
        (ThpMode::Never, false),
        (ThpMode::Always, false),
    ] {
        let t = deckle_mm::Tunables {
            thp,
            ..Default::default()
        };
        let m = Bare::new(32, 1, 1, swap, t);
        m.map(0, 512);
        fill(&m, 16);
        for i in 16..32 {
            m.write(m.space, BASE.add(i), 0);
        }
        let child = m.mm.fork(m.space).unwrap();
        let grandchild = m.mm.fork(child).unwrap();
        let all = [m.space, child, grandchild];
        let before: Vec<u64> = all.iter().map(|&s| m.mm.resident(s)).collect();
        m.verify(&"forks");
        m.mm.reclaim(600);
        m.verify(&"reclaim");
        let zeros = if thp == ThpMode::Always { 496 } else { 16 };
        for (i, &s) in all.iter().enumerate() {
            let now = m.mm.resident(s);
            let gone = if swap { zeros + 16 } else { zeros };
            assert_eq!(now, before[i] - gone, "{thp:?} swap {swap} space {i}");
            for p in 0..32 {
                let want = if p < 16 { p as u8 + 1 } else { 0 };
                assert_eq!(m.read(s, BASE.add(p))[0], want);
            }
            m.verify(&("read", i));
        }
        for s in all {
            m.mm.destroy_space(s).unwrap();
            m.verify(&"end");
        }
        assert_eq!(m.charge.usage(), 0);
    }
}

/// The store refuses two pages of a folio, of which the child has one no more.
#[test]
fn what_stays_of_a_shared_folio_is_shared_by_those_that_have_it_still() {
    let m = Bare::simple(ThpMode::Never);
    m.map(0, 16);
    fill(&m, 16);
    let refused = [3, 7];
    let refuse = |i| m.write(m.space, BASE.add(i), 0xee);
    refused.into_iter().for_each(refuse);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.munmap(child, BASE.add(3), 1).unwrap();
    m.mm.reclaim(64);
    assert_eq!((m.get(Item::NrSwapped), m.get(Item::NrAnon)), (28, 3));
    m.verify(&"reclaim");
    let stays = refused.map(|i| m.mm.folio_at(m.space, BASE.add(i)).unwrap());
    assert_eq!(stays.map(|f| (f.order, f.refs)), [(0, 1), (0, 2)]);
    for (i, copies) in [(3, 0), (7, 1)] {
        m.write(m.space, BASE.add(i), 9);
        assert_eq!(m.get(Item::Pgcopy), copies, "page {i}");
    }
    assert_eq!(m.read(child, BASE.add(7))[0], 0xee);
    m.verify(&"written");
}

#[test]
fn r79_a_pinned_page_stays_whose_neighbours_in_memory_and_in_the_program_go() {
    let m = Bare::simple(ThpMode::Never);
    let mut t = m.mm.tunables();
    t.sizes = Sizes::NEVER;
    m.mm.set_tunables(t).unwrap();
    m.map(0, 16);
    fill(&m, 16);
    let frames: Vec<_> = (0..16).map(|i| m.frame(m.space, BASE.add(i))).collect();
    let row = |i: &usize| frames[*i].map(|p| p.add(1)) == frames[i + 1];
    let before = (0..15).find(row).expect("no two frames in a row");
    let page = BASE.add(before as u64 + 1);
    let pin = m.mm.pin(m.space, page, true).unwrap();
    for advice in [Advice::Cold, Advice::Free, Advice::PageOut] {
        m.mm.madvise(m.space, BASE, 16, advice).unwrap();
        assert_eq!(m.frame(m.space, page), Some(pin.frame()), "{advice:?}");
        assert_eq!(m.frame(m.space, BASE.add(before as u64)), None);
        m.verify(&advice);
        m.read(m.space, BASE.add(before as u64));
    }
    m.mm.unpin(pin);
    assert_eq!(m.read(m.space, page)[0], before as u8 + 2);
    m.verify(&"unpinned");
}

#[test]
fn r91_of_a_huge_page_that_a_child_has_too_nothing_is_given_up() {
    let m = Bare::simple(ThpMode::Always);
    m.map(0, 512);
    fill(&m, 512);
    let child = m.mm.fork(m.space).unwrap();
    m.mm.madvise(m.space, BASE, 300, Advice::Free).unwrap();
    for i in [0, 299, 300, 511] {
        for space in [m.space, child] {
            let byte = (i as u8).wrapping_add(1);
            assert_eq!(m.read(space, BASE.add(i))[0], byte, "page {i}");
        }
    }
    m.mm.destroy_space(child).unwrap();
    m.verify(&"the child is gone");
}

/// A huge page is on the queue from birth; what it becomes when a part goes is a state of its own.
#[test]
fn r128_r133_a_queued_huge_page_that_loses_a_part_is_marked_and_counted_once() {
    let m = Bare::simple(ThpMode::Always);
    m.map(0, 512);
    fill(&m, 512);
    let folio = || m.mm.folio_at(m.space, BASE).unwrap();
    let stat = |item| m.mm.stats().get(item);
    assert!(folio().order == 9 && folio().queued && !folio().partial);
    // Somebody holds it, so that it cannot be taken apart at once.
    let pin = m.mm.pin(m.space, BASE, true).unwrap();
    for (gone, page) in [7, 8, 300].into_iter().enumerate() {
        m.mm.munmap(m.space, BASE.add(page), 1).unwrap();
        assert!(
            folio().order == 9 && folio().queued && folio().partial,
            "{gone}"
        );
        assert_eq!(m.mm.queued(), 1);
        assert_eq!(stat(Item::ThpDeferredSplitPage), 1);
        assert_eq!(stat(Item::NrAnonPartiallyMapped), 1);
        m.verify(&page);
    }
    // Not while it is held; then without a look at what it holds, and not for underuse.
    assert_eq!(m.mm.shrink_underused(10, 10), 0);
    assert!(folio().queued && folio().partial);
    m.mm.unpin(pin);
    assert_eq!(m.mm.shrink_underused(10, 10), 3);
    assert_eq!((m.mm.queued(), stat(Item::NrAnonPartiallyMapped)), (0, 0));
    assert_eq!(stat(Item::ThpUnderusedSplitPage), 0);
    assert_eq!(stat(Item::ThpUnderusedScan), 0);
    assert_eq!(m.charge.usage(), 509);
    m.verify(&"split");
}
