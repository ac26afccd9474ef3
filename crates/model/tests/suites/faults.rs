//! Faults on holes and zero entries (F1 and F2), rule by rule.

use super::common::hand::BLOCK;
use super::common::{BASE, Rig};
use deckle_mm::{
    Advice, Charge, FaultError, FaultMode, Item, Machine, Profile, Prot, Served, Site, SizeItem,
    Sizes, ThpMode, Tunables,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// Folios of 64 KiB, no huge pages.
fn small_folios(profile: Profile) -> Tunables {
    let deckle = Tunables::of_profile(Profile::Deckle);
    Tunables {
        thp: ThpMode::Madvise,
        sizes: deckle.sizes,
        ..Tunables::of_profile(profile)
    }
}

fn rig(profile: Profile) -> Rig {
    Rig::new(64, 1, 1, true, small_folios(profile))
}

#[test]
fn r43_a_large_folio_is_asked_for_once_and_one_page_with_full_effort() {
    let rig = rig(Profile::Deckle);
    let start = rig.mmap(0, BLOCK);
    (0..4).for_each(|i| rig.write(start.add(16 * i), 1));
    // No room for 16 pages, but for 4: nothing is reclaimed for them.
    rig.charge.set_max(64 + 4);
    assert_eq!(rig.fault(start.add(64), true).unwrap(), Served::Mapped(4));
    assert_eq!(rig.stat(Item::Allocstall), 0);
    assert_eq!(rig.stat(Item::Pswpout) + rig.stat(Item::SwpoutZero), 0);
    // No room at all: for a page there is reclaim.
    let last = start.add(80);
    let no_wait = rig.mm.fault(rig.space, last, true, FaultMode::NoWait);
    assert!(matches!(no_wait, Err(FaultError::NeedReclaim)));
    assert_eq!(rig.stat(Item::Allocstall), 0);
    rig.fault(last, true).unwrap();
    assert_eq!(rig.stat(Item::Allocstall), 1);
    assert!(rig.stat(Item::Pswpout) + rig.stat(Item::SwpoutZero) > 0);
    assert_eq!(rig.stat(Item::OomKill), 0);
    rig.verify(&"the last page");
}

#[test]
fn r49_a_read_of_a_hole_shows_small_zero_pages_and_costs_nothing() {
    for (profile, pages) in [(Profile::Linux, 1), (Profile::Deckle, 16)] {
        let rig = rig(profile);
        let start = rig.mmap(0, BLOCK);
        assert_eq!(rig.read(start.add(21)), [0; 4096]);
        let shown = rig.model.translations(rig.space);
        // Linux: the page itself. Here the 64 KiB around it, page by page: no folio, no charge.
        assert_eq!(shown.len(), pages, "{profile:?}");
        assert!(shown.iter().all(|(_, t)| t.frame.is_none() && !t.huge));
        assert_eq!((rig.resident(), rig.charge.usage()), (0, 0));
        assert!(rig.folio_at(start.add(21)).is_none());
        rig.verify(&profile);
    }
}

#[test]
fn r50_r56_r57_a_write_to_a_hole_maps_the_whole_window_with_its_rights() {
    for order in [0, 2, 3, 4, 9] {
        let sizes = match order {
            0 => Sizes::NEVER,
            o => Sizes::NEVER.with(o, deckle_mm::SizeMode::Always),
        };
        let t = Tunables {
            sizes,
            ..Tunables::of_profile(Profile::Deckle)
        };
        let rig = Rig::new(64, 1, 1, false, t);
        let n = 1u64 << order;
        let start = rig.mmap(0, BLOCK);
        let page = start.add(n + n / 2).min(start.add(BLOCK - 1));
        let served = rig.fault(page, true).unwrap();
        assert_eq!(served, Served::Mapped(n as u32));
        let first = start.add((page.0 - start.0) / n * n);
        let folio = rig.folio(first);
        assert_eq!((folio.order, folio.head), (order, folio.frame));
        // One reference for each entry; a huge mapping is one entry.
        assert_eq!(folio.refs, if order == 9 { 1 } else { n as u32 });
        assert!(folio.active && !folio.partial);
        for i in 0..n {
            let t = rig.model.translation(rig.space, first.add(i)).unwrap();
            assert_eq!((t.prot, t.wp), (Prot::RW, false), "order {order} page {i}");
            assert_eq!(t.frame, Some(folio.head.add(i as u32)));
            assert_eq!(rig.model.map_count(folio.head.add(i as u32)), 1);
            assert!(!rig.mm.is_shared(rig.space, first.add(i)));
            // It is written at once or never asked again: no fault, and it comes back from
            // eviction as it was, so nothing takes it for clean.
            rig.model
                .store(0, rig.space, first.add(i).addr(), &[i as u8])
                .unwrap();
        }
        assert_eq!(rig.model.translations(rig.space).len() as u64, n);
        assert_eq!(rig.stat(Item::NrAnon), n);
        assert_eq!(rig.charge.usage(), n);
        // One folio on one list (verify counts folios).
        assert_eq!(rig.mm.lru_pages(deckle_mm::engine::lru::Which::Active), n);
        rig.verify(&order);
        // Without the right to write there is no such fault.
        rig.mm.mprotect(rig.space, start, BLOCK, Prot::R).unwrap();
        let other = start.add((page.0 - start.0 + n) % BLOCK);
        assert!(matches!(rig.fault(other, true), Err(FaultError::Access)));
        assert_eq!(rig.stat(Item::NrAnon), n);
        rig.verify(&order);
    }
}

#[test]
fn r51_every_page_of_a_new_folio_reads_as_zeros() {
    let rig = rig(Profile::Deckle);
    let start = rig.mmap(0, 8 * BLOCK);
    // Frames that held bytes before.
    (0..BLOCK).for_each(|i| rig.write(start.add(i), 0xff));
    rig.munmap(start, BLOCK);
    rig.mmap(0, BLOCK);
    rig.fault(start.add(7), true).unwrap();
    rig.advise(start.add(BLOCK), BLOCK, Advice::HugePage);
    rig.fault(start.add(BLOCK + 7), true).unwrap();
    for page in (0..16).chain(BLOCK..2 * BLOCK) {
        assert_eq!(rig.read(start.add(page)), [0; 4096], "page {page}");
    }
    rig.verify(&"reading");
}

/// Two CPUs and what each does; every seed is another interleaving.
fn race<A: Fn(&Rig) + Sync, B: Fn(&Rig) + Sync>(seed: u64, a: A, b: B) -> Rig {
    let rig = Rig::new(64, 2, seed, true, small_folios(Profile::Deckle));
    rig.machine.set_switch_of([1, 4, 16][seed as usize % 3]);
    rig.mmap(0, BLOCK);
    let jobs = vec![deckle_model::cpu(|| a(&rig)), deckle_model::cpu(|| b(&rig))];
    if let Err(e) = rig.machine.run(jobs) {
        panic!("seed {seed}: {e}");
    }
    rig.verify(&seed);
    rig
}

#[test]
fn r52_nobody_sees_a_page_before_its_zeros() {
    // Looks at pages that had come while their writer was on its way still.
    let early = AtomicU32::new(0);
    for seed in 1..60 {
        race(
            seed,
            |rig| rig.write_on(0, BASE.add(5), 9),
            |rig| {
                // Free frames hold poison on this machine.
                for i in (0..16).cycle().take(400) {
                    let mut bytes = [0xee; 4096];
                    let page = BASE.add(i);
                    if rig
                        .model
                        .load(1, rig.space, page.addr(), &mut bytes)
                        .is_ok()
                    {
                        let zero = |b: &&u8| **b == 0;
                        assert!(bytes[0] == 0 || i == 5 && bytes[0] == 9);
                        early.fetch_add((i == 5 && bytes[0] == 0) as u32, SeqCst);
                        assert_eq!(bytes[1..].iter().filter(zero).count(), 4095);
                    }
                }
            },
        );
    }
    assert!(early.into_inner() > 0, "no seed looked before the write");
}

#[test]
fn r53_r54_who_loses_the_race_for_a_page_changes_nothing_and_leaks_nothing() {
    let mut lost = 0;
    for seed in 1..80 {
        let rig = race(
            seed,
            |rig| rig.write_on(0, BASE.add(5), 1),
            |rig| rig.write_on(1, BASE.add(5), 2),
        );
        assert_eq!((rig.stat(Item::NrAnon), rig.charge.usage()), (16, 16));
        assert_eq!(rig.folio(BASE.add(5)).refs, 16);
        let byte = rig.read(BASE.add(5))[0];
        assert!(byte == 1 || byte == 2);
        lost += rig.stat(Item::AnonFaultAlloc) - 1;
    }
    assert!(lost > 0, "no seed made both of them allocate");
}

#[test]
fn r53_r55_who_finds_a_neighbour_taken_goes_on_with_a_smaller_folio() {
    let mut lowered = 0;
    for seed in 1..400 {
        let rig = race(
            seed,
            |rig| rig.write_on(0, BASE.add(1), 1),
            |rig| {
                // Page 15 comes alone.
                let one = Tunables {
                    sizes: Sizes::NEVER,
                    ..small_folios(Profile::Deckle)
                };
                rig.mm.set_tunables(one).unwrap();
                rig.write_on(1, BASE.add(15), 2);
            },
        );
        assert!(rig.holds(BASE.add(1), 1) && rig.holds(BASE.add(15), 2));
        let orders = (rig.folio(BASE.add(1)).order, rig.folio(BASE.add(15)).order);
        // Estimated 64 KiB, dropped that folio, took the next size.
        if rig.stat(Item::AnonFaultAlloc) == 2 {
            assert_eq!(orders, (3, 0), "seed {seed}");
            lowered += 1;
        }
        let pages = (1 << orders.0) + if orders.1 == 0 { 1 } else { 0 };
        assert_eq!(rig.charge.usage(), pages, "seed {seed}: {orders:?}");
    }
    assert!(
        lowered > 0,
        "no seed met the neighbour between look and lock"
    );
}

#[test]
fn r58_where_the_program_waits_for_missing_pages_none_comes_by_itself() {
    let rig = rig(Profile::Deckle);
    let start = rig.mmap(0, 2 * BLOCK);
    rig.write(start, 1);
    rig.read(start.add(100));
    rig.mm.uffd_register(rig.space, start, BLOCK).unwrap();
    let used = rig.charge.usage();
    for write in [false, true] {
        let told = rig.fault(start.add(200), write);
        assert!(matches!(told, Err(FaultError::ToProgram)), "{told:?}");
    }
    assert_eq!(rig.charge.usage(), used);
    assert!(rig.model.translation(rig.space, start.add(200)).is_none());
    // What is no hole is served; a write to a zero page brings that page and no neighbour.
    rig.write(start, 2);
    rig.write(start.add(100), 3);
    assert_eq!(rig.folio(start.add(100)).order, 0);
    assert_eq!(rig.charge.usage(), used + 1);
    // Beyond the range nothing has changed, and a folio does not reach into it.
    rig.write(start.add(BLOCK), 4);
    assert_eq!(rig.folio(start.add(BLOCK)).order, 4);
    rig.verify(&"armed");
    rig.mm.uffd_unregister(rig.space, start, BLOCK).unwrap();
    rig.write(start.add(200), 5);
    assert_eq!(rig.folio(start.add(200)).order, 4);
    rig.verify(&"disarmed");
}

#[test]
fn r58_a_range_armed_between_look_and_lock_is_left_to_the_program() {
    let (mut told, mut served) = (0, 0);
    for seed in 1..120 {
        let rig = race(
            seed,
            |rig| {
                let before = rig.charge.usage();
                match rig.fault(BASE.add(5), true) {
                    Err(FaultError::ToProgram) => assert_eq!(before, 0),
                    other => drop(other.unwrap()),
                }
            },
            |rig| {
                rig.mm.uffd_register(rig.space, BASE, BLOCK).unwrap();
                // From here on nothing may come.
                let there = rig.folio_at(BASE.add(5));
                (0..20).for_each(|_| assert_eq!(rig.folio_at(BASE.add(5)), there));
            },
        );
        match rig.folio_at(BASE.add(5)) {
            Some(_) => served += 1,
            None => {
                assert_eq!(rig.charge.usage(), 0);
                // It had estimated and allocated already.
                told += (rig.stat(Item::AnonFaultAlloc) > 0) as u32;
            }
        }
    }
    assert!(told > 0 && served > 0, "{told} {served}");
}

#[test]
fn r59_r61_a_write_to_the_zero_page_gets_a_folio_by_the_same_policy() {
    for (profile, others, order) in [
        // Linux copies the page alone; here what a read left does not hinder.
        (Profile::Linux, 0..0, 0),
        (Profile::Linux, 9..10, 0),
        (Profile::Deckle, 0..16, 4),
    ] {
        let rig = rig(profile);
        let start = rig.mmap(0, BLOCK);
        rig.read(start.add(5));
        others.for_each(|i| assert_eq!(rig.read(start.add(i)), [0; 4096]));
        assert_eq!((rig.resident(), rig.charge.usage()), (0, 0));
        rig.write(start.add(5), 1);
        assert_eq!(rig.folio(start.add(5)).order, order, "{profile:?}");
        let n = 1 << order;
        assert_eq!((rig.resident(), rig.charge.usage()), (n, n));
        assert!(rig.holds(start.add(5), 1) && rig.holds(start.add(6), 0));
        rig.verify(&profile);
    }
    // A page in the window, of whatever kind, makes it smaller.
    let rig = rig(Profile::Deckle);
    let start = rig.mmap(0, BLOCK);
    rig.write(start.add(8), 1);
    rig.munmap(start, 8);
    rig.mmap(0, 8);
    rig.read(start.add(2));
    rig.write(start.add(2), 2);
    assert_eq!(rig.folio(start.add(2)).order, 3);
    rig.verify(&"a neighbour");
}

#[test]
fn r60_a_zero_entry_that_went_meanwhile_is_looked_at_anew() {
    // A range that the program serves itself: the zero page there is the manager's, the hole
    // that a discard makes of it is not.
    let (mut told, mut met, mut served) = (0, 0, 0);
    for seed in 1..160 {
        let (armed, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        let rig = race(
            seed,
            |rig| {
                rig.read(BASE.add(5));
                rig.mm.uffd_register(rig.space, BASE, BLOCK).unwrap();
                armed.store(true, SeqCst);
                match rig.fault(BASE.add(5), true) {
                    Err(FaultError::ToProgram) => refused.store(true, SeqCst),
                    other => drop(other.unwrap()),
                }
            },
            |rig| {
                while !armed.load(SeqCst) {
                    rig.machine.preempt(Site::Relock);
                }
                rig.advise(BASE.add(5), 1, Advice::DontNeed);
            },
        );
        // Discarded last, or told: nothing may be there. A page there would be one that came
        // after the discard, into a hole.
        match rig.stat(Item::NrAnon) {
            0 => told += (rig.charge.usage() == 0) as u32,
            n => served += n,
        }
        // It had looked at a zero entry and allocated already.
        let single = rig.mm.stats().size(0, SizeItem::AnonFaultAlloc);
        met += (refused.load(SeqCst) && single > 0) as u32;
    }
    assert!(told > 0 && met > 0, "{told} {met}");
    assert_eq!(served, 0, "a hole was filled that is the program's to fill");
}
