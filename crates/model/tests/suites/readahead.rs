//! Readahead: who walks takes few faults, who jumps reads little.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::{Advice, Item, Profile, ThpMode, Tunables, Vpn};
use deckle_model::Rng;

fn rig(adapts: bool) -> (Rig, Vpn) {
    let t = Tunables {
        thp: ThpMode::Never,
        vma_ra_enabled: adapts,
        // What a window without adaption was: 64 KiB.
        page_cluster: if adapts { 6 } else { 4 },
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    let start = rig.mmap(0, PAGES);
    (0..PAGES).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.advise(start, PAGES, Advice::PageOut);
    (rig, start)
}

const PAGES: u64 = 8 * BLOCK;

/// Faults that a walk over these pages takes.
fn faults(rig: &Rig, pages: impl Iterator<Item = Vpn>) -> u64 {
    let before = rig.stat(Item::Pgmajfault);
    pages.for_each(|page| {
        rig.read(page);
    });
    rig.stat(Item::Pgmajfault) - before
}

#[test]
fn r98_a_walk_through_what_is_away_takes_a_fault_for_many_pages() {
    for down in [false, true] {
        let walk =
            |start: Vpn| (0..PAGES).map(move |i| start.add(if down { PAGES - 1 - i } else { i }));
        let (fixed, start) = rig(false);
        let before = faults(&fixed, walk(start));
        assert_eq!(before, PAGES / 16);
        let (rig, start) = rig(true);
        let now = faults(&rig, walk(start));
        assert!(now * 3 < before, "{now} faults, {before} before");
        let (ahead, hit) = (rig.stat(Item::SwapRa), rig.stat(Item::SwapRaHit));
        assert_eq!(ahead, PAGES - now);
        assert!(hit > ahead * 9 / 10, "{hit} of {ahead}");
        (0..PAGES).for_each(|i| assert!(rig.holds(start.add(i), byte_of(i))));
        rig.verify(&down);
    }
}

#[test]
fn r98_jumps_soon_read_one_page_each() {
    // Not in the first block.
    let jumps = |start: Vpn| {
        let mut rng = Rng::new(3);
        (0..400).map(move |_| start.add(BLOCK + rng.below(PAGES - BLOCK)))
    };
    let (fixed, start) = rig(false);
    let before = faults(&fixed, jumps(start));
    let (rig, start) = rig(true);
    let now = faults(&rig, jumps(start));
    let (much, little) = (fixed.stat(Item::Pswpin), rig.stat(Item::Pswpin));
    assert!(little < now * 2, "{little} pages for {now} faults");
    assert!(
        little * 4 < much,
        "{little} pages, {much} for {before} faults before"
    );
    rig.verify(&"jumps");
    // A walk begins: it gets its window all the same.
    let walk = faults(&rig, (0..BLOCK).map(|i| start.add(i)));
    assert!(walk < BLOCK / 16, "{walk}");
}

#[test]
fn r98_walks_side_by_side_keep_their_windows() {
    let (rig, start) = rig(true);
    // Four walks, each in blocks of its own, taking turns, and one who jumps in the last block.
    let mut rng = Rng::new(5);
    let mut jumps = 0;
    let faults = faults(
        &rig,
        (0..BLOCK)
            .flat_map(|i| {
                let jump = (i % 8 == 0).then(|| {
                    jumps += 1;
                    7 * BLOCK + rng.below(BLOCK)
                });
                (0..4).map(move |w| w * BLOCK + i).chain(jump)
            })
            .collect::<Vec<_>>()
            .into_iter()
            .map(|i| start.add(i)),
    );
    assert!(faults <= jumps + 4 * 20, "{faults} faults, {jumps} jumps");
    rig.verify(&"walks");
}
