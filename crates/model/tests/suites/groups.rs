//! Groups: each has a limit of its own, and one may be several managers (processes).

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of, tunables};
use deckle_mm::{Charge, Item};
use deckle_model::ModelCharge;
use std::sync::Arc;

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
