//! Parts of a folio that is split, and somebody who gets hold of one by its number.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::frame::FrameLookup;
use deckle_mm::{
    Charge, Machine, Pfn, Profile, Site, SizeMode, Sizes, SplitFlags, ThpMode, Tunables, Vpn,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Pages of the folio, and of each quarter of it. The second and the fourth are not in use.
const PAGES: u64 = 256;
const QUARTER: u64 = PAGES / 4;

fn folio(seed: u64) -> (Rig, Vpn) {
    let t = Tunables {
        thp: ThpMode::Never,
        sizes: Sizes::NEVER.with(8, SizeMode::Always),
        fault_max: 1 << 20,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 2, seed, true, t);
    rig.machine.set_switch_of([1, 2, 4][seed as usize % 3]);
    let start = rig.mmap(0, BLOCK);
    rig.write(start, byte_of(0));
    assert_eq!(rig.folio(start).order, 8);
    (0..PAGES).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.munmap(start.add(QUARTER), QUARTER);
    rig.munmap(start.add(3 * QUARTER), QUARTER);
    (rig, start)
}

/// Splits into quarters on one CPU, while the other tries to get a reference to the last one, by
/// its number: whether it has got one before that was free.
fn split(rig: &Rig, split: impl FnOnce() + Send, last: Pfn) -> bool {
    let (over, got) = (AtomicBool::new(false), Mutex::new(false));
    let splitter = || {
        split();
        over.store(true, SeqCst);
    };
    let finder = || {
        while !over.load(SeqCst) {
            // Until the folio is split it is no head, which has no references to share.
            if rig.mm.get(last).is_some_and(|meta| meta.try_get()) {
                *got.lock().unwrap() = true;
                return;
            }
            rig.machine.preempt(Site::Relock);
        }
    };
    let jobs = vec![deckle_model::cpu(splitter), deckle_model::cpu(finder)];
    if let Err(e) = rig.machine.run(jobs) {
        panic!("{e}");
    }
    got.into_inner().unwrap()
}

fn in_use(rig: &Rig, start: Vpn) {
    for i in (0..QUARTER).chain(2 * QUARTER..3 * QUARTER) {
        assert!(rig.holds(start.add(i), byte_of(i)), "page {i}");
        assert_eq!(rig.folio(start.add(i)).order, 6);
    }
    assert_eq!(rig.charge.usage(), 2 * QUARTER);
}

#[test]
fn r106_a_part_that_somebody_holds_stays_on_the_callers_list_and_is_not_freed() {
    let (mut met, mut missed) = (0, 0);
    for seed in 1..60 {
        let (rig, start) = folio(seed);
        let head = rig.folio(start).head;
        let last = head.add(3 * QUARTER as u32);
        let mut list = rig.mm.isolate_page(rig.space, start).unwrap();
        let mut done = None;
        let held = split(
            &rig,
            || done = Some(rig.mm.split_isolated(&mut list, 6, SplitFlags::NONE)),
            last,
        );
        let freed = u64::from(done.unwrap().unwrap().freed);
        assert_eq!(list.folios().contains(&last), held, "seed {seed}");
        match held {
            true => {
                met += 1;
                // The second quarter is free, the last one is charged still.
                assert_eq!((freed, rig.charge.usage()), (QUARTER, 3 * QUARTER));
                let meta = rig.mm.get(last).unwrap();
                assert_eq!((meta.refs(), meta.folio_order()), (2, Some(6)));
                rig.mm.put_page(last);
            }
            false => {
                missed += 1;
                assert_eq!(freed, 2 * QUARTER);
            }
        }
        // With the isolation the last reference goes.
        rig.mm.putback_list(list);
        in_use(&rig, start);
        rig.verify(&seed);
    }
    assert!(met > 0 && missed > 0, "met {met} times, missed {missed}");
}

/// Of a folio that is on the LRU list whoever holds the part frees it.
#[test]
fn r106_a_part_that_is_held_is_freed_by_who_lets_go_last() {
    let mut met = 0;
    for seed in 1..60 {
        let (rig, start) = folio(seed);
        let last = rig.folio(start).head.add(3 * QUARTER as u32);
        let page = |flags| rig.mm.split_page(rig.space, start, 6, flags).unwrap();
        let held = split(&rig, || _ = page(SplitFlags::NONE), last);
        if held {
            met += 1;
            assert_eq!(rig.charge.usage(), 3 * QUARTER);
            assert_eq!(rig.mm.get(last).unwrap().refs(), 1);
            rig.mm.put_page(last);
        }
        in_use(&rig, start);
        rig.verify(&seed);
    }
    assert!(met > 0);
}
