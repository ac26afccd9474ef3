//! How a huge page is taken apart where that takes frames.

use super::common::hand::{BLOCK, intact, tunables};
use super::common::{BASE, Rig};
use deckle_mm::{SplitMode, Tunables};

#[test]
fn r141_without_frames_to_move_to_a_huge_page_is_split_where_it_is() {
    for split_mode in [SplitMode::Auto, SplitMode::Shatter] {
        let t = Tunables {
            split_mode,
            ..tunables(409)
        };
        let rig = Rig::new(8, 1, 1, true, t);
        (0..4).for_each(|k| assert_eq!(rig.huge(k * BLOCK, 0..10), BASE.add(k * BLOCK)));
        let head = rig.folio(BASE).head;
        // The oldest first.
        assert_eq!(rig.mm.shrink_underused(1, 1), 502);
        assert_eq!(rig.folio(BASE.add(9)).frame, head.add(9));
        // Now there are.
        let next = rig.folio(BASE.add(BLOCK)).head;
        assert_eq!(rig.mm.shrink_underused(1, 1), 502);
        let moved = rig.folio(BASE.add(BLOCK)).frame;
        assert!(!(next.0..next.0 + 512).contains(&moved.0));
        (0..4).for_each(|k| intact(&rig, BASE.add(k * BLOCK), |i| i < 10));
        rig.verify(&split_mode);
    }
}
