//! Facts: the marker of a page that was taken out, and what a discard leaves of it.

use crate::common::mem::{
    BLOCK, Map, PAGE, advise, has_page, is_zero, make_huge, peek, write_page,
};
use crate::common::pair::mv;
use crate::common::process::{fork, is_quiet, next_fault, reader, writer};
use crate::common::{self, fact, uffd};
use deckle_uffd::{
    CopyMode, Features, PageEntry, Pagemap, ProtectMode, RegisterMode, Uffd, WakeMode, Why,
};

const MANAGED: RegisterMode = RegisterMode::MISSING.union(RegisterMode::WP);

struct Out {
    uffd: Uffd,
    park_uffd: Uffd,
    map: Map,
    park: Map,
}

/// Eight managed pages with their patterns, all of them taken out and marked.
fn out() -> Out {
    let features = Features::MOVE | Features::WP_UNPOPULATED;
    let (uffd, park_uffd) = (uffd(features), common::uffd(features));
    let (map, park) = (Map::pages(8), Map::pages(8));
    map.fill();
    uffd.register(map.addr, map.len, MANAGED).expect("register");
    park_uffd
        .register(park.addr, park.len, RegisterMode::WP)
        .expect("register");
    mv(&park_uffd, park.addr, map.addr, map.len).expect("out");
    uffd.write_protect(map.addr, map.len, ProtectMode::WP)
        .expect("mark");
    Out {
        uffd,
        park_uffd,
        map,
        park,
    }
}

fn entry(addr: usize) -> PageEntry {
    let mut entry = [PageEntry::default()];
    let pagemap = Pagemap::open_self().expect("pagemap");
    pagemap.entries(addr, &mut entry).expect("entries");
    entry[0]
}

fn is_marker(addr: usize) -> bool {
    let e = entry(addr);
    !e.is_present() && e.is_protected()
}

fn markers(map: &Map) -> usize {
    (0..map.len / PAGE)
        .filter(|&n| is_marker(map.page(n)))
        .count()
}

