//! Facts: write-protection, zero runs, tracking of writes, the parking range.

use crate::common::mem::{
    Map, PAGE, advise, count, has_page, is_zero, peek, poke, present, write_page,
};
use crate::common::process::{is_quiet, next_fault, reader, task, writer};
use crate::common::{fact, uffd};
use deckle_uffd::{
    Categories, CopyMode, Done, Errno, Features, MoveMode, Pagemap, PagemapScan, ProtectMode,
    Region, RegisterMode, WakeMode,
};

const MANAGED: RegisterMode = RegisterMode::MISSING.union(RegisterMode::WP);

#[test]
fn p13_protecting_what_is_missing_needs_its_feature() {
    fact(|| {
        let base = Features::PAGEFAULT_FLAG_WP;
        let (without, with) = (uffd(base), uffd(base | Features::WP_UNPOPULATED));
        for (uffd, reported) in [(without, false), (with, true)] {
            let map = Map::pages(1);
            uffd.register(map.addr, PAGE, RegisterMode::WP)
                .expect("register");
            uffd.write_protect(map.addr, PAGE, ProtectMode::WP)
                .expect("protect");
            let write = writer(map.addr, 1);
            if reported {
                assert_eq!(next_fault(&uffd), (map.addr, true, true));
                assert!(write.still_waits());
                uffd.write_protect(map.addr, PAGE, ProtectMode::empty())
                    .expect("lift");
            }
            write.join();
            assert!(is_quiet(&uffd));
        }
    });
}

#[test]
fn p13_asynchronous_protection_tells_what_was_written() {
    fact(|| {
        let uffd = uffd(Features::WP_ASYNC | Features::WP_UNPOPULATED);
        let map = Map::pages(16);
        map.fill();
        uffd.register(map.addr, map.len, RegisterMode::WP)
            .expect("register");
        let pagemap = Pagemap::open_self().expect("pagemap");
        let harvest = || {
            let mut out = [Region::default(); 16];
            let query = PagemapScan::harvest(map.addr, map.addr + map.len);
            let scanned = pagemap.scan(&query, &mut out).expect("scan");
            assert_eq!(scanned.walk_end, map.addr + map.len);
            let pages = |r: &Region| (r.start() - map.addr) / PAGE..(r.end() - map.addr) / PAGE;
            out[..scanned.regions]
                .iter()
                .flat_map(pages)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            harvest(),
            (0..16).collect::<Vec<_>>(),
            "unprotected counts as written"
        );
        assert!(harvest().is_empty());
        poke(map.page(3), 1);
        poke(map.page(4), 1);
        poke(map.page(9), 1);
        assert_eq!(peek(map.page(12)), peek(map.page(12)));
        assert_eq!(harvest(), [3, 4, 9]);
        assert!(harvest().is_empty());
        assert!(is_quiet(&uffd), "no fault was delivered");
    });
}

#[test]
fn p13_a_harvest_outside_such_a_range_is_refused() {
    fact(|| {
        let map = Map::pages(1);
        map.fill();
        let pagemap = Pagemap::open_self().expect("pagemap");
        let query = PagemapScan::harvest(map.addr, map.addr + map.len);
        assert_eq!(
            pagemap.scan(&query, &mut [Region::default()]),
            Err(Errno(libc::EPERM))
        );
    });
}

#[test]
fn p13_a_scan_goes_on_where_its_room_ended() {
    fact(|| {
        let map = Map::pages(64);
        for n in (0..64).step_by(2) {
            write_page(map.page(n), n as u64);
        }
        assert_eq!(present(map.addr, map.len), 32 * PAGE);
        let pagemap = Pagemap::open_self().expect("pagemap");
        let end = map.addr + map.len;
        let mut query = PagemapScan::any(map.addr, end, Categories::PRESENT);
        let mut out = [Region::default(); 4];
        let mut found = Vec::new();
        while query.start < end {
            let scanned = pagemap.scan(&query, &mut out).expect("scan");
            found.extend(
                out[..scanned.regions]
                    .iter()
                    .map(|r| (r.start() - map.addr) / PAGE),
            );
            assert!(scanned.walk_end > query.start);
            query.start = scanned.walk_end;
        }
        assert_eq!(found, (0..64).step_by(2).collect::<Vec<_>>());
    });
}

