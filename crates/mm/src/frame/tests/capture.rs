//! Page capture, step by step.

use super::super::meta::Head;
use super::*;

/// All of the zone allocated, page by page, in ascending order.
fn fill(zone: &Zone, m: &Cpus) {
    let frames = zone.span().frames as usize;
    let mut all = std::vec![Pfn(0); frames];
    assert_eq!(zone.alloc_bulk(m, &mut all), frames);
    assert_eq!(zone.free_pages(), 0);
}

fn sums(zone: &Zone, allocated: u64) {
    zone.verify().unwrap();
    assert_eq!(zone.allocated_pages(), allocated);
    let idle = zone.free_pages() + zone.cached_pages() + zone.captured_pages();
    assert_eq!(idle + allocated, zone.span().frames as u64);
}

#[test]
fn r10_only_orders_above_three_capture() {
    let m = Cpus::default();
    let zone = full(0, 4096);
    for order in 0..=12 {
        let began = zone.begin_capture(&m, order).is_some();
        assert_eq!(began, (4..=10).contains(&order), "order {order}");
    }
    zone.set_capture(
        &m,
        CapturePolicy {
            above: 9,
            ..CapturePolicy::ON
        },
    );
    assert!(zone.begin_capture(&m, 9).is_none());
    assert!(zone.begin_capture(&m, 10).is_some());
    assert_eq!(zone.capture_stats(&m).begun, 8);
}

/// Frees `pfns` on a CPU, one by one.
fn free(zone: &Zone, m: &Cpus, cpu: usize, pfns: impl IntoIterator<Item = u32>) {
    for pfn in pfns {
        zone.free(m.on(cpu), Pfn(pfn), 0).unwrap();
        zone.verify().unwrap();
    }
}

#[test]
fn r12_r17_r18_r19_what_the_reclaimer_frees_is_its_own_until_it_looks() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let mut capture = zone.begin_capture(&m, 4).unwrap();
    for i in 0..15 {
        free(&zone, &m, 0, [32 + i]);
        sums(&zone, 1023 - i as u64);
        assert_eq!((zone.free_pages(), capture.pages()), (0, i as u64 + 1));
        assert!(
            zone.alloc(m.on(1), 0).is_err(),
            "captured frames are nobody else's"
        );
    }
    free(&zone, &m, 0, [47]);
    let meta = zone.get(Pfn(32)).unwrap();
    assert_eq!(
        (meta.kind(), meta.head()),
        (Kind::Captured, Some(Head::Captured(4, 0)))
    );
    assert_eq!(
        zone.free(&m, Pfn(32), 4),
        Err(FreeError::DoubleFree(Pfn(32)))
    );
    assert_eq!(
        zone.free(&m, Pfn(40), 0),
        Err(FreeError::DoubleFree(Pfn(40)))
    );
    // Nothing was ever free: the block did not pass the free lists.
    assert_eq!(zone.free_by_order(), [0; ORDERS]);
    let before = zone.events();
    assert_eq!(capture.consult(Mobility::Movable, |_| true), Some(Pfn(32)));
    assert_eq!(meta.head(), Some(Head::Folio(4)));
    assert_eq!(zone.free_by_order(), [0; ORDERS]);
    assert_eq!(zone.events().pgalloc - before.pgalloc, 16);
    sums(&zone, 1024);
}

#[test]
fn r13_captured_frames_merge_up_to_the_largest_order() {
    let m = Cpus::default();
    let zone = full(0, 2048);
    fill(&zone, &m);
    let capture = zone.begin_capture(&m, 10).unwrap();
    // From both ends, so that merges run through all orders at the last frame.
    for i in 0..512 {
        zone.free(&m, Pfn(i), 0).unwrap();
        zone.free(&m, Pfn(1023 - i), 0).unwrap();
    }
    zone.verify().unwrap();
    assert_eq!(
        zone.get(Pfn(0)).unwrap().head(),
        Some(Head::Captured(10, 0))
    );
    assert_eq!((capture.pages(), zone.free_pages()), (1024, 0));
    drop(capture);
    assert_eq!(zone.free_by_order()[10], 1, "given back as one block");
    sums(&zone, 1024);
}

