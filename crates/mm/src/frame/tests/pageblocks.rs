//! Grouping by mobility.

use super::*;

/// Pageblocks in which a page of these lies.
fn spread(pfns: &[Pfn]) -> usize {
    let blocks: std::collections::BTreeSet<u32> = pfns.iter().map(|p| p.0 >> 9).collect();
    blocks.len()
}

/// Fills a zone with movable pages and long-lived unmovable ones, frees all that can move, and
/// says over how many pageblocks the rest is spread, and how many huge pages there are.
fn mixed_load(mobility: bool) -> (usize, u64) {
    let m = Cpus::default();
    let config = ZoneConfig {
        mobility,
        ..ZoneConfig::contiguous(4)
    };
    let span = FrameSpan {
        first: Pfn(0),
        frames: 64 * 512,
    };
    let zone = Zone::with(span, config);
    let mut random = Random(0x6_0b11);
    let (mut movable, mut stuck) = (Vec::new(), Vec::new());
    for _ in 0..60_000 {
        let m = m.on(random.below(4));
        match random.below(40) {
            0 => stuck.extend(zone.alloc_as(m, 0, Mobility::Unmovable).ok()),
            1..28 => movable.extend(zone.alloc(m, 0).ok()),
            _ if !movable.is_empty() => {
                let pfn = movable.swap_remove(random.below(movable.len()));
                zone.free(m, pfn, 0).unwrap();
            }
            _ => {}
        }
    }
    assert!((1400..1600).contains(&stuck.len()));
    for pfn in movable {
        zone.free(&m, pfn, 0).unwrap();
    }
    zone.drain(&m);
    zone.verify().unwrap();
    let by_order = zone.free_by_order();
    (spread(&stuck), by_order[9] + 2 * by_order[10])
}

#[test]
fn what_cannot_move_does_not_spread() {
    // 1500 pages fit into 3 pageblocks.
    let (blocks, huge) = mixed_load(true);
    assert!(blocks <= 6, "spread over {blocks} of 64 pageblocks");
    assert_eq!(blocks as u64 + huge, 64, "all others are whole again");
    // The same load without types spoils most of them: the test can fail.
    let (blocks, huge) = mixed_load(false);
    assert!(blocks >= 32, "spread over {blocks} of 64 pageblocks");
    assert!(huge <= 32);
}

#[test]
fn a_whole_free_pageblock_has_no_type() {
    let m = Cpus::default();
    let zone = full(0, 2048);
    let pfn = zone.alloc_as(&m, 3, Mobility::Unmovable).unwrap();
    assert_eq!(zone.pageblock(pfn), Mobility::Unmovable);
    assert_eq!(
        zone.pageblock(Pfn(pfn.0 ^ 512)),
        Mobility::Movable,
        "one block is enough"
    );
    zone.free(&m, pfn, 3).unwrap();
    zone.drain(&m);
    assert_eq!(zone.pageblock(pfn), Mobility::Movable);
    zone.verify().unwrap();
    let top = zone.alloc_as(&m, 10, Mobility::Reclaimable).unwrap();
    let types = [top, top.add(512)].map(|p| zone.pageblock(p));
    assert_eq!(types, [Mobility::Reclaimable; 2]);
    zone.free(&m, top, 10).unwrap();
    assert_eq!(zone.pageblock(top.add(512)), Mobility::Movable);
}

#[test]
fn without_types_what_cannot_move_takes_the_smallest_block_as_all_else_does() {
    let m = Cpus::default();
    let zone = zone(0, 1024);
    let first = zone.alloc(&m, 0).unwrap();
    let beside = Ok(Pfn(first.0 ^ 1));
    assert_eq!(zone.alloc_as(&m, 0, Mobility::Unmovable), beside);
}

#[test]
fn the_last_resort_takes_a_part_and_what_is_free_beside_it() {
    let m = Cpus::default();
    let zone = full(0, 1024);
    let mut all = [Pfn(0); 1024];
    assert_eq!(zone.alloc_bulk(&m, &mut all), 1024);
    all.sort();
    // Two holes in block 0, a larger one in block 1.
    zone.free_bulk(&m, &all[0..4]).unwrap();
    zone.free_bulk(&m, &all[100..104]).unwrap();
    zone.free_bulk(&m, &all[512..520]).unwrap();
    zone.free_bulk(&m, &all[800..802]).unwrap();
    let first = zone.alloc_as(&m, 2, Mobility::Unmovable).unwrap();
    assert_eq!(first, Pfn(512));
    assert_eq!(zone.pageblock(first), Mobility::Unmovable);
    zone.verify().unwrap();
    // The rest of the hole and the other one beside it are taken next, not block 0.
    assert_eq!(zone.alloc_as(&m, 1, Mobility::Unmovable), Ok(Pfn(800)));
    assert_eq!(zone.alloc_as(&m, 2, Mobility::Unmovable), Ok(Pfn(516)));
    // A movable page keeps to its own block as long as that has room, then takes any.
    assert_eq!(zone.pageblock(Pfn(0)), Mobility::Movable);
    assert!(zone.alloc(&m, 2).unwrap().0 < 512 && zone.alloc(&m, 2).unwrap().0 < 512);
    zone.free(&m, Pfn(800), 1).unwrap();
    zone.drain(&m);
    assert_eq!(zone.alloc(&m, 1), Ok(Pfn(800)));
    assert_eq!(
        zone.pageblock(Pfn(800)),
        Mobility::Unmovable,
        "it is a guest there"
    );
    zone.verify().unwrap();
}
