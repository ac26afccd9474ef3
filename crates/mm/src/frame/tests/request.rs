//! Requests over several zones: marks, nodes, cpusets, direct reclaim, and why it failed.

use super::super::why::Reason;
use super::*;

fn zones(frames: u32, n: u8) -> Vec<Zone> {
    let zone = |i: u8| {
        let span = FrameSpan {
            first: Pfn(i as u32 * 65_536),
            frames,
        };
        Zone::with(span, ZoneConfig::contiguous(4).on_node(i))
    };
    (0..n).map(zone).collect()
}

/// Frees the frames it was given, from the front, and remembers what it was asked for.
struct Frees<'a> {
    m: &'a Cpus,
    frames: Vec<Pfn>,
    asked: Vec<(usize, ReclaimFor, u64)>,
    /// Pages captured at the end of each round.
    captured: Vec<u64>,
}

impl<'a> Frees<'a> {
    fn new(m: &'a Cpus, frames: impl IntoIterator<Item = Pfn>) -> Frees<'a> {
        Frees {
            m,
            frames: frames.into_iter().collect(),
            asked: Vec::new(),
            captured: Vec::new(),
        }
    }
}

impl Reclaim for Frees<'_> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        // R7: whoever reclaims may take any lock; this one thread would wait for itself.
        assert!(!goal.zone.lock.is_locked());
        self.asked.push((goal.index, goal.purpose, goal.pages));
        let n = self.frames.len().min(goal.pages as usize);
        for pfn in self.frames.drain(..n) {
            goal.zone.free(self.m, pfn, 0).unwrap();
        }
        self.captured.push(goal.zone.captured_pages());
        n as u64
    }
}

#[test]
fn r4_the_soft_wall_of_a_cpuset_counts_only_when_the_request_honours_it() {
    let cpuset = Cpuset {
        mems: NodeMask(0b001),
        hardwall: NodeMask(0b011),
    };
    let request = |flags| Request {
        cpuset,
        ..Request::new(0).with_flags(flags)
    };
    let none = request(AllocFlags::default());
    let soft = request(AllocFlags::CPUSET);
    let hard = request(AllocFlags::CPUSET | AllocFlags::HARDWALL);
    // The hard wall alone means nothing: the request does not honour the set at all.
    let wall = request(AllocFlags::HARDWALL);
    let permits = |r: &Request| [0, 1, 2, 64].map(|node| r.permits(node));
    assert_eq!(permits(&none), [true, true, true, false]);
    assert_eq!(permits(&soft), [true, true, false, false]);
    assert_eq!(permits(&hard), [true, false, false, false]);
    assert_eq!(permits(&wall), [true, true, true, false]);
    let masked = Request {
        nodes: NodeMask(0b100),
        ..soft
    };
    assert_eq!(permits(&masked), [false, false, false, false]);
}

#[test]
fn r5_the_mark_is_the_one_that_the_request_names_and_high_without() {
    let m = Cpus::default();
    let zones = zones(4096, 1);
    let zone = &zones[0];
    let (min, low, high) = (10, 20, 30);
    zone.set_watermarks(Watermarks { min, low, high });
    // Held so that nothing comes back from the per-CPU lists by itself.
    let kept = fill(zone, &m);
    let list = Zonelist::new(&zones);
    let flags = |f| Request::new(0).with_flags(f);
    let cases = [
        (AllocFlags::WMARK_MIN, min),
        (AllocFlags::WMARK_LOW, low),
        (AllocFlags::default(), high),
        (AllocFlags::NO_WATERMARKS, 0),
    ];
    for (flag, mark) in cases {
        // The fast path's test, at the mark, one above, and with nothing free at all.
        for free in [mark, mark + 1] {
            zone.free_bulk(&m, &kept[..free as usize]).unwrap();
            let request = flags(flag);
            let ok = request.mark().is_none_or(|mark| zone.watermark_ok(0, mark));
            assert_eq!(ok, free > mark || mark == 0, "{flag:?} with {free} free");
            let mut again = std::vec![Pfn(0); free as usize];
            assert_eq!(zone.alloc_bulk(&m, &mut again), free as usize);
        }
    }
    assert!(alloc_pages(&m, &list, &flags(AllocFlags::NO_WATERMARKS), None).is_err());
    // A request that may not reclaim falls to the min mark before it fails.
    zone.free_bulk(&m, &kept[..11]).unwrap();
    assert!(alloc_pages(&m, &list, &flags(AllocFlags::default()), None).is_ok());
    zone.drain(&m);
    assert_eq!(zone.free_pages(), 10);
    let why = alloc_pages(&m, &list, &flags(AllocFlags::default()), None).unwrap_err();
    assert_eq!(why.reason, Reason::MayNotReclaim);
    assert!(
        why.zones[0].below_watermark && why.zones[0].mark == 10,
        "{why}"
    );
    assert!(alloc_pages(&m, &list, &flags(AllocFlags::NO_WATERMARKS), None).is_ok());
    // Out of order marks are put in order; the top order is tested by its own size.
    let marks = Watermarks {
        min: 9,
        low: 3,
        high: 5,
    };
    zone.set_watermarks(marks);
    assert_eq!(zone.watermarks().high, 9);
    assert!(!zone.watermark_ok(10, Mark::Min) && !zone.watermark_ok(255, Mark::Min));
}