#[test]
fn r14_free_buddies_are_absorbed_and_leave_the_free_counters() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    free(&zone, &m, 1, 32..47);
    zone.drain(&m);
    assert_eq!(zone.free_pages(), 15);
    let mut capture = zone.begin_capture(m.on(0), 4).unwrap();
    free(&zone, &m, 0, [47]);
    assert_eq!((zone.free_pages(), zone.captured_pages()), (0, 16));
    assert_eq!(zone.free_by_order(), [0; ORDERS]);
    sums(&zone, 1008);
    let stats = zone.capture_stats(&m);
    assert_eq!((stats.own, stats.absorbed, stats.joined), (1, 15, 0));
    assert_eq!(capture.consult(Mobility::Movable, |_| true), Some(Pfn(32)));
    // Without this part the frame stays alone, and the free ones stay free.
    free(&zone, &m, 1, 64..79);
    zone.drain(&m);
    let policy = CapturePolicy {
        absorb_free: false,
        ..CapturePolicy::ON
    };
    drop(capture);
    zone.set_capture(&m, policy);
    let mut capture = zone.begin_capture(m.on(0), 4).unwrap();
    free(&zone, &m, 0, [79]);
    assert_eq!((zone.free_pages(), zone.captured_pages()), (15, 1));
    assert_eq!(capture.consult(Mobility::Movable, |_| true), None);
    assert_eq!(zone.free_by_order()[4], 1, "merged when it was given back");
    sums(&zone, 1008);
}

#[test]
fn r15_a_frame_that_another_cpu_frees_next_to_a_captured_buddy_joins() {
    let m = Cpus::default();
    for from_others in [true, false] {
        let zone = full(0, 1024);
        fill(&zone, &m);
        let policy = CapturePolicy {
            from_others,
            ..CapturePolicy::ON
        };
        zone.set_capture(&m, policy);
        let mut capture = zone.begin_capture(m.on(0), 4).unwrap();
        free(&zone, &m, 0, [33]);
        free(&zone, &m, 1, [64]);
        let pages = (zone.free_pages(), zone.captured_pages());
        assert_eq!(pages, (1, 1), "no buddy of a captured one");
        free(&zone, &m, 1, (32..48).filter(|i| *i != 33));
        let joined = if from_others { 15 } else { 0 };
        let pages = (zone.free_pages(), zone.captured_pages());
        assert_eq!(pages, (16 - joined, 1 + joined));
        let got = capture.consult(Mobility::Movable, |_| true);
        assert_eq!(got, from_others.then_some(Pfn(32)));
        drop(capture);
        sums(&zone, if from_others { 1023 } else { 1007 });
        let stats = zone.capture_stats(&m);
        assert_eq!((stats.own, stats.joined), (1, joined));
        assert_eq!(stats.taken + stats.returned, 1 + joined);
    }
}

#[test]
fn r16_r17_a_block_of_two_reclaimers_ends_on_one_list_with_one_owner() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let mut a = zone.begin_capture(m.on(0), 5).unwrap();
    let mut b = zone.begin_capture(m.on(1), 4).unwrap();
    free(&zone, &m, 0, 32..40);
    assert_eq!(
        zone.get(Pfn(32)).unwrap().head(),
        Some(Head::Captured(3, 0))
    );
    // The one who frees the last piece takes the other's part over.
    free(&zone, &m, 1, 40..47);
    assert_eq!((a.pages(), b.pages()), (8, 7));
    free(&zone, &m, 1, [47]);
    assert_eq!((a.pages(), b.pages()), (0, 16));
    assert_eq!(
        zone.get(Pfn(32)).unwrap().head(),
        Some(Head::Captured(4, 1))
    );
    assert_eq!(zone.capture_stats(&m).handed_over, 8);
    // What satisfies its owner is not taken over any more: A keeps its half of the 32 pages.
    free(&zone, &m, 0, 48..64);
    assert_eq!((a.pages(), b.pages()), (16, 16));
    assert_eq!(a.consult(Mobility::Movable, |_| true), None);
    assert_eq!((zone.free_pages(), zone.captured_pages()), (16, 16));
    assert_eq!(b.consult(Mobility::Movable, |_| true), Some(Pfn(32)));
    drop((a, b));
    sums(&zone, 1024 - 16);
    let s = zone.capture_stats(&m);
    assert_eq!(s.own + s.absorbed + s.joined, s.taken + s.returned);
}

#[test]
fn r16_what_a_satisfied_reclaimer_frees_joins_the_other_one() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let a = zone.begin_capture(m.on(0), 4).unwrap();
    let mut b = zone.begin_capture(m.on(1), 5).unwrap();
    free(&zone, &m, 0, 64..80);
    free(&zone, &m, 1, 48..64);
    free(&zone, &m, 0, 32..47);
    assert_eq!((a.pages(), b.pages(), zone.free_pages()), (16, 16, 15));
    free(&zone, &m, 0, [47]);
    assert_eq!((a.pages(), b.pages(), zone.free_pages()), (16, 32, 0));
    assert_eq!(zone.capture_stats(&m).joined, 16);
    drop(a);
    assert_eq!(b.consult(Mobility::Movable, |_| true), Some(Pfn(32)));
    drop(b);
    sums(&zone, 1024 - 16);
}

