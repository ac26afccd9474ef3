//! Facts: which operations make, keep and split large folios.

use crate::common::kpage::{Setting, compound_pages};
use crate::common::mem::{
    BLOCK, MADV_COLLAPSE, Map, PAGE, advise, block_intact, count, has_page, is_huge, make_huge,
    present, write_page,
};
use crate::common::pair::{Pair, WHOLE, mv, pair};
use crate::common::{self, alone, fact, is_root, skip, uffd};
use deckle_uffd::{
    Categories, CopyMode, Done, Errno, Features, ProtectMode, RegisterMode, WakeMode,
};
use std::io::Write;

/// A block where huge pages are wanted, filled by COPY from a huge page of the other range.
fn copied(mode: RegisterMode) -> (Pair, Map) {
    let pair = pair(1);
    let dst = Map::blocks(1);
    dst.advise(libc::MADV_HUGEPAGE);
    let registered = pair.uffd.register(dst.addr, BLOCK, mode);
    registered.expect("register");
    make_huge(pair.park.block(0));
    let from = pair.park.addr as *const u8;
    // SAFETY: holes of this test.
    let done = unsafe { pair.uffd.copy(dst.addr, from, BLOCK, CopyMode::empty()) };
    assert_eq!(done, WHOLE);
    (pair, dst)
}

#[test]
fn p15_copy_installs_small_pages_even_where_huge_ones_are_wanted() {
    alone().fact(|| {
        let (_pair, dst) = copied(RegisterMode::MISSING);
        // Else khugepaged may make a huge page of them in the middle of the count.
        dst.advise(libc::MADV_NOHUGEPAGE);
        assert!(!is_huge(dst.addr) && block_intact(dst.addr));
        if is_root() {
            assert_eq!(compound_pages(dst.addr, BLOCK), 0);
        }
    });
}

#[test]
fn p15_zeropage_maps_512_small_zero_pages() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park_uffd: _open,
            park: _park,
        } = pair(1);
        // SAFETY: holes of this test.
        let done = unsafe { uffd.zeropage(map.addr, BLOCK, WakeMode::empty()) };
        assert_eq!(done, WHOLE);
        let zero = Categories::PRESENT | Categories::PFNZERO;
        assert_eq!(count(map.addr, BLOCK, zero, Categories::HUGE), BLOCK);
    });
}

/// Puts one small page of a 64 KiB folio at the head of a block; the kernel must have the size
/// enabled for advised ranges.
#[test]
fn p15_a_64k_folio_is_split_by_move() {
    const KNOB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    const LEN: usize = 16 * PAGE;
    if !is_root() {
        return fact(|| skip("the size of folios is set and read as root only"));
    }
    let alone = alone();
    // Set here and not in the case, so that it is put back even if the case is killed.
    let setting = (!common::in_case()).then(|| Setting::set(KNOB, "madvise"));
    alone.fact(|| {
        let uffd = uffd(Features::MOVE);
        let (src, dst) = (Map::blocks(1), Map::blocks(1));
        uffd.register(dst.addr, BLOCK, RegisterMode::MISSING)
            .expect("register");
        // All but the first 64 KiB of the block is elsewhere, so only a 64 KiB folio fits.
        advise(src.addr, LEN, libc::MADV_HUGEPAGE).expect("HUGEPAGE");
        for n in 0..16 {
            write_page(src.page(n), n as u64);
        }
        if compound_pages(src.addr, LEN) != 16 {
            skip("no 64 KiB folios on this kernel");
        }
        assert_eq!(mv(&uffd, dst.addr, src.addr, LEN), Ok(Done { bytes: LEN }));
        assert_eq!(compound_pages(dst.addr, LEN), 0);
        assert!((0..16).all(|n| has_page(dst.page(n), n as u64)));
    });
    drop(setting);
}

#[test]
fn p16_collapse_in_a_registered_range_needs_every_page() {
    fact(|| {
        let (pair, map) = copied(RegisterMode::MISSING | RegisterMode::WP);
        let collapse = || advise(map.addr, BLOCK, MADV_COLLAPSE);
        advise(map.page(9), PAGE, libc::MADV_DONTNEED).expect("a hole");
        assert_eq!(collapse(), Err(Errno(libc::EBUSY)));
        let nine = pair.park.page(9) as *const u8;
        // SAFETY: the hole of this test.
        unsafe { pair.uffd.copy(map.page(9), nine, PAGE, CopyMode::WP) }.expect("fill");
        assert_eq!(collapse(), Err(Errno(libc::EINVAL)));
        pair.uffd
            .write_protect(map.page(9), PAGE, ProtectMode::empty())
            .expect("lift");
        map.advise(libc::MADV_NOHUGEPAGE);
        assert_eq!(
            collapse(),
            Err(Errno(libc::EINVAL)),
            "refused where huge pages are not wanted"
        );
        map.advise(libc::MADV_HUGEPAGE);
        assert_eq!(collapse(), Ok(()));
        assert!(is_huge(map.addr) && block_intact(map.addr));
    });
}

#[test]
fn p16_a_single_touched_page_collapses_only_outside_registered_ranges() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = pair(1);
        let touch_one_and_collapse = |block| {
            // Small pages first, even where a touch would give a huge one.
            advise(block, BLOCK, libc::MADV_NOHUGEPAGE).expect("NOHUGEPAGE");
            common::mem::poke(block + 7 * PAGE, 1);
            advise(block, BLOCK, libc::MADV_HUGEPAGE).expect("HUGEPAGE");
            assert_eq!(present(block, BLOCK), PAGE);
            advise(block, BLOCK, MADV_COLLAPSE)
        };
        // Registered for write-protection alone, and still refused.
        assert_eq!(
            touch_one_and_collapse(park.block(0)),
            Err(Errno(libc::EBUSY))
        );
        let nursery = Map::blocks(1);
        assert_eq!(touch_one_and_collapse(nursery.block(0)), Ok(()));
        assert!(is_huge(nursery.block(0)));
        // The source of a MOVE need not be registered, so the page is as good from there.
        assert_eq!(mv(&uffd, map.block(0), nursery.block(0), BLOCK), WHOLE);
        assert!(is_huge(map.block(0)));
        assert_eq!(common::mem::peek(map.page(7)), 1);
    });
}

#[test]
fn p20_a_page_of_a_huge_page_whose_first_one_was_replaced_moves_once_it_is_alone() {
    fact(|| {
        let Pair {
            uffd,
            map,
            park: _park,
            park_uffd: _open,
        } = pair(1);
        let from = Map::blocks(1);
        make_huge(from.block(0));
        let child = common::process::fork(|| {
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        // The first write since the fork: this side's first page is a new one.
        write_page(from.page(0), 0);
        child.kill();
        let five = || mv(&uffd, map.page(5), from.page(5), PAGE);
        assert!(five().is_err(), "it was shared");
        advise(from.page(5), PAGE, libc::MADV_POPULATE_WRITE).expect("its own now");
        // A kernel may ask the page itself.
        if five().is_err() {
            advise(from.page(5), PAGE, libc::MADV_COLD).expect("alone");
            assert_eq!(five(), Ok(Done { bytes: PAGE }));
        } else {
            let _ = writeln!(std::io::stderr(), "the first page is not asked here");
        }
        assert!(has_page(map.page(5), 5) && has_page(from.page(6), 6));
    });
}
