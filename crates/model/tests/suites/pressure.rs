//! `memory.high`, and the time that somebody waited for memory.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{Advice, Charge, FaultError, FaultMode, Item, Profile, ThpMode, Tunables};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

fn rig(swap: bool) -> Rig {
    let t = Tunables {
        thp: ThpMode::Never,
        fault_max: 0,
        ..Tunables::of_profile(Profile::Deckle)
    };
    Rig::new(64, 1, 1, swap, t)
}

/// Pages of the reserve above a small `memory.high`.
const RESERVE: u64 = 1024;

#[test]
fn r150_growth_far_above_high_reclaims_and_stays_there() {
    let rig = rig(true);
    rig.charge.set_max(10_000);
    rig.charge.set_high(1000);
    let start = rig.mmap(0, 8 * BLOCK);
    let mut waits = 0;
    for i in 0..8 * BLOCK {
        let page = start.add(i);
        // The reserve is for those who may not wait.
        match rig.mm.fault(rig.space, page, true, FaultMode::NoWait) {
            Err(FaultError::NeedReclaim) => waits += 1,
            other => drop(other.unwrap()),
        }
        rig.write(page, byte_of(i));
        let usage = rig.charge.usage();
        assert!(usage <= 1000 + RESERVE + 64, "{usage} at page {i}");
    }
    assert!(waits > 0 && rig.stat(Item::ThrottleHigh) >= waits);
    assert!(rig.stat(Item::PgstealDirect) > 0 && rig.stat(Item::OomKill) == 0);
    // Whoever can reclaim need not wait.
    assert_eq!(rig.mm.reclaim_high(), 0);
    (0..8 * BLOCK).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    rig.verify(&"written");
}

#[test]
fn r150_who_grows_above_high_and_cannot_reclaim_waits_longer_and_longer() {
    let rig = rig(false);
    rig.charge.set_max(5000);
    rig.charge.set_high(1000);
    let start = rig.mmap(0, 8 * BLOCK);
    let mut last = 0;
    for i in 0..4000 {
        rig.write(start.add(i), byte_of(i));
        if i % 500 == 499 {
            let wait = rig.mm.reclaim_high();
            let far = rig.charge.usage() > 1000 + RESERVE;
            assert_eq!(wait > 0, far, "{wait} us at {i}");
            assert!(wait >= last);
            last = wait;
        }
    }
    assert_eq!(last, 2_000_000);
    // What was in vain is tried again when less is used than then; others are asked, too.
    let asked = Arc::new(AtomicU32::new(0));
    let told = asked.clone();
    rig.charge.set_elsewhere(move |_| {
        told.fetch_add(1, SeqCst);
        false
    });
    let before = rig.mm.reclaim_rounds();
    for more in [0, 1] {
        if more > 0 {
            rig.munmap(start, 1000);
        }
        rig.mm.reclaim_high();
        let rounds = rig.mm.reclaim_rounds() - before;
        assert_eq!((rounds, asked.load(SeqCst)), (more, more));
    }
    rig.verify(&"written");
}

