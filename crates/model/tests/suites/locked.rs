//! Memory that is locked moves when its program moves it, and stays locked.

use super::common::Rig;
use super::common::hand::{BLOCK, byte_of};
use deckle_mm::space::remap::Remap;
use deckle_mm::{Profile, SizeMode, Sizes, Tunables};

/// Pages of a block that are locked and of which some are moved, by folios of `order`.
fn moved(order: u8, (from, n): (u64, u64), shift: u64, leave: bool) {
    let case = (order, (from, n), shift, leave);
    let t = Tunables {
        sizes: match order {
            0 => Sizes::NEVER,
            order => Sizes::NEVER.with(order, SizeMode::Always),
        },
        fault_max: 1 << 20,
        ..Tunables::of_profile(Profile::Deckle)
    };
    let rig = Rig::new(64, 1, 1, true, t);
    let start = rig.mmap(0, BLOCK);
    (0..BLOCK).for_each(|i| rig.write(start.add(i), byte_of(i)));
    rig.mm.mlock(rig.space, start, BLOCK).unwrap();
    let to = start.add(4 * BLOCK + shift);
    let how = match leave {
        true => Remap::Leave(Some(to)),
        false => Remap::Fixed(to),
    };
    let done = rig.mm.mremap(rig.space, start.add(from), n, n, how);
    assert_eq!(done, Ok(to), "{case:?}");
    rig.verify(&case);
    let place = |i: u64| match (from..from + n).contains(&i) {
        true => to.add(i - from),
        false => start.add(i),
    };
    let there = |i: u64| rig.model.translation(rig.space, place(i)).is_some();
    let resident = || assert!((0..BLOCK).all(there), "{case:?}");
    resident();
    rig.mm.reclaim(2 * BLOCK);
    rig.mm.page_out(rig.space, to, n).unwrap();
    resident();
    for i in 0..BLOCK {
        assert!(rig.holds(place(i), byte_of(i)), "{case:?}: page {i}");
    }
    if leave {
        assert!(rig.holds(start.add(from), 0), "{case:?}");
    }
    rig.verify(&case);
}

#[test]
fn r139_locked_pages_are_moved_by_their_program_and_stay_locked() {
    for order in [0, 4, 9] {
        for part in [(0, BLOCK), (0, BLOCK / 2), (100, 300), (511, 1)] {
            for (shift, leave) in [(part.0, false), (part.0, true), (7, false)] {
                moved(order, part, shift, leave);
            }
        }
    }
}
