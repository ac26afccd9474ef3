//! Facts: huge pages under UFFDIO_MOVE, and the block recipe.

use crate::common::mem::{
    BLOCK, PAGE, advise, block_intact, count, has_page, is_huge, is_zero, make_huge, present,
    write_page,
};
use crate::common::pair::{Pair, WHOLE, mv, pair};
use crate::common::process::{next_fault, writer};
use crate::common::{self, fact, skip};
use deckle_uffd::{Categories, CopyMode, Done, Partial, ProtectMode, WakeMode, Why};

#[test]
fn p14_p17_the_block_recipe_keeps_a_huge_page_after_a_missing_fault() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = pair(1);
        let (dst, src) = (map.block(0), park.block(0));
        make_huge(src);
        let touch = writer(dst + 3 * PAGE, 0xAB);
        assert_eq!(next_fault(&uffd), (dst + 3 * PAGE, true, false));
        // The fault has left a page table; this frees it.
        advise(dst, BLOCK, libc::MADV_DONTNEED).expect("DONTNEED");
        assert_eq!(mv(&uffd, dst, src, BLOCK), WHOLE);
        touch.join();
        assert!(is_huge(dst), "the huge page was split");
        write_page(dst + 3 * PAGE, 3);
        assert!(block_intact(dst));
        assert_eq!(present(src, BLOCK), 0);
    });
}

#[test]
fn p14_p17_the_block_recipe_works_on_a_protected_zero_run() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = pair(1);
        let (dst, src) = (map.block(0), park.block(0));
        make_huge(src);
        // SAFETY: holes of this test.
        unsafe { uffd.zeropage(dst, BLOCK, WakeMode::empty()) }.expect("zeropage");
        uffd.write_protect(dst, BLOCK, ProtectMode::WP)
            .expect("protect");
        let touch = writer(dst + 5 * PAGE, 0xAB);
        assert_eq!(next_fault(&uffd), (dst + 5 * PAGE, true, true));
        advise(dst, BLOCK, libc::MADV_DONTNEED).expect("DONTNEED");
        assert_eq!(mv(&uffd, dst, src, BLOCK), WHOLE);
        touch.join();
        assert!(is_huge(dst), "the huge page was split");
        write_page(dst + 5 * PAGE, 5);
        assert!(block_intact(dst));
    });
}

#[test]
fn p17_without_the_recipe_the_huge_page_is_split() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = pair(1);
        let (dst, src) = (map.block(0), park.block(0));
        make_huge(src);
        let touch = writer(dst, 0xAB);
        assert_eq!(next_fault(&uffd), (dst, true, false));
        assert_eq!(mv(&uffd, dst, src, BLOCK), WHOLE);
        touch.join();
        assert!(!is_huge(dst));
        write_page(dst, 0);
        assert!(block_intact(dst));
    });
}

#[test]
fn p14_a_huge_page_goes_out_and_in_again_as_one() {
    fact(|| {
        let Pair {
            uffd,
            park_uffd,
            map,
            park,
        } = pair(2);
        make_huge(park.block(0));
        assert_eq!(mv(&uffd, map.block(1), park.block(0), BLOCK), WHOLE);
        for n in 0..4 {
            let slot = park.block(n % 2);
            assert!(is_huge(map.block(1)));
            assert_eq!(mv(&park_uffd, slot, map.block(1), BLOCK), WHOLE);
            assert!(is_huge(slot) && present(map.block(1), BLOCK) == 0);
            assert!(block_intact(slot));
            assert_eq!(mv(&uffd, map.block(1), slot, BLOCK), WHOLE);
        }
        assert!(is_huge(map.block(1)) && block_intact(map.block(1)));
    });
}

#[test]
fn p14_a_part_of_a_huge_page_splits_it_and_loses_nothing() {
    fact(|| {
        let Pair {
            uffd,
            park_uffd,
            map,
            park,
        } = pair(2);
        make_huge(park.block(0));
        assert_eq!(mv(&uffd, map.block(0), park.block(0), BLOCK), WHOLE);
        let (page, slot) = (map.page(17), park.block(1) + 17 * PAGE);
        assert_eq!(mv(&park_uffd, slot, page, PAGE), Ok(Done { bytes: PAGE }));
        assert!(!is_huge(map.block(0)));
        assert_eq!(present(map.block(0), BLOCK), BLOCK - PAGE);
        assert!(has_page(slot, 17));
        assert_eq!(mv(&uffd, page, slot, PAGE), Ok(Done { bytes: PAGE }));
        assert!(block_intact(map.block(0)));
    });
}