#[test]
fn r150_a_high_just_below_max_is_for_the_background_alone() {
    let rig = rig(true);
    rig.charge.set_max(2000);
    rig.charge.set_high(2000 - RESERVE);
    let start = rig.mmap(0, 8 * BLOCK);
    (0..8 * BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert_eq!(rig.stat(Item::ThrottleHigh), 0);
    assert!(rig.stat(Item::Allocstall) > 0);
}

#[test]
fn r150_time_counts_as_pressure_while_a_page_is_read_back_or_reclaim_is_waited_for() {
    let rig = rig(true);
    let some = || rig.stat(Item::PressureSome);
    let start = rig.mmap(0, BLOCK);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    // New pages are no pressure, nor is what the background or the program asks for.
    rig.advise(start, BLOCK, Advice::PageOut);
    assert_eq!(some(), 0);
    rig.read(start);
    let read = some();
    assert!(read > 0);
    rig.charge.set_max(rig.charge.usage() + 8);
    let more = rig.mmap(1024, 64);
    (0..64).for_each(|i| rig.write(more.add(i), byte_of(i)));
    assert!(some() > read && rig.stat(Item::Allocstall) > 0);
    // The model cannot tell what else its program does.
    assert_eq!(rig.stat(Item::PressureFull), 0);
}

#[test]
fn reclaim_returns_by_how_much_usage_fell() {
    let rig = rig(true);
    let start = rig.mmap(0, 4 * BLOCK);
    (0..4 * BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    // Less than is let go at once, and more.
    for want in [40, 64, 512] {
        let (before, stolen) = (rig.charge.usage(), rig.stat(Item::PgstealDirect));
        let got = rig.mm.reclaim(want);
        assert_eq!(rig.stat(Item::PgstealDirect) - stolen, want);
        // What is stored takes a quarter of its size.
        assert!(got > want / 2, "{got} of {want}");
        // While fewer are unmapped than are wanted, 64 more are.
        let inactive = rig.stat(Item::NrInactive);
        assert!(inactive < want + 64, "{inactive} for {want}");
        assert_eq!(before - rig.charge.usage(), got);
    }
    rig.verify(&"reclaimed");
}

#[test]
fn what_cannot_be_unmapped_does_not_count_as_deactivated() {
    let rig = rig(true);
    let start = rig.mmap(0, 64);
    for page in (0..64).map(|i| start.add(i)) {
        rig.write(page, 1);
        rig.model.pin(rig.space, page);
    }
    assert_eq!(rig.mm.reclaim(32), 0);
    assert_eq!(
        (rig.stat(Item::Pgdeactivate), rig.stat(Item::NrAnon)),
        (0, 64)
    );
    rig.verify(&"pinned");
}

#[test]
fn what_is_stored_beyond_its_share_is_written_in_the_same_round_and_gives_that_back() {
    let rig = rig(true);
    let start = rig.mmap(0, 2 * BLOCK);
    (0..2 * BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    // Of the first round 24 of 40 pages may stay, so that usage falls by 40, less 6 for these.
    for (want, share) in [(40, 24), (64, 60), (512, 200)] {
        rig.mm.store().set_share(share);
        let (before, stolen) = (rig.charge.usage(), rig.stat(Item::PgstealDirect));
        let got = rig.mm.reclaim(want);
        assert_eq!(rig.stat(Item::PgstealDirect) - stolen, want);
        assert_eq!(before - rig.charge.usage(), got, "{want}");
        let (in_ram, behind) = rig.mm.store().places();
        assert!(
            in_ram <= share && rig.stat(Item::Zswpwb) == behind,
            "{want}"
        );
    }
    rig.verify(&"reclaimed");
    (0..2 * BLOCK).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    rig.verify(&"read");
}

#[test]
fn the_background_goes_on_while_it_helps_and_ends_at_high() {
    let rig = rig(true);
    let start = rig.mmap(0, 8 * BLOCK);
    (0..8 * BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert!(!rig.mm.reclaim_background(), "no limit");
    // A round is for 1024 pages at most.
    rig.charge.set_high(2000);
    assert!(rig.mm.reclaim_background());
    while rig.mm.reclaim_background() {}
    assert!(rig.charge.usage() <= 2000);
    rig.verify(&"below high");
    // Where nothing can go it is not asked again.
    let rig = self::rig(false);
    let start = rig.mmap(0, 4 * BLOCK);
    (0..4 * BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.charge.set_high(1000);
    assert!(!rig.mm.reclaim_background());
    assert!(rig.charge.usage() > 1000);
}

#[test]
fn what_comes_back_from_the_store_counts_until_it_is_forgotten() {
    let rig = rig(true);
    let start = rig.mmap(0, 2 * BLOCK);
    (0..2 * BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    assert!(!rig.mm.forget_refaults());
    rig.advise(start, 2 * BLOCK, Advice::PageOut);
    (0..2 * BLOCK).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
    // All of it, averaged with nothing before.
    assert_eq!(rig.mm.refault_percent(), 50);
    assert!(rig.mm.forget_refaults());
    assert_eq!(rig.mm.refault_percent(), 0);
    assert!(!rig.mm.forget_refaults());
}
