//! Per-CPU lists.

use super::*;

#[test]
fn what_was_freed_last_is_given_out_first_without_the_zones_lock() {
    let m = Cpus::default();
    let zone = full(0, 1 << 18);
    for order in [0, 1, 4, 9] {
        let pfn = zone.alloc(&m, order).unwrap();
        zone.free(&m, pfn, order).unwrap();
        let free = zone.free_pages();
        // Were the lock needed, this thread would wait for itself.
        let held = zone.lock.lock(&m);
        assert_eq!(zone.alloc(&m, order), Ok(pfn));
        assert_eq!(zone.get(pfn).unwrap().folio_order(), Some(order));
        zone.free(&m, pfn, order).unwrap();
        assert_eq!(zone.free(&m, pfn, order), Err(FreeError::DoubleFree(pfn)));
        drop(held);
        assert_eq!(zone.free_pages(), free);
        assert_eq!(zone.get(pfn).unwrap().kind(), Kind::Cached);
    }
    zone.verify().unwrap();
    zone.drain(&m);
    assert_eq!((zone.cached_pages(), zone.free_pages()), (0, 1 << 18));
    assert_eq!(zone.free_by_order()[10], 256, "all merged again");
}

#[test]
fn lists_fill_and_drain_in_batches_and_never_grow_without_end() {
    let m = Cpus::default();
    let zone = full(0, 1 << 18);
    let first = zone.alloc(&m, 0).unwrap();
    assert_eq!(zone.cached_pages(), 63);
    // A batch is a block cut up: its frames come in order.
    for i in 1..64 {
        assert_eq!(zone.alloc(&m, 0), Ok(first.add(i)));
    }
    assert_eq!(zone.cached_pages(), 0);
    let all: Vec<Pfn> = (0..10_000).map(|_| zone.alloc(&m, 0).unwrap()).collect();
    let mut most = 0;
    for pfn in &all {
        zone.free(&m, *pfn, 0).unwrap();
        most = most.max(zone.cached_pages());
    }
    assert_eq!(most, 128);
    zone.verify().unwrap();
    // What went back has merged, although it came one by one.
    assert!(zone.free_by_order()[..6].iter().sum::<u64>() < 10);
}

#[test]
fn a_failing_allocation_empties_the_lists_of_all_cpus_first() {
    let m = Cpus::default();
    let zone = full(0, 8192);
    let all: Vec<Pfn> = (0..8192)
        .map(|i| zone.alloc(m.on(i % 4), 0).unwrap())
        .collect();
    assert!(zone.alloc(&m, 0).is_err());
    let block = all.iter().filter(|p| p.0 < 16);
    block
        .enumerate()
        .for_each(|(i, p)| zone.free(m.on(i % 4), *p, 0).unwrap());
    assert_eq!((zone.free_pages(), zone.cached_pages()), (0, 16));
    assert_eq!(zone.alloc(m.on(0), 4), Ok(Pfn(0)));
    assert_eq!(zone.cached_pages(), 0);
    zone.free(m.on(3), Pfn(0), 4).unwrap();
    assert_eq!(zone.alloc_bulk(m.on(1), &mut [Pfn(0); 20]), 16);
    zone.verify().unwrap();
}

#[test]
fn small_zones_keep_small_lists() {
    let m = Cpus::default();
    for frames in [1, 100, 1000, 4096] {
        let zone = full(0, frames);
        let mut all = Vec::new();
        while let Ok(pfn) = zone.alloc(&m, 0) {
            all.push(pfn);
        }
        assert_eq!(all.len(), frames as usize);
        for cpu in 0..4 {
            let part = all.iter().skip(cpu).step_by(4);
            part.for_each(|p| zone.free(m.on(cpu), *p, 0).unwrap());
        }
        assert!(zone.cached_pages() <= frames as u64 / 32, "{zone:?}");
        zone.verify().unwrap();
    }
}