#[test]
fn a_discard_of_what_is_away_clears_its_marker_and_no_other() {
    fact(|| {
        let o = out();
        assert_eq!(markers(&o.map), 8);
        advise(o.map.page(2), 3 * PAGE, libc::MADV_DONTNEED).expect("discard");
        let left = [true, true, false, false, false, true, true, true];
        for (n, left) in left.into_iter().enumerate() {
            assert_eq!(is_marker(o.map.page(n)), left, "page {n}");
            assert_eq!(entry(o.map.page(n)).is_hole(), !left, "page {n}");
        }
        // A new mapping in its place has none either.
        let (at, how) = (o.map.page(6) as *mut _, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: a page of the test's mapping, which is empty.
        let got = unsafe { libc::mmap(at, PAGE, how, flags, -1, 0) };
        assert_eq!(got, at);
        assert!(entry(o.map.page(6)).is_hole() && is_marker(o.map.page(7)));
        // It is nobody's that could be filled or marked.
        let marked = o.uffd.write_protect(o.map.page(6), PAGE, ProtectMode::WP);
        assert_eq!(marked, Err(Why::NoEntry));
        let from = o.park.page(6) as *const u8;
        // SAFETY: a hole of the test's, from a page of the test's.
        let copied = unsafe { o.uffd.copy(o.map.page(6), from, PAGE, CopyMode::empty()) };
        assert_eq!(copied.expect_err("refused").why, Why::NoEntry);
        assert!(mv(&o.uffd, o.map.page(6), o.park.page(6), PAGE).is_err());
        assert!(is_zero(o.map.page(6)));
    });
}

#[test]
fn nothing_else_clears_a_marker() {
    fact(|| {
        let o = out();
        for advice in [
            libc::MADV_FREE,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_NOHUGEPAGE,
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_DONTDUMP,
        ] {
            o.map.advise(advice);
            assert_eq!(markers(&o.map), 8, "advice {advice}");
        }
        for prot in [
            libc::PROT_NONE,
            libc::PROT_READ,
            libc::PROT_READ | libc::PROT_WRITE,
        ] {
            o.map.protect(prot);
            assert_eq!(markers(&o.map), 8, "rights {prot}");
        }
        o.uffd
            .register(o.map.addr, o.map.len, MANAGED)
            .expect("again");
        assert_eq!(markers(&o.map), 8);
        // A fork leaves them; its child, which nobody has registered, has none.
        let (from, bytes) = (o.map.addr, o.map.len);
        let child = fork(move || {
            let holes = (from..from + bytes).step_by(PAGE);
            i32::from(!holes.into_iter().all(|page| entry(page).is_hole()))
        });
        assert_eq!(child.status(), 0);
        assert_eq!(markers(&o.map), 8);
    });
}

#[test]
fn a_touch_of_a_marked_page_is_a_missing_page() {
    fact(|| {
        let o = out();
        let read = reader(o.map.page(1));
        assert_eq!(next_fault(&o.uffd), (o.map.page(1), false, false));
        let write = writer(o.map.page(2), 9);
        assert_eq!(next_fault(&o.uffd), (o.map.page(2), true, false));
        // To lift the markers wakes nobody if it is told so.
        o.uffd
            .write_protect(o.map.addr, 4 * PAGE, ProtectMode::DONTWAKE)
            .expect("lift");
        assert!(read.still_waits() && write.still_waits());
        for n in [1, 2] {
            mv(&o.uffd, o.map.page(n), o.park.page(n), PAGE).expect("in");
        }
        read.join();
        write.join();
        assert!(has_page(o.map.page(1), 1));
        assert_eq!(peek(o.map.page(2)), 9);
        assert!(is_quiet(&o.uffd));
    });
}

#[test]
fn a_copy_takes_the_place_of_a_marker_and_a_move_does_not() {
    fact(|| {
        let o = out();
        write_page(o.park.page(0), 77);
        let from = o.park.page(0) as *const u8;
        // SAFETY: a hole of the test's, from a page of the test's.
        let copied = unsafe { o.uffd.copy(o.map.page(0), from, PAGE, CopyMode::empty()) };
        assert!(copied.is_ok() && has_page(o.map.page(0), 77));
        assert!(
            !entry(o.map.page(0)).is_protected(),
            "as if none had been there"
        );
        // SAFETY: a hole of the test's.
        let zero = unsafe { o.uffd.zeropage(o.map.page(1), PAGE, WakeMode::empty()) };
        assert_eq!(zero.expect_err("occupied").why, Why::Exists);
        let moved = mv(&o.uffd, o.map.page(1), o.park.page(1), PAGE);
        assert_eq!(moved.expect_err("occupied").why, Why::Exists);
        // Out of a marker, which is no hole.
        let moved = mv(&o.park_uffd, o.park.page(0), o.map.page(1), PAGE);
        assert!(moved.is_err());
        let other = Map::pages(1);
        o.park_uffd
            .register(other.addr, PAGE, RegisterMode::WP)
            .expect("register");
        let moved = mv(&o.park_uffd, other.addr, o.map.page(1), PAGE);
        assert_eq!(moved.expect_err("no page").why, Why::Fault);
        assert!(is_marker(o.map.page(1)) && has_page(o.park.page(1), 1));
    });
}

#[test]
fn a_block_that_left_whole_is_marked_page_by_page() {
    fact(|| {
        let features = Features::MOVE | Features::WP_UNPOPULATED;
        let (uffd, park_uffd) = (uffd(features), common::uffd(features));
        let (map, park) = (Map::blocks(1), Map::blocks(1));
        make_huge(map.addr);
        uffd.register(map.addr, BLOCK, MANAGED).expect("register");
        park_uffd
            .register(park.addr, BLOCK, RegisterMode::WP)
            .expect("register");
        mv(&park_uffd, park.addr, map.addr, BLOCK).expect("out");
        assert_eq!(markers(&map), 0);
        uffd.write_protect(map.addr, BLOCK, ProtectMode::WP)
            .expect("mark");
        assert_eq!(markers(&map), 512);
        advise(map.page(7), PAGE, libc::MADV_DONTNEED).expect("discard");
        assert_eq!((markers(&map), is_marker(map.page(7))), (511, false));
        // The markers are in the way of the block until all of it is discarded.
        assert!(mv(&uffd, map.addr, park.addr, BLOCK).is_err());
        advise(map.addr, BLOCK, libc::MADV_DONTNEED).expect("discard");
        mv(&uffd, map.addr, park.addr, BLOCK).expect("in");
        assert!(has_page(map.page(9), 9));
    });
}

/// What marks a page comes after what takes it out: a discard in between finds nothing, and what
/// is marked then looks as if it had not been discarded.
#[test]
fn a_discard_between_the_move_and_the_marker_leaves_no_trace() {
    fact(|| {
        let o = out();
        o.uffd
            .write_protect(o.map.addr, PAGE, ProtectMode::DONTWAKE)
            .expect("lift");
        advise(o.map.addr, PAGE, libc::MADV_DONTNEED).expect("discard");
        o.uffd
            .write_protect(o.map.addr, PAGE, ProtectMode::WP)
            .expect("mark");
        assert!(is_marker(o.map.addr));
    });
}