#[test]
fn p13_a_zero_run_is_read_freely_and_its_first_write_is_reported() {
    fact(|| {
        let uffd = uffd(Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED);
        let map = Map::pages(64);
        uffd.register(map.addr, map.len, MANAGED).expect("register");
        let read = reader(map.page(20));
        assert_eq!(next_fault(&uffd), (map.page(20), false, false));
        // SAFETY: holes of this test.
        let done = unsafe { uffd.zeropage(map.addr, map.len, WakeMode::DONTWAKE) };
        assert_eq!(done, Ok(Done { bytes: map.len }));
        assert!(read.still_waits(), "the wake is deferred");
        uffd.write_protect(map.addr, map.len, ProtectMode::WP)
            .expect("protect");
        uffd.wake(map.addr, map.len).expect("wake");
        assert_eq!(read.join(), 0);
        let zeros = || count(map.addr, map.len, Categories::PFNZERO, Categories::empty());
        assert_eq!(zeros(), map.len);
        assert!((0..64).all(|n| is_zero(map.page(n))));
        assert!(is_quiet(&uffd), "reads are free");
        let write = writer(map.page(33), 0xCD);
        assert_eq!(next_fault(&uffd), (map.page(33), true, true));
        assert!(write.still_waits());
        uffd.write_protect(map.page(33), PAGE, ProtectMode::empty())
            .expect("lift");
        write.join();
        assert_eq!(peek(map.page(33)), 0xCD);
        assert_eq!(zeros(), map.len - PAGE);
        let real = Categories::PRESENT;
        assert_eq!(count(map.addr, map.len, real, Categories::PFNZERO), PAGE);
    });
}

#[test]
fn p13_a_write_fault_on_a_zero_run_can_be_answered_by_dontneed_and_copy() {
    fact(|| {
        let uffd = uffd(Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED);
        let (map, src) = (Map::pages(16), Map::pages(16));
        uffd.register(map.addr, map.len, MANAGED).expect("register");
        // SAFETY: holes of this test.
        unsafe { uffd.zeropage(map.addr, map.len, WakeMode::empty()) }.expect("zeropage");
        uffd.write_protect(map.addr, map.len, ProtectMode::WP)
            .expect("protect");
        let write = writer(map.page(5), 1);
        assert_eq!(next_fault(&uffd), (map.page(5), true, true));
        advise(map.addr, map.len, libc::MADV_DONTNEED).expect("DONTNEED");
        let from = src.addr as *const u8;
        // SAFETY: holes of this test.
        let done = unsafe { uffd.copy(map.addr, from, map.len, CopyMode::empty()) };
        assert_eq!(done, Ok(Done { bytes: map.len }));
        write.join();
        assert_eq!(
            count(map.addr, map.len, Categories::PRESENT, Categories::PFNZERO),
            map.len
        );
    });
}

#[test]
fn p13_an_unprotected_zero_run_fills_up_unheard() {
    fact(|| {
        let uffd = uffd(Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED);
        let map = Map::pages(8);
        uffd.register(map.addr, map.len, MANAGED).expect("register");
        // SAFETY: holes of this test.
        unsafe { uffd.zeropage(map.addr, map.len, WakeMode::empty()) }.expect("zeropage");
        for n in 0..8 {
            poke(map.page(n), 1);
        }
        assert!(is_quiet(&uffd), "why a zero run is always write-protected");
        assert_eq!(
            count(map.addr, map.len, Categories::PFNZERO, Categories::empty()),
            0
        );
    });
}

#[test]
fn p13_a_write_between_zeropage_and_protection_shows_in_the_scan() {
    fact(|| {
        let uffd = uffd(Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED);
        let map = Map::pages(8);
        uffd.register(map.addr, map.len, MANAGED).expect("register");
        // SAFETY: holes of this test.
        unsafe { uffd.zeropage(map.addr, map.len, WakeMode::DONTWAKE) }.expect("zeropage");
        poke(map.page(6), 1);
        uffd.write_protect(map.addr, map.len, ProtectMode::WP)
            .expect("protect");
        assert_eq!(
            count(map.addr, map.len, Categories::PRESENT, Categories::PFNZERO),
            PAGE
        );
        assert_eq!(
            count(map.page(6), PAGE, Categories::PRESENT, Categories::PFNZERO),
            PAGE
        );
    });
}