#[test]
fn r19_r20_a_larger_block_is_trimmed_to_its_first_part() {
    let m = Cpus::default();
    let zone = full(0, 2048);
    let huge = zone.alloc(&m, 9).unwrap();
    let rest: Vec<Pfn> = (0..1536).map(|_| zone.alloc(&m, 0).unwrap()).collect();
    assert_eq!(zone.allocated_pages(), 2048);
    let mut capture = zone.begin_capture(&m, 5).unwrap();
    zone.free(&m, huge, 9).unwrap();
    assert_eq!(capture.consult(Mobility::Movable, |_| true), Some(huge));
    // 512 = 32 + 32 + 64 + 128 + 256: the rest are correct buddies.
    let mut by_order = [0; ORDERS];
    by_order[5..9].fill(1);
    assert_eq!(zone.free_by_order(), by_order);
    sums(&zone, 2048 - 480);
    zone.free(&m, huge, 5).unwrap();
    drop(capture);
    zone.drain(&m);
    assert_eq!(zone.free_by_order()[9], 1);
    zone.free_bulk(&m, &rest).unwrap();
    sums(&zone, 0);
    assert_eq!(zone.free_by_order()[10], 2);
}

#[test]
fn r22_a_block_that_is_refused_goes_back_and_capture_goes_on() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let mut capture = zone.begin_capture(&m, 4).unwrap();
    free(&zone, &m, 0, 32..48);
    let mut seen = 0;
    let refused = capture.consult(Mobility::Movable, |zone| {
        // The block itself is in no counter when the test is asked.
        seen = zone.free_pages();
        false
    });
    assert_eq!((refused, seen), (None, 0));
    assert_eq!((zone.free_pages(), zone.free_by_order()[4]), (16, 1));
    free(&zone, &m, 0, 64..80);
    assert_eq!(capture.consult(Mobility::Movable, |_| true), Some(Pfn(64)));
    let stats = zone.capture_stats(&m);
    assert_eq!((stats.refused, stats.successes, stats.taken), (1, 1, 16));
    drop(capture);
    sums(&zone, 1024 - 16);
}

#[test]
fn r23_after_a_success_nothing_more_is_captured() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let mut capture = zone.begin_capture(&m, 4).unwrap();
    free(&zone, &m, 0, 32..48);
    // The block is there: no more is needed, even before anybody has looked (C19).
    free(&zone, &m, 0, 64..70);
    free(&zone, &m, 1, 70..80);
    assert_eq!((zone.captured_pages(), zone.free_pages()), (16, 16));
    assert_eq!(capture.consult(Mobility::Movable, |_| true), Some(Pfn(32)));
    free(&zone, &m, 0, 96..112);
    assert_eq!((zone.captured_pages(), zone.free_pages()), (0, 32));
    drop(capture);
    sums(&zone, 1024 - 32);
}

#[test]
fn r25_a_captured_block_is_prepared_like_any_other() {
    let m = Cpus::default();
    let (plain, capturing) = (full(0, 1024), full(0, 1024));
    let mut got = Vec::new();
    for zone in [&plain, &capturing] {
        let all: Vec<Pfn> = (0..64).map(|_| zone.alloc(&m, 4).unwrap()).collect();
        let meta = zone.get(all[7]).unwrap();
        meta.set(Flags::REJECTED | Flags::FORKED | Flags::PARTIAL);
        let events = zone.events();
        let pfn = if std::ptr::eq(zone, &capturing) {
            let mut capture = zone.begin_capture(&m, 4).unwrap();
            zone.free(&m, all[7], 4).unwrap();
            capture.consult(Mobility::Unmovable, |_| true).unwrap()
        } else {
            zone.free(&m, all[7], 4).unwrap();
            zone.alloc_as(&m, 4, Mobility::Unmovable).unwrap()
        };
        let meta = zone.get(pfn).unwrap();
        assert_eq!(meta.mobility(), Mobility::Unmovable);
        let pgalloc = zone.events().pgalloc - events.pgalloc;
        got.push((pfn, format!("{meta:?}"), pgalloc));
        sums(zone, 1024);
    }
    assert_eq!(got[0], got[1]);
}

