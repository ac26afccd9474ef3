//! Page capture, step by step.

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

#[test]
fn r12_r13_r17_r18_r19_what_the_reclaimer_frees_is_its_own_until_it_looks() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let mut capture = zone.begin_capture(&m, 4).unwrap();
    for i in 0..15 {
        zone.free(&m, Pfn(32 + i), 0).unwrap();
        sums(&zone, 1023 - i as u64);
        assert_eq!(
            (zone.free_pages(), zone.captured_pages()),
            (0, i as u64 + 1)
        );
        assert_eq!(capture.consult_nothing(), ());
        assert!(
            zone.alloc(&m, 0).is_err(),
            "captured frames are nobody else's"
        );
    }
    zone.free(&m, Pfn(47), 0).unwrap();
    assert_eq!(zone.get(Pfn(32)).unwrap().kind(), Kind::Captured);
    assert_eq!(
        zone.free(&m, Pfn(32), 4),
        Err(FreeError::DoubleFree(Pfn(32)))
    );
    assert_eq!(
        zone.free(&m, Pfn(40), 0),
        Err(FreeError::DoubleFree(Pfn(40)))
    );
    let pfn = capture.consult(Mobility::Movable, |_| true);
    assert_eq!(pfn, Some(Pfn(32)));
    assert_eq!(zone.get(Pfn(32)).unwrap().folio_order(), Some(4));
    sums(&zone, 1024);
}

impl<M: Machine> Capture<'_, M> {
    /// Looks at the list without emptying it.
    fn consult_nothing(&self) {
        assert!(self.pages() <= self.zone().captured_pages());
    }
}

#[test]
fn r15_a_frame_that_another_cpu_frees_next_to_a_captured_buddy_joins() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    fill(&zone, &m);
    let mut capture = zone.begin_capture(m.on(0), 4).unwrap();
    zone.free(&m, Pfn(33), 0).unwrap();
    zone.free(m.on(1), Pfn(64), 0).unwrap();
    assert_eq!(
        (zone.free_pages(), zone.captured_pages()),
        (1, 1),
        "no buddy of a captured one"
    );
    for i in (32..48).filter(|i| *i != 33) {
        zone.free(&m, Pfn(i), 0).unwrap();
        zone.verify().unwrap();
    }
    assert_eq!((zone.free_pages(), zone.captured_pages()), (1, 16));
    assert_eq!(m.kicks(), 0);
    assert_eq!(capture.consult(Mobility::Movable, |_| true), Some(Pfn(32)));
    drop(capture);
    sums(&zone, 1023);
    let stats = zone.capture_stats(&m);
    assert_eq!(
        (stats.own, stats.joined, stats.taken, stats.returned),
        (1, 15, 16, 0)
    );
}