#[test]
fn p14_misaligned_moves_split() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = pair(2);
        make_huge(park.block(0));
        let dst = map.block(0) + 8 * PAGE;
        assert_eq!(mv(&uffd, dst, park.block(0), BLOCK), WHOLE);
        assert_eq!(
            count(map.addr, map.len, Categories::HUGE, Categories::empty()),
            0
        );
        assert!(block_intact(dst));
    });
}

#[test]
fn p14_shattering_copies_the_living_back_and_frees_the_rest() {
    fact(|| {
        let Pair {
            uffd,
            park_uffd,
            map,
            park,
        } = pair(1);
        make_huge(park.block(0));
        assert_eq!(mv(&uffd, map.block(0), park.block(0), BLOCK), WHOLE);
        assert_eq!(mv(&park_uffd, park.block(0), map.block(0), BLOCK), WHOLE);
        for n in [0, 200, 511] {
            let (to, from) = (map.page(n), park.page(n) as *const u8);
            // SAFETY: holes of this test.
            let done = unsafe { uffd.copy(to, from, PAGE, CopyMode::empty()) };
            assert_eq!(done, Ok(Done { bytes: PAGE }));
        }
        assert!(is_huge(park.block(0)), "the parked page is still whole");
        advise(park.block(0), BLOCK, libc::MADV_DONTNEED).expect("free");
        assert_eq!(present(map.addr, BLOCK), 3 * PAGE);
        assert!(
            [0, 200, 511]
                .iter()
                .all(|&n| has_page(map.page(n), n as u64))
        );
    });
}

#[test]
fn p14_a_write_protected_huge_page_stays_huge() {
    fact(|| {
        let Pair {
            uffd,
            park_uffd,
            map,
            park,
        } = pair(1);
        make_huge(park.block(0));
        assert_eq!(mv(&uffd, map.block(0), park.block(0), BLOCK), WHOLE);
        uffd.write_protect(map.addr, BLOCK, ProtectMode::WP)
            .expect("protect");
        assert!(is_huge(map.addr));
        let touch = writer(map.page(4), 1);
        assert_eq!(next_fault(&uffd), (map.page(4), true, true));
        uffd.write_protect(map.addr, BLOCK, ProtectMode::empty())
            .expect("lift");
        touch.join();
        assert!(is_huge(map.addr));
        assert_eq!(mv(&park_uffd, park.block(0), map.addr, BLOCK), WHOLE);
        assert!(is_huge(park.block(0)));
    });
}

#[test]
fn p17_touching_a_parked_slot_is_the_zeroed_huge_page() {
    fact(|| {
        let Pair {
            park,
            park_uffd: _open,
            map: _map,
            uffd: _uffd,
        } = pair(1);
        make_huge(park.block(0));
        advise(park.addr, BLOCK, libc::MADV_DONTNEED).expect("free");
        common::mem::poke(park.page(100), 1);
        if !is_huge(park.addr) {
            skip("the host does not give huge pages on a touch of advised ranges");
        }
        assert!(
            (0..512)
                .filter(|&n| n != 100)
                .all(|n| is_zero(park.page(n)))
        );
    });
}

#[test]
fn p7_a_huge_page_shared_by_fork_is_busy_until_populated() {
    fact(|| {
        let Pair {
            uffd,
            park_uffd,
            map,
            park,
        } = pair(1);
        make_huge(park.block(0));
        assert_eq!(mv(&uffd, map.block(0), park.block(0), BLOCK), WHOLE);
        assert_eq!(common::process::fork(|| 3).status(), 3);
        let busy = Err(Partial {
            done: 0,
            why: Why::Busy,
        });
        assert_eq!(mv(&park_uffd, park.block(0), map.block(0), BLOCK), busy);
        advise(map.block(0), BLOCK, libc::MADV_POPULATE_WRITE).expect("populate");
        assert!(is_huge(map.block(0)), "taken back whole");
        assert_eq!(mv(&park_uffd, park.block(0), map.block(0), BLOCK), WHOLE);
        assert!(is_huge(park.block(0)) && block_intact(park.block(0)));
    });
}