#[test]
fn r6_r7_r11_a_zone_is_reclaimed_from_only_in_zone_reclaim_mode() {
    let m = Cpus::default();
    for (zone_reclaim, frees) in [(false, true), (true, true), (true, false)] {
        let zones = zones(2048, 2);
        let all = fill(&zones[0], &m);
        for zone in &zones {
            let marks = Watermarks {
                min: 4,
                low: 8,
                high: 12,
            };
            zone.set_watermarks(marks);
        }
        let freed = if frees { &all[32..64] } else { &[] };
        let mut reclaim = Frees::new(&m, freed.iter().copied());
        let list = Zonelist {
            zone_reclaim,
            ..Zonelist::new(&zones)
        };
        let request = Request::new(4);
        let got = alloc_pages(&m, &list, &request, Some(&mut reclaim)).unwrap();
        // What the zone's own reclaim has freed was not captured: it waits for nobody (R11).
        let asked = std::vec![(0, ReclaimFor::Zone, 32); zone_reclaim as usize];
        assert_eq!(reclaim.asked, asked);
        assert!(reclaim.captured.iter().all(|n| *n == 0));
        assert_eq!(zones[0].capture_stats(&m), CaptureStats::default());
        assert_eq!(
            (got.zone, got.captured),
            (!(zone_reclaim && frees) as usize, false)
        );
        assert_eq!(m.kicks(), 0, "the fast path was enough");
    }
}

#[test]
fn r11_background_reclaim_is_woken_and_does_not_capture() {
    let m = Cpus::default();
    let zones = zones(2048, 1);
    let all = fill(&zones[0], &m);
    let request = Request::new(9).with_flags(AllocFlags::KSWAPD);
    let why = alloc_pages(&m, &Zonelist::new(&zones), &request, None).unwrap_err();
    assert_eq!((m.kicks(), why.reason), (1, Reason::MayNotReclaim));
    // What the background frees is free at once.
    let goal = Goal {
        zone: &zones[0],
        index: 0,
        order: 9,
        pages: 32,
        round: 0,
        purpose: ReclaimFor::Background,
    };
    assert_eq!(Frees::new(&m, all).round(&goal), 32);
    assert_eq!(zones[0].captured_pages(), 0);
    assert_eq!(zones[0].capture_stats(&m), CaptureStats::default());
    let quiet = request.with_flags(AllocFlags::NOWARN);
    let why = alloc_pages(&m, &Zonelist::new(&zones), &quiet, None).unwrap_err();
    assert_eq!((m.kicks(), why.zones.len()), (1, 0));
}

#[test]
fn r10_r19_r21_direct_reclaim_takes_its_block_from_the_capture_list() {
    let m = Cpus::default();
    for order in [0, 1, 2, 3, 4, 9] {
        let zones = zones(4096, 1);
        let all = fill(&zones[0], &m);
        let mut reclaim = Frees::new(&m, all[512..1024].iter().copied());
        let request = Request::new(order);
        let got = alloc_pages(&m, &Zonelist::new(&zones), &request, Some(&mut reclaim)).unwrap();
        assert!((512..1024).contains(&got.pfn.0));
        assert_eq!(got.captured, order > 3, "order {order}");
        let rounds = if order == 9 { 16 } else { 1 };
        assert_eq!(
            reclaim.asked,
            std::vec![(0, ReclaimFor::Direct, 32); rounds]
        );
        // Each round begins with an empty list: what the last one captured was given back.
        let stats = zones[0].capture_stats(&m);
        assert_eq!(stats.begun, (order > 3) as u64);
        assert_eq!(stats.successes, (order > 3) as u64);
        let freed = 32 * rounds as u64;
        assert_eq!(zones[0].allocated_pages(), 4096 - freed + (1 << order));
        assert_eq!(zones[0].captured_pages(), 0);
        zones[0].verify().unwrap();
    }
}

