//! Operations on a whole block that stop half-way, because a page of it is held or the address
//! space is changing.

use super::P;
use super::common::Rig;
use super::common::hand::BLOCK;
use deckle_mm::{Profile, SplitFlags, Tunables, Vpn};
use deckle_model::{Chance, Injection, Profile as _, Rng};

/// Something that takes a huge page from the program, as a whole or to make small ones of it.
fn take(rig: &Rig, start: Vpn, rng: &mut Rng) -> &'static str {
    match rng.below(5) {
        0 => {
            rig.mm.reclaim(2 * BLOCK);
            "reclaim"
        }
        1 => {
            let _ = rig.mm.page_out(rig.space, start, BLOCK);
            "page out"
        }
        2 => {
            rig.mm.shrink_underused(10, 10);
            "shrink"
        }
        3 => {
            let page = start.add(rng.below(BLOCK));
            let _ = rig.mm.split_page(rig.space, page, 0, SplitFlags::DROP_ZERO);
            "split"
        }
        _ => {
            rig.mm.khugepaged();
            "collapse"
        }
    }
}

#[test]
fn r98_r131_r138_a_block_that_is_taken_or_given_back_in_part_keeps_every_byte() {
    let mut stopped = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let t = Tunables {
            khugepaged_scan_sleep_millisecs: 100,
            ..Tunables::of_profile(Profile::Deckle)
        };
        let rig = Rig::new(64, 1, seed, true, t);
        for k in 0..8 {
            let start = rig.huge(k * BLOCK, (0..BLOCK).step_by(1 + rng.below(9) as usize));
            let bytes: Vec<_> = (0..BLOCK).map(|i| rig.read(start.add(i))).collect();
            // What stops for want of memory cannot be undone for want of memory.
            rig.model.set_injection(match seed % 2 {
                0 => Injection {
                    unmap_busy: Chance(200),
                    retry: Chance(500),
                    ..Injection::default()
                },
                _ => Injection {
                    no_memory: Chance(300),
                    ..Injection::default()
                },
            });
            let how = take(&rig, start, &mut rng);
            rig.model.set_injection(Injection::default());
            rig.verify(&(seed, k, how));
            for i in 0..BLOCK {
                let page = start.add(i);
                assert!(rig.read(page) == bytes[i as usize], "{seed} {how}: {page}");
            }
            rig.verify(&(seed, k));
        }
        stopped += rig.model.counters().stopped;
    }
    println!("{stopped} operations stopped in the middle of a block");
    assert!(if P::RAM { stopped == 0 } else { stopped > 100 });
}
