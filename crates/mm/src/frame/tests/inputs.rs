//! Whatever the public functions are called with, they answer: no panic, and nothing changes
//! by what is refused.

use super::*;

const ORDERS_TRIED: [u8; 12] = [0, 1, 3, 4, 5, 9, 10, 11, 31, 32, 64, 255];

/// Zones of every size that could be special, at both ends of the numbers.
fn odd_zones() -> Vec<Zone> {
    let spans = [
        (0, 0),
        (1024, 0),
        (u32::MAX, 0),
        (u32::MAX, 7),
        (0, 1),
        (5, 1),
        (1023, 2),
        (3, 700),
        (u32::MAX - 600, u32::MAX),
    ];
    let configs = [
        ZoneConfig::default(),
        ZoneConfig::contiguous(0),
        ZoneConfig::contiguous(2).on_node(63),
        ZoneConfig::contiguous(100).on_node(255),
    ];
    let spans = spans.map(|(first, frames)| FrameSpan {
        first: Pfn(first),
        frames,
    });
    let of = |span| configs.map(|config| Zone::with(span, config));
    let mut zones: Vec<Zone> = spans.into_iter().flat_map(of).collect();
    // More CPUs than a zone can have lists for, which is slow to drain: once.
    zones.push(Zone::with(spans[5], ZoneConfig::contiguous(usize::MAX)));
    zones
}

/// Frames inside, at the edges and outside of a zone.
fn odd_frames(zone: &Zone) -> Vec<Pfn> {
    let (first, n) = (zone.span().first.0, zone.span().frames);
    let at = |by: u32| first.wrapping_add(by);
    [0, 1, n / 2, n.wrapping_sub(1), n, n.wrapping_add(1)]
        .map(at)
        .into_iter()
        .chain([
            0,
            511,
            512,
            1 << 31,
            u32::MAX - 1,
            u32::MAX,
            first.wrapping_sub(1),
        ])
        .map(Pfn)
        .collect()
}

/// Calls everything that takes a frame or an order, with frames that are not allocated.
fn call_all(zone: &Zone, m: &Cpus) {
    let counts = |zone: &Zone| {
        (
            zone.free_pages(),
            zone.allocated_pages(),
            zone.events().pgfree,
        )
    };
    let before = counts(zone);
    for pfn in odd_frames(zone) {
        for order in ORDERS_TRIED {
            assert!(zone.free(m, pfn, order).is_err(), "{zone:?} {pfn} {order}");
            assert!(zone.split_allocated(pfn, order).is_err());
            assert!(zone.split_allocated_into(pfn, order, |_| 255).is_err());
        }
        assert!(!zone.has_bad(pfn, u32::MAX));
        assert!(zone.mark_bad(pfn).is_err());
        assert!(zone.free_bulk(m, &[pfn, pfn]).is_err());
        // A frame of nobody is its own head, or that of the free block it lies in.
        assert!(zone.head_of(pfn) <= pfn);
        zone.pageblock(pfn);
        assert!(zone.contains(pfn) || zone.get(pfn).is_none());
    }
    for order in ORDERS_TRIED {
        for mark in [Mark::Min, Mark::Low, Mark::High] {
            let ok = zone.watermark_ok(order, mark);
            assert!(!ok || order <= MAX_ORDER);
        }
        assert!(zone.candidates(order, usize::MAX).len() <= zone.span().frames as usize);
        assert_eq!(zone.candidates(order, 0), []);
        if let Some(mut capture) = zone.begin_capture(m, order) {
            assert_eq!(capture.consult(Mobility::Unmovable, |_| true), None);
            assert_eq!(capture.consult(Mobility::Unmovable, |_| false), None);
        }
    }
    assert_eq!(zone.free_bulk(m, &[]), Ok(()));
    assert_eq!(zone.alloc_bulk(m, &mut []), 0);
    assert_eq!(counts(zone), before);
    zone.verify().unwrap();
}

