//! Whoever meets a block that is in work waits, and goes on when the work is done.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of, shrink, tunables};
use deckle_mm::{Advice, Item, Prot, SplitFlags, SplitMode, Tunables, Vpn};
use deckle_model::{Rng, cpu};
use std::sync::Arc;

/// Of so many pages of the block each has a byte of its own.
const LIVE: u64 = 100;

fn live(i: u64) -> bool {
    i.is_multiple_of(BLOCK / LIVE) && i / (BLOCK / LIVE) < LIVE
}

fn huge(rig: &Rig) -> Vpn {
    rig.huge(0, (0..BLOCK).filter(|i| live(*i)))
}

fn split_to(rig: &Rig, order: u8) -> Vpn {
    let start = huge(rig);
    (rig.mm.split_page(rig.space, start, order, SplitFlags::NONE)).unwrap();
    start
}

fn small(rig: &Rig) -> Vpn {
    split_to(rig, 0)
}

fn stored(rig: &Rig) -> Vpn {
    let start = small(rig);
    rig.advise(start, BLOCK, Advice::PageOut);
    start
}

/// Looks at pages of the block and writes what they hold, as CPU `on`, whatever goes on there.
fn touch(rig: &Rig, on: usize, start: Vpn, seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..24 {
        let i = rng.below(BLOCK);
        let (page, mut byte) = (start.add(i), [0]);
        let want = if live(i) { byte_of(i) } else { 0 };
        if live(i) && rng.below(2) > 0 {
            rig.write_on(on, page, want);
        }
        while let Err(f) = (rig.model).load(on, rig.space, page.addr(), &mut byte) {
            rig.fault(f.page, f.write).unwrap();
        }
        assert_eq!(byte, [want], "page {i}");
    }
}

/// Does `work` on one CPU while others use the block; somebody must have had to wait.
fn meet(what: &str, mode: SplitMode, ready: impl Fn(&Rig) -> Vpn, work: impl Fn(&Rig, Vpn) + Sync) {
    let mut met = 0;
    for seed in 0..48 {
        let t = Tunables {
            split_mode: mode,
            ..Tunables::default()
        };
        let rig = Rig::new(64, 3, seed, true, t);
        let start = ready(&rig);
        let before = rig.machine.parked();
        let (rig, work) = (&rig, &work);
        let touches = |on: usize| cpu(move || touch(rig, on, start, seed << 2 | on as u64));
        let jobs = vec![cpu(move || work(rig, start)), touches(1), touches(2)];
        (rig.machine.run(jobs)).unwrap_or_else(|e| panic!("{what}, {mode:?}, seed {seed}: {e}"));
        met += rig.machine.parked() - before;
        rig.verify(&(what, mode, seed));
        let byte = |i| if live(i) { byte_of(i) } else { 0 };
        (0..BLOCK).for_each(|i| assert!(rig.holds(start.add(i), byte(i)), "{what}: page {i}"));
    }
    println!("{what}, {mode:?}: waited {met} times");
    assert!(met > 0, "{what}, {mode:?}: nobody had to wait");
}

#[test]
fn r53_r98_whoever_meets_a_block_in_work_waits_for_its_end_and_no_longer() {
    for mode in [SplitMode::Shatter, SplitMode::InPlace] {
        meet("evict a huge page", mode, huge, |rig, start| {
            let _ = rig.mm.madvise(rig.space, start, BLOCK, Advice::PageOut);
        });
        meet("split underused", mode, huge, |rig, _| {
            shrink(rig);
        });
        meet("split", mode, huge, |rig, start| {
            let _ = (rig.mm).split_page(rig.space, start, 0, SplitFlags::DROP_ZERO);
        });
    }
    // In place it is done with the block locked.
    meet("break", SplitMode::Shatter, huge, |rig, start| {
        let (half, exec) = (start.add(BLOCK / 2), true);
        let other = Prot { exec, ..Prot::RW };
        rig.mm
            .mprotect(rig.space, half, BLOCK / 2, other)
            .and_then(|()| rig.mm.mprotect(rig.space, start, BLOCK, Prot::RW))
            .unwrap();
    });
    let mode = SplitMode::Auto;
    let folios = |rig: &Rig| split_to(rig, 4);
    meet("evict", mode, folios, |rig, _| {
        (0..8).for_each(|_| {
            rig.mm.reclaim(BLOCK);
        });
    });
    meet("swap in", mode, stored, |rig, start| {
        let _ = (rig.mm).madvise(rig.space, start, BLOCK, Advice::WillNeed);
    });
    meet("collapse", mode, small, |rig, start| {
        let _ = rig.mm.collapse(rig.space, start);
    });
    meet("trim", mode, huge, |rig, start| {
        let _ = rig.mm.madvise(rig.space, start, BLOCK, Advice::Cold);
        rig.mm.trim();
    });
}

/// The shrinker comes by while a huge page is stored, which fails.
#[test]
fn r130_a_huge_page_that_is_in_work_is_looked_at_by_the_next_pass() {
    let rig = Arc::new(Rig::new(64, 1, 1, true, tunables(409)));
    let start = rig.huge(0, []);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), 0xee));
    let who = Arc::downgrade(&rig);
    rig.mm.store().meanwhile(move || {
        let rig = who.upgrade().unwrap();
        assert_eq!((shrink(&rig), rig.stat(Item::ThpUnderusedScan)), (0, 0));
    });
    rig.advise(start, BLOCK, Advice::PageOut);
    assert!(rig.folio(start).queued);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), 0));
    assert_eq!(shrink(&rig), BLOCK);
    rig.verify(&"looked at");
}