#[test]
fn r22_a_captured_block_below_the_mark_is_freed_and_allocation_goes_on() {
    let m = Cpus::default();
    let zones = zones(4096, 1);
    let all = fill(&zones[0], &m);
    let marks = Watermarks {
        min: 100,
        low: 110,
        high: 120,
    };
    zones[0].set_watermarks(marks);
    // The block is there after the first round, but only with the pages of the following
    // rounds enough is free beside it: the mark is tested for a single page.
    let mut reclaim = Frees::new(&m, all[512..1024].iter().copied());
    let request = Request {
        reclaim_pages: 512,
        ..Request::new(4)
    };
    let got = alloc_pages(&m, &Zonelist::new(&zones), &request, Some(&mut reclaim)).unwrap();
    let stats = zones[0].capture_stats(&m);
    assert!(stats.refused > 0, "{stats:?}");
    assert_eq!(
        reclaim.asked.len(),
        4,
        "128 pages, of which 16 are taken: 112 are left"
    );
    assert!(zones[0].free_pages() > 100);
    assert_eq!(zones[0].get(got.pfn).unwrap().folio_order(), Some(4));
    zones[0].verify().unwrap();
    // Without watermarks the first one is taken.
    let mut reclaim = Frees::new(&m, all[2048..2560].iter().copied());
    let request = request.with_flags(AllocFlags::USER | AllocFlags::NO_WATERMARKS);
    while let Ok(pfn) = zones[0].alloc(&m, 4) {
        assert!(pfn.0 < 1024);
    }
    alloc_pages(&m, &Zonelist::new(&zones), &request, Some(&mut reclaim)).unwrap();
    assert_eq!(reclaim.asked.len(), 1);
}

#[test]
fn r23_r24_only_permitted_zones_are_captured_from_and_only_until_a_success() {
    let m = Cpus::default();
    let zones = zones(2048, 4);
    let all: Vec<Vec<Pfn>> = zones.iter().map(|zone| fill(zone, &m)).collect();
    struct Many<'a>(Vec<Frees<'a>>);
    impl Reclaim for Many<'_> {
        fn round(&mut self, goal: &Goal<'_>) -> u64 {
            self.0[goal.index].round(goal)
        }
    }
    // Zone 1 can give nothing, zone 2 what is wanted; zone 0 and 3 are not permitted.
    let frees = |i: usize| match i {
        1 => Frees::new(&m, (0..32).map(|k| all[i][k * 64])),
        _ => Frees::new(&m, all[i].iter().copied()),
    };
    let mut reclaim = Many((0..4).map(frees).collect());
    let request = Request {
        nodes: NodeMask(0b0111),
        cpuset: Cpuset {
            mems: NodeMask(0b1110),
            hardwall: NodeMask::ALL,
        },
        ..Request::new(4)
    };
    let got = alloc_pages(&m, &Zonelist::new(&zones), &request, Some(&mut reclaim)).unwrap();
    assert_eq!((got.zone, got.captured), (2, true));
    let begun: Vec<u64> = (zones.iter().map(|z| z.capture_stats(&m).begun)).collect();
    assert_eq!(begun, [0, 1, 1, 0]);
    // The same with zone 1 rich: the result is there, zone 2 is not even looked at.
    reclaim.0[1].frames = all[1][16..64].to_vec();
    reclaim.0[2].asked.clear();
    let got = alloc_pages(&m, &Zonelist::new(&zones), &request, Some(&mut reclaim)).unwrap();
    assert_eq!(
        (got.zone, got.captured),
        (2, false),
        "free since the first request"
    );
    while zones[2].alloc(&m, 4).is_ok() {}
    let got = alloc_pages(&m, &Zonelist::new(&zones), &request, Some(&mut reclaim)).unwrap();
    assert_eq!((got.zone, got.captured), (1, true));
    assert_eq!(reclaim.0[2].asked, []);
    let none = Request {
        nodes: NodeMask(0b0001),
        ..request
    };
    let why = alloc_pages(&m, &Zonelist::new(&zones), &none, Some(&mut reclaim)).unwrap_err();
    assert_eq!(why.reason, Reason::NoZone);
}