#[test]
fn r26_without_high_order_reclaim_capture_changes_nothing() {
    let m = Cpus::default();
    let span = full(1024, 20_000).span();
    let without = ZoneConfig {
        capture: false,
        ..ZoneConfig::contiguous(4)
    };
    let mut histories = Vec::new();
    for config in [ZoneConfig::contiguous(4), without] {
        let zone = Zone::with(span, config);
        zone.set_watermarks(Watermarks::of_pages(20_000));
        let (mut random, mut live, mut history) = (Random(0x26_0001), Vec::new(), Vec::new());
        for step in 0..30_000u32 {
            let m = m.on(random.below(4));
            if random.below(100) < if step / 3000 % 2 == 0 { 60 } else { 45 } {
                let mut request = Request::new(random.below(4) as u8);
                request.mobility = Mobility::ALL[random.below(3)];
                // Direct reclaim for low orders, which frees the oldest.
                let mut reclaim = Oldest(&mut live, m);
                let zones = std::slice::from_ref(&zone);
                let got = alloc_pages(m, &Zonelist::new(zones), &request, Some(&mut reclaim));
                let got = got.map(|got| got.pfn).map_err(|why| format!("{why}"));
                live.extend(got.iter().map(|p| (*p, request.order)));
                history.push(format!("{got:?}"));
            } else if !live.is_empty() {
                let (pfn, order) = live.remove(random.below(live.len()));
                zone.free(m, pfn, order).unwrap();
            }
            if step % 100 == 0 {
                let counts = (zone.free_by_order(), zone.cached_pages(), zone.events());
                history.push(format!("{counts:?} {:?}", zone.candidates(9, 4)));
            }
        }
        zone.verify().unwrap();
        assert_eq!(zone.capture_stats(&m), CaptureStats::default());
        assert!(zone.events().pgalloc > 20_000, "reclaim was never needed");
        histories.push(history);
    }
    assert_eq!(histories[0], histories[1]);
}

struct Oldest<'a>(&'a mut Vec<(Pfn, u8)>, &'a Cpus);

impl Reclaim for Oldest<'_> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        let n = self.0.len().min(16);
        let mut freed = 0;
        for (pfn, order) in self.0.drain(..n) {
            goal.zone.free(self.1, pfn, order).unwrap();
            freed += order_pages(order) as u64;
        }
        freed
    }
}

#[test]
fn r27_the_switch_turns_capture_off_at_once() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    zone.set_capture(&m, CapturePolicy::OFF);
    assert_eq!(zone.capture_policy(&m), CapturePolicy::OFF);
    assert!(zone.begin_capture(&m, 9).is_none());
    free(&zone, &m, 0, 32..48);
    assert_eq!(
        (zone.captured_pages(), zone.capture_stats(&m)),
        (0, CaptureStats::default())
    );
    zone.set_capture(&m, CapturePolicy::ON);
    assert!(zone.begin_capture(&m, 9).is_some());
}

#[test]
fn r21_r28_the_list_is_empty_after_each_look_and_the_amount_is_visible() {
    let m = Cpus::default();
    let zone = full(0, 4096);
    fill(&zone, &m);
    let mut capture = zone.begin_capture(&m, 9).unwrap();
    for round in 0..10 {
        // 32 pages of 32 different pageblock parts: none can merge with another.
        for i in 0..32 {
            zone.free(&m, Pfn(i * 128 + round * 2), 0).unwrap();
            assert_eq!(zone.capture_stats(&m).now, i as u64 + 1);
        }
        assert_eq!((zone.captured_pages(), capture.pages()), (32, 32));
        assert_eq!(capture.consult(Mobility::Movable, |_| true), None);
        assert_eq!((zone.captured_pages(), capture.pages()), (0, 0));
        zone.verify().unwrap();
    }
    let stats = zone.capture_stats(&m);
    assert_eq!((stats.peak, stats.own, stats.returned), (32, 320, 320));
}

#[test]
fn a_capture_that_is_dropped_gives_everything_back() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let capture = zone.begin_capture(&m, 9).unwrap();
    assert!(zone.begin_capture(&m, 9).is_none(), "one list for each CPU");
    free(&zone, &m, 0, 100..200);
    drop(capture);
    assert_eq!((zone.captured_pages(), zone.free_pages()), (0, 100));
    // Frees go to the per-CPU lists again.
    free(&zone, &m, 0, [300]);
    assert_eq!((zone.cached_pages(), zone.free_pages()), (1, 100));
    assert!(zone.begin_capture(&m, 9).is_some());
}