#[test]
fn a_full_list_gives_half_of_it_back() {
    let m = Cpus::default();
    // A list of 8: a 128th of the zone for four CPUs.
    let zone = full(0, 4096);
    let all = fill(&zone, &m);
    let cached = all.iter().step_by(2).take(9).map(|pfn| {
        zone.free(&m, *pfn, 0).unwrap();
        zone.cached_pages()
    });
    assert_eq!(cached.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8, 5]);
    zone.verify().unwrap();
}

#[test]
fn r28_while_somebody_captures_frames_pass_the_lists_by() {
    let m = Cpus::default();
    let zone = full(0, 1 << 16);
    let all: Vec<Pfn> = (0..100).map(|_| zone.alloc(&m, 0).unwrap()).collect();
    zone.drain(&m);
    let capture = zone.begin_capture(m.on(0), 9).unwrap();
    zone.free(m.on(1), all[0], 0).unwrap();
    assert_eq!(zone.cached_pages(), 0);
    drop(capture);
    zone.free(m.on(1), all[1], 0).unwrap();
    assert_eq!(zone.cached_pages(), 1);
}

#[test]
fn threads_share_per_cpu_lists() {
    struct Cpu<'a>(&'a crate::sync::testing::Threads, usize);
    impl Machine for Cpu<'_> {
        fn this_cpu(&self) -> usize {
            // A hint: now and then it is wrong.
            let moved = self.0.preempts.load(Relaxed).is_multiple_of(7);
            if moved { 1 - self.1 } else { self.1 }
        }
        fn nr_cpus(&self) -> usize {
            2
        }
        fn park(&self, word: &AtomicU32, expected: u32) {
            self.0.park(word, expected);
        }
        fn unpark(&self, word: &AtomicU32, count: u32) {
            self.0.unpark(word, count);
        }
        fn kick(&self, _: Work) {}
        fn preempt(&self, site: Site) {
            self.0.preempt(site);
        }
    }
    fn run(zone: &Zone, m: &Cpu<'_>, seed: u64) {
        let mut random = Random(seed);
        let mut live = Vec::new();
        for step in 0..20_000 {
            if random.below(100) < if step / 1000 % 2 == 0 { 60 } else { 40 } {
                let order = [0, 0, 0, 0, 1, 4, 5, 9][random.below(8)];
                if let Ok(pfn) = zone.alloc_as(m, order, Mobility::ALL[random.below(3)]) {
                    zone.get(pfn).unwrap().set_owner(SpaceId(1), Vpn(seed));
                    live.push((pfn, order));
                }
            } else if !live.is_empty() {
                let (pfn, order) = live.swap_remove(random.below(live.len()));
                let meta = zone.get(pfn).unwrap();
                assert_eq!(meta.owner(), Some((SpaceId(1), Vpn(seed))));
                meta.clear_owner();
                zone.free(m, pfn, order).unwrap();
            }
            if random.below(1000) == 0
                && let Some(mut capture) = zone.begin_capture(m, 9)
            {
                live.extend(capture.consult(Mobility::Movable, |_| true).map(|p| (p, 9)));
                if let Some((pfn, 9)) = live.last() {
                    zone.get(*pfn).unwrap().set_owner(SpaceId(1), Vpn(seed));
                }
            }
        }
        for (pfn, order) in live {
            zone.get(pfn).unwrap().clear_owner();
            zone.free(m, pfn, order).unwrap();
        }
    }
    let threads = crate::sync::testing::Threads::default();
    let span = FrameSpan {
        first: Pfn(1024),
        frames: 8192,
    };
    let zone = Zone::with(span, ZoneConfig::contiguous(2));
    std::thread::scope(|s| {
        for seed in 1..=4 {
            let (zone, threads) = (&zone, &threads);
            s.spawn(move || run(zone, &Cpu(threads, seed as usize % 2), seed));
        }
    });
    zone.verify().unwrap();
    let m = Cpu(&threads, 0);
    zone.drain(&m);
    assert_eq!((zone.free_pages(), zone.allocated_pages()), (8192, 0));
    let events = zone.events();
    assert_eq!(events.pgalloc, events.pgfree);
    assert_eq!(zone.free_by_order()[10], 8);
}