#[test]
fn r30_captured_pages_of_others_do_not_make_an_allocation_fail_early() {
    /// Ends the other CPU's pass when the allocation gives way.
    struct Other<'z> {
        cpus: Cpus,
        capture: std::sync::Mutex<Option<Capture<'z, Cpus>>>,
    }
    impl Machine for Other<'_> {
        fn this_cpu(&self) -> usize {
            self.cpus.this_cpu()
        }
        fn nr_cpus(&self) -> usize {
            4
        }
        fn park(&self, _: &AtomicU32, _: u32) {
            panic!("nobody to wait for");
        }
        fn unpark(&self, _: &AtomicU32, _: u32) {}
        fn kick(&self, _: Work) {}
        fn preempt(&self, site: Site) {
            if site == Site::ReclaimRound {
                self.capture.lock().unwrap().take();
            }
        }
    }
    let m = Cpus::default();
    let zones = zones(2048, 1);
    let all = fill(&zones[0], &m);
    let capture = zones[0].begin_capture(m.on(1), 9);
    let free: Vec<Pfn> = all[..40].to_vec();
    free.iter().for_each(|p| zones[0].free(&m, *p, 0).unwrap());
    assert_eq!((zones[0].free_pages(), zones[0].captured_pages()), (0, 40));
    let other = Other {
        cpus: Cpus::default(),
        capture: std::sync::Mutex::new(capture),
    };
    let mut nothing = Frees::new(&m, []);
    let list = Zonelist::new(&zones);
    let got = alloc_pages(&other, &list, &Request::new(0), Some(&mut nothing));
    assert!(got.is_ok(), "{got:?}");
    assert!(other.capture.lock().unwrap().is_none());
    // What does not end does not hang either.
    let capture = zones[0].begin_capture(m.on(1), 9);
    while let Ok(pfn) = zones[0].alloc(m.on(0), 0) {
        let _ = pfn;
    }
    zones[0].free(m.on(1), all[100], 0).unwrap();
    let why = alloc_pages(m.on(0), &list, &Request::new(0), Some(&mut nothing)).unwrap_err();
    assert_eq!((why.reason, why.zones[0].captured), (Reason::Reclaimed, 1));
    drop(capture);
}

#[test]
fn r31_a_folio_whose_mapping_was_not_cleared_is_not_captured() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    let pfn = zone.alloc(&m, 4).unwrap();
    let capture = zone.begin_capture(&m, 4).unwrap();
    zone.get(pfn).unwrap().set_owner(SpaceId(3), Vpn(77));
    // The check is strict; to clear the mapping is the part of who releases (C17).
    let mapped = Err(FreeError::Mapped(pfn, SpaceId(3), Vpn(77)));
    assert_eq!(zone.free(&m, pfn, 4), mapped);
    assert_eq!((zone.captured_pages(), zone.allocated_pages()), (0, 16));
    zone.get(pfn).unwrap().clear_owner();
    assert_eq!(zone.free(&m, pfn, 4), Ok(()));
    assert_eq!(capture.pages(), 1024, "with all that was free beside it");
}