#[test]
fn p5_p11_p21_the_parking_range_is_registered_for_write_protection_only() {
    fact(|| {
        // The program's descriptor reports everything, the parking range's nothing.
        let events = Features::EVENT_REMOVE | Features::EVENT_REMAP | Features::EVENT_UNMAP;
        let program = uffd(Features::MOVE | Features::PAGEFAULT_FLAG_WP | events);
        let parking = uffd(Features::MOVE);
        let (map, park) = (Map::pages(4), Map::pages(64));
        map.fill();
        park.advise(libc::MADV_DONTFORK);
        park.advise(libc::MADV_DONTDUMP);
        program
            .register(map.addr, map.len, MANAGED)
            .expect("register");
        parking
            .register(park.addr, park.len, RegisterMode::WP)
            .expect("register");
        // SAFETY: both ranges belong to this test.
        let done =
            unsafe { parking.move_pages(park.page(8), map.addr, map.len, MoveMode::empty()) };
        assert_eq!(done, Ok(Done { bytes: map.len }));
        // Stray touches are plain kernel faults: this very thread would hang otherwise.
        assert_eq!(peek(park.page(0)), 0);
        poke(park.page(1), 7);
        poke(park.page(8), peek(park.page(8)));
        // Freeing a slot waits for nobody.
        advise(park.page(1), PAGE, libc::MADV_DONTNEED).expect("free");
        assert_eq!(present(park.page(1), PAGE), 0);
        assert!(is_quiet(&program) && is_quiet(&parking));
        // SAFETY: as above.
        let back =
            unsafe { program.move_pages(map.addr, park.page(8), map.len, MoveMode::empty()) };
        assert_eq!(back, Ok(Done { bytes: map.len }));
        assert!((0..4).all(|n| has_page(map.page(n), n as u64)));
        // Unmapping would wait for a reader of the event.
        drop(program);
    });
}

#[test]
fn p29_a_pipe_keeps_its_page_when_the_slot_is_released_not_overwritten() {
    fact(|| {
        let uffd = uffd(Features::MOVE);
        for released in [true, false] {
            let (map, park) = (Map::pages(1), Map::pages(1));
            uffd.register(park.addr, PAGE, RegisterMode::WP)
                .expect("register");
            write_page(map.addr, 1);
            let mut ends = [0; 2];
            // SAFETY: room for two descriptors.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            let part = libc::iovec {
                iov_base: map.addr as *mut _,
                iov_len: PAGE,
            };
            // SAFETY: one valid part, a page of the test.
            let sent = unsafe { libc::vmsplice(ends[1], &raw const part, 1, 0) };
            assert_eq!(sent, PAGE as isize, "vmsplice: {}", Errno::last());
            // SAFETY: both ranges belong to this test.
            let done = unsafe { uffd.move_pages(park.addr, map.addr, PAGE, MoveMode::empty()) };
            assert_eq!(
                done,
                Ok(Done { bytes: PAGE }),
                "a plain reference does not stop MOVE"
            );
            if released {
                advise(park.addr, PAGE, libc::MADV_DONTNEED).expect("release");
            }
            write_page(park.addr, 2);
            let got = Map::pages(1);
            // SAFETY: a page of the test.
            let read = unsafe { libc::read(ends[0], got.addr as *mut _, PAGE) };
            assert_eq!(read, PAGE as isize);
            assert!(has_page(got.addr, if released { 1 } else { 2 }));
        }
    });
}

#[test]
fn p24_concurrent_writers_lose_nothing_to_move() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    fact(|| {
        const PAGES: usize = 32;
        let uffd = uffd(Features::MOVE);
        let (map, park) = (Map::pages(PAGES), Map::pages(PAGES));
        map.fill();
        (0..PAGES).for_each(|n| poke(map.page(n), 0));
        uffd.register(map.addr, map.len, RegisterMode::MISSING)
            .expect("register");
        uffd.register(park.addr, park.len, RegisterMode::WP)
            .expect("register");
        let stop = Arc::new(AtomicBool::new(false));
        let (addr, flag) = (map.addr, Arc::clone(&stop));
        let writes = task(move || {
            let mut rounds = 0u64;
            while !flag.load(Ordering::Relaxed) {
                for n in 0..PAGES {
                    let word = (addr + n * PAGE) as *mut u64;
                    // SAFETY: a page of the test; the other thread touches it by MOVE only.
                    unsafe { word.write_volatile(word.read_volatile().wrapping_add(1)) };
                }
                rounds += 1;
            }
            rounds
        });
        let first = |n| {
            // SAFETY: a page of the test.
            unsafe { (map.page(n) as *const u64).read_volatile() }
        };
        let before: Vec<u64> = {
            let seeds = Map::pages(PAGES);
            seeds.fill();
            (0..PAGES)
                .map(|n| {
                    poke(seeds.page(n), 0);
                    // SAFETY: a page of the test.
                    unsafe { (seeds.page(n) as *const u64).read_volatile() }
                })
                .collect()
        };
        for n in (0..PAGES).cycle().take(5000) {
            // SAFETY: evicted and brought back; the writer's accesses wait in between.
            unsafe {
                uffd.move_pages(park.page(n), map.page(n), PAGE, MoveMode::empty())
                    .expect("out");
                uffd.move_pages(map.page(n), park.page(n), PAGE, MoveMode::empty())
                    .expect("in");
            }
        }
        stop.store(true, Ordering::Relaxed);
        let rounds = writes.join();
        assert!(
            (0..PAGES).all(|n| first(n) == before[n].wrapping_add(rounds)),
            "a lost write"
        );
    });
}
