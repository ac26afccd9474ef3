//! Groups: each has a limit of its own, and one may be several managers (processes).

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of, tunables};
use deckle_mm::{Advice, Charge, Item, Profile, ThpMode, Tunables};
use deckle_model::ModelCharge;
use std::sync::{Arc, Mutex};

/// Four huge pages of each process, with ten pages in use.
const HUGE: u64 = 4;
const LIVE: u64 = 10;

/// A process with underused huge pages.
fn process(charge: &ModelCharge, seed: u64) -> Arc<Rig> {
    let rig = Rig::in_group(charge.clone(), 64, 1, seed, true, tunables(409));
    for k in 0..HUGE {
        rig.huge(k * BLOCK, 0..LIVE);
    }
    Arc::new(rig)
}

/// Small pages, read back one by one.
fn small() -> Tunables {
    Tunables {
        thp: ThpMode::Never,
        fault_max: 0,
        page_cluster: 0,
        ..Tunables::of_profile(Profile::Deckle)
    }
}

/// What reclaim has done to a process: looked at in its queue, split, scanned, stored.
fn done_to(rig: &Rig) -> [u64; 5] {
    let items = [
        Item::ThpUnderusedScan,
        Item::ThpUnderusedSplitPage,
        Item::PgscanDirect,
        Item::PgscanKswapd,
        Item::Pswpout,
    ];
    items.map(|item| rig.stat(item))
}

/// Two groups: one of two processes, one of a third. Each limit is met in turn.
#[test]
fn r117_a_limit_scans_the_queues_of_its_own_group_and_no_other() {
    let (ours, theirs) = (ModelCharge::unlimited(), ModelCharge::unlimited());
    let (first, second) = (process(&ours, 1), process(&ours, 2));
    let other = process(&theirs, 3);
    let asked = Arc::downgrade(&second);
    ours.set_elsewhere(move |pages| asked.upgrade().is_some_and(|rig| rig.mm.reclaim(pages) > 0));
    assert_eq!(ours.usage(), 2 * HUGE * BLOCK);
    assert_eq!(theirs.usage(), HUGE * BLOCK);

    // The group of two is at its limit. Who meets it scans its own queue first, then asks the
    // other one of its group, as the memory of both is the group's.
    ours.set_max(ours.usage());
    let zeros = HUGE * (BLOCK - LIVE);
    let own = first.mmap(HUGE * BLOCK, zeros);
    first.write(own, 1);
    assert!(first.stat(Item::ThpUnderusedSplitPage) > 0);
    assert_eq!(done_to(&second), [0; 5]);
    assert_eq!(done_to(&other), [0; 5]);
    // Nothing of the first can be stored any more, so that the second has to give.
    let (queued, before) = (other.mm.queued(), theirs.usage());
    for i in 0..zeros {
        first.write(own.add(i), 0xee);
    }
    let mut i = 0;
    let more = first.mmap(HUGE * BLOCK + zeros, 2 * BLOCK);
    while second.stat(Item::ThpUnderusedSplitPage) == 0 {
        assert!(i < 2 * BLOCK, "the second process was never asked");
        first.write(more.add(i), 0xee);
        i += 1;
    }
    assert!(ours.usage() <= ours.max());
    assert_eq!((first.mm.queued(), other.mm.queued()), (0, queued));
    assert_eq!(done_to(&other), [0; 5]);
    assert_eq!(theirs.usage(), before);

    // The other group meets its own limit: the first two are left alone.
    let untouched = (done_to(&first), done_to(&second), ours.usage());
    theirs.set_max(theirs.usage());
    let own = other.mmap(HUGE * BLOCK, 16);
    other.write(own, 1);
    assert!(other.stat(Item::ThpUnderusedSplitPage) > 0);
    assert_eq!((done_to(&first), done_to(&second), ours.usage()), untouched);

    for (rig, who) in [(&first, "first"), (&second, "second")] {
        rig.verify_in_group(&who);
    }
    other.verify(&"other");
    ours.set_max(u64::MAX);
    for rig in [&first, &second, &other] {
        for k in 0..HUGE * BLOCK {
            let (i, page) = (k % BLOCK, super::common::BASE.add(k));
            let byte = if i < LIVE { byte_of(i) } else { 0 };
            assert!(rig.holds(page, byte), "page {k}");
        }
    }
}

/// A process of which so many pages per cent were read back of what was evicted asks one whose
/// pages stay away before it takes its own, from ten on (half, as nothing came back before).
#[test]
fn who_evicts_what_comes_back_asks_a_colder_process_before_it_takes_its_own() {
    for (back, percent, colder) in [(90, 9, true), (100, 10, true), (100, 10, false)] {
        let ours = ModelCharge::unlimited();
        let first = Rig::in_group(ours.clone(), 64, 1, 1, true, small());
        let second = Arc::new(Rig::in_group(ours.clone(), 64, 1, 2, true, small()));
        let start = first.mmap(0, BLOCK);
        (0..500).for_each(|i| first.write(start.add(i), byte_of(i)));
        first.advise(start, 500, Advice::PageOut);
        (0..back).for_each(|i| assert!(first.holds(start.add(i), byte_of(i))));
        assert_eq!(first.mm.refault_percent(), percent);
        let theirs = second.mmap(0, BLOCK);
        (0..BLOCK).for_each(|i| second.write(theirs.add(i), byte_of(i)));

        let (asked, whom) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&second));
        let told = asked.clone();
        ours.set_colder(move |pages, percent| {
            told.lock().unwrap().push((pages, percent));
            colder && whom.upgrade().is_some_and(|rig| rig.mm.reclaim(pages) > 0)
        });
        ours.set_max(ours.usage());
        first.write(start.add(500), 1);
        let asks = percent >= 10;
        let should = if asks { vec![(32, percent)] } else { vec![] };
        assert_eq!(*asked.lock().unwrap(), should);
        let gave = [&first, &*second].map(|rig| rig.stat(Item::PgstealDirect) > 0);
        assert_eq!(gave, [!(asks && colder), asks && colder]);
        // So does its background.
        ours.set_high(ours.usage() - 1);
        first.mm.reclaim_background();
        assert_eq!(first.stat(Item::PgstealKswapd) > 0, !(asks && colder));
        first.verify_in_group(&percent);
        second.verify_in_group(&percent);
    }
}