#[test]
fn no_frame_and_no_order_panics_in_zones_of_any_size_full_or_empty() {
    let m = Cpus::default();
    for zone in odd_zones() {
        call_all(&zone, &m);
        let mut all = Vec::new();
        for order in ORDERS_TRIED.into_iter().rev() {
            while let Ok(pfn) = zone.alloc(m.on(all.len() % 5), order) {
                assert!(order <= MAX_ORDER && zone.contains(pfn));
                all.push((pfn, order));
            }
        }
        // Exhausted.
        assert_eq!((zone.free_pages(), zone.cached_pages()), (0, 0), "{zone:?}");
        assert_eq!(zone.alloc_bulk(&m, &mut [Pfn(0); 9]), 0);
        for order in ORDERS_TRIED {
            for mobility in Mobility::ALL {
                assert_eq!(zone.alloc_as(&m, order, mobility).unwrap_err().order, order);
            }
            let zones = std::slice::from_ref(&zone);
            let request = Request::new(order);
            assert!(alloc_pages(&m, &Zonelist::new(zones), &request, None).is_err());
            assert!(
                zone.begin_capture(m.on(7), order)
                    .is_none_or(|c| c.pages() == 0)
            );
        }
        for (pfn, order) in all {
            assert_eq!(zone.free(&m, pfn, order), Ok(()));
            assert_eq!(zone.free(&m, pfn, order), Err(FreeError::DoubleFree(pfn)));
        }
        zone.drain(&m);
        call_all(&zone, &m);
        assert_eq!(zone.free_pages(), zone.span().frames as u64);
    }
}

#[test]
fn r2_bad_frames_are_found_in_any_range() {
    let m = Cpus::default();
    let zone = full(1024, 2048);
    let pfn = zone.alloc(&m, 4).unwrap();
    zone.mark_bad(pfn.add(9)).unwrap();
    assert!(zone.has_bad(pfn, 16) && zone.has_bad(pfn.add(9), 1) && zone.has_bad(Pfn(0), u32::MAX));
    assert!(!zone.has_bad(pfn, 9) && !zone.has_bad(pfn.add(10), u32::MAX));
    assert!(!zone.has_bad(pfn, 0) && !zone.has_bad(Pfn(u32::MAX), u32::MAX));
}

#[test]
fn a_part_of_any_order_is_made_one_that_fits() {
    let m = Cpus::default();
    let zone = full(0, 2048);
    for part in [0, 3, 9, 10, 255] {
        let pfn = zone.alloc(&m, 9).unwrap();
        zone.split_allocated_into(pfn, 9, |_| part).unwrap();
        zone.verify().unwrap();
        let order = part.min(9);
        for i in (0..512).step_by(1 << order) {
            zone.free(&m, pfn.add(i), order).unwrap();
        }
        zone.verify().unwrap();
    }
}

#[test]
fn no_mark_and_no_mask_panics() {
    let m = Cpus::default();
    let zone = full(0, 2048);
    let of = |min, low, high| Watermarks { min, low, high };
    for marks in [
        of(0, 0, 0),
        of(u64::MAX, 0, 0),
        of(3, 2, 1),
        of(0, 0, u64::MAX),
        of(u64::MAX, u64::MAX, u64::MAX),
    ] {
        zone.set_watermarks(marks);
        let kept = zone.watermarks();
        assert!(kept.min <= kept.low && kept.low <= kept.high);
        let zones = std::slice::from_ref(&zone);
        let got = alloc_pages(&m, &Zonelist::new(zones), &Request::new(3), None);
        assert_eq!(got.is_ok(), marks.min < 2048, "{marks:?}: {got:?}");
        got.into_iter()
            .for_each(|a| zone.free(&m, a.pfn, 3).unwrap());
    }
    for pages in [0, 1, 2, 3, u64::MAX / 4, u64::MAX] {
        let marks = Watermarks::of_pages(pages);
        assert!(marks.min <= marks.low && marks.low <= marks.high && marks.high <= pages.max(1));
    }
    for node in [0, 63, 64, 255] {
        assert_eq!(NodeMask::ALL.has(node), node < 64);
        assert!(!NodeMask(0).has(node));
    }
}