#[test]
fn a_failure_says_what_stood_in_the_way_and_who_took_what_was_freed() {
    let m = Cpus::default();
    let zones = zones(2048, 1);
    let zone = &zones[0];
    let all = fill(zone, &m);
    for pfn in &all {
        zone.free(&m, *pfn, 0).unwrap();
    }
    zone.drain(&m);
    assert_eq!(zone.free_by_order()[10], 2);
    // Block 0: unmovable; block 1: pinned; block 2: movable pages; block 3: less of them.
    let all = fill(zone, &m);
    zone.free_bulk(&m, &all[..8]).unwrap();
    let unmovable = zone.alloc_as(&m, 3, Mobility::Unmovable).unwrap();
    assert_eq!(unmovable, Pfn(0));
    zone.get(Pfn(700)).unwrap().set(Flags::PINNED);
    zone.free_bulk(&m, &all[1024..1034]).unwrap();
    zone.free_bulk(&m, &all[1536..1556]).unwrap();
    let order4 = zone.candidates(4, 1)[0];
    assert_eq!(
        (order4.pfn, order4.free, order4.in_use()),
        (Pfn(1536), 16, 0)
    );
    while zone.alloc(&m, 4).is_ok() {}
    struct Stolen<'a>(&'a Cpus, Vec<Pfn>);
    impl Reclaim for Stolen<'_> {
        fn round(&mut self, goal: &Goal<'_>) -> u64 {
            let Some(pfn) = self.1.pop() else { return 0 };
            goal.zone.free(self.0, pfn, 0).unwrap();
            while goal.zone.alloc(self.0.on(2), 0).is_ok() {}
            self.0.on(0);
            1
        }
    }
    let mut reclaim = Stolen(&m, all[1034..1040].to_vec());
    let list = Zonelist::new(&zones);
    zone.set_capture(&m, CapturePolicy::OFF);
    let why = alloc_pages(&m, &list, &Request::new(9), Some(&mut reclaim)).unwrap_err();
    assert_eq!(
        (why.reason, why.rounds, why.freed),
        (Reason::Reclaimed, 7, 6)
    );
    let report = &why.zones[0];
    // CPU 2 took what was free before and all that reclaim freed.
    assert_eq!(report.taken_by, [(2, 10 + 4 + 6)]);
    let seen: Vec<_> = (report.candidates.iter())
        .map(|c| (c.pfn.0, c.free, c.movable, c.unmovable, c.pinned))
        .collect();
    assert_eq!(
        seen,
        [
            (1024, 0, 512, 0, 0),
            (1536, 0, 512, 0, 0),
            (512, 0, 511, 0, 1),
            (0, 0, 504, 8, 0),
        ]
    );
    for most in 0..4 {
        assert_eq!(zone.candidates(9, most), report.candidates[..most]);
    }
    let text = why.to_string();
    for part in [
        "order 9",
        "CPU 2 was given 20 pages",
        "8 unmovable",
        "1 pinned",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn no_request_panics() {
    let m = Cpus::default();
    let empty = zones(0, 2);
    let none = Zonelist::new(&[]);
    for order in [0, 4, 9, 10, 11, 63, 64, 255] {
        for flags in [0u16, 8, 4 | 8, 512 | 8, 0x3ff].map(flags_of) {
            for reclaim_pages in [0, 1, u64::MAX] {
                let request = Request {
                    reclaim_pages,
                    ..Request::new(order).with_flags(flags)
                };
                for list in [none, Zonelist::new(&empty)] {
                    let mut nothing = Frees::new(&m, []);
                    let why = alloc_pages(&m, &list, &request, Some(&mut nothing)).unwrap_err();
                    assert_eq!(why.reason == Reason::Order, order > 10, "{why}");
                    assert!(alloc_pages(&m, &list, &request, None).is_err());
                }
            }
        }
        assert!(empty[0].begin_capture(&m, order).is_none() || (4..=10).contains(&order));
        assert_eq!(empty[0].candidates(order, 8), []);
        assert!(empty[0].alloc(&m, order).is_err());
        assert!(empty[0].free(&m, Pfn(0), order).is_err());
    }
    // A CPU that the zone does not know has no list, and no capture.
    let zone = full(0, 4096);
    let m = m.on(99);
    let pfn = zone.alloc(m, 0).unwrap();
    assert!(zone.begin_capture(m, 9).is_none());
    zone.free(m, pfn, 0).unwrap();
    assert_eq!((zone.drain(m), zone.free_pages()), (0, 4096));
    zone.verify().unwrap();
}

fn flags_of(bits: u16) -> AllocFlags {
    let all = [
        AllocFlags::WMARK_MIN,
        AllocFlags::WMARK_LOW,
        AllocFlags::NO_WATERMARKS,
        AllocFlags::DIRECT_RECLAIM,
        AllocFlags::KSWAPD,
        AllocFlags::NORETRY,
        AllocFlags::NOWARN,
        AllocFlags::CPUSET,
        AllocFlags::HARDWALL,
        AllocFlags::RETRY_MAYFAIL,
    ];
    let set = |i: &usize| bits >> i & 1 == 1;
    (0..all.len())
        .filter(set)
        .fold(AllocFlags::default(), |f, i| f | all[i])
}
