//! Open holes and calls that the manager does not see: what a program maps in their place by
//! itself, and mappings that the kernel has no room for.

use crate::common::{PAGE, case};
use crate::service::Inside;
use crate::service::{MIB, Managed, Served, cell, close_all, opens, scattered, service_with};
use crate::service::{sound, stat, within};
use deckle_live::Place;
use deckle_mm::{Advice, Charge, Item, Prot, ThpMode};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn open_pages(service: &Served) -> u64 {
    stat(service, Item::NrOpen)
}

/// A region all of which is open, every fourth page touched.
fn open_region(service: &Served, bytes: usize) -> Managed {
    let region = service.map(bytes).expect("map");
    let (base, all) = (region.as_ptr() as usize, bytes / PAGE);
    for page in scattered(all).filter(|page| touched(*page)) {
        cell(base, page).store(page as u64 + 1, Relaxed);
    }
    // Who waits for a page goes on before it is booked.
    let begin = Instant::now();
    while open_pages(service) < all as u64 {
        let (late, open) = (begin.elapsed().as_secs() > 0, open_pages(service));
        assert!(!late, "{open} of {all} are open");
    }
    region
}

fn touched(page: usize) -> bool {
    [0, 7, 14, 5].contains(&(page % 16))
}

/// Maps `pages` pages of a file or of nothing, at a place or anywhere.
fn map(at: usize, pages: usize, flags: i32, fd: i32) -> usize {
    let at = at as *mut libc::c_void;
    // SAFETY: what is replaced is the test's own, which does not count on it.
    let got = unsafe { libc::mmap(at, pages * PAGE, RW, flags, fd, 0) };
    assert_ne!(got, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    got as usize
}

fn memfd(pages: usize) -> i32 {
    // SAFETY: a new descriptor of an empty file that gets a length.
    unsafe {
        let fd = libc::memfd_create(c"shared".as_ptr(), 0);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, (pages * PAGE) as i64), 0);
        fd
    }
}

/// Shared memory in the place of open pages: `before` of it the program has touched by this view.
fn shared_memory_in_the_place_of_open_pages(before: usize, wide: bool) {
    let (service, limit) = service_with(64, opens(ThpMode::Never, 100));
    let region = open_region(&service, 4 * MIB);
    let (base, all) = (region.as_ptr() as usize, 4 * MIB / PAGE);
    let (first, pages) = if wide { (0, 512) } else { (70, 32) };
    let fd = memfd(pages);
    let other = map(0, pages, libc::MAP_SHARED, fd);
    let here = base + first * PAGE;
    map(here, pages, libc::MAP_SHARED | libc::MAP_FIXED, fd);
    let tell = |k: usize, round: u64| round << 32 | k as u64 | 1 << 63;
    for k in 0..before {
        cell(here, k).store(tell(k, 1), Relaxed);
    }
    // Of the others every second exists, made by the other view.
    for k in (before..pages).step_by(2) {
        cell(other, k).store(tell(k, 1), Relaxed);
    }
    let is_there = |k: usize| k < before || (k - before).is_multiple_of(2);
    close_all(&service, &region);
    service.inside().mm().reclaim(64);
    assert_eq!(open_pages(&service), 0);
    // What is written there is seen here, and the other way round; and so again under pressure.
    for k in 0..pages {
        let want = if is_there(k) { tell(k, 1) } else { 0 };
        assert_eq!(cell(here, k).load(Relaxed), want, "page {k}");
        assert_eq!(cell(other, k).load(Relaxed), want, "page {k}");
    }
    for round in 2..6 {
        for k in 0..pages {
            let (from, to) = match (k + round as usize).is_multiple_of(2) {
                true => (here, other),
                false => (other, here),
            };
            cell(from, k).store(tell(k, round), Relaxed);
            assert_eq!(cell(to, k).load(Relaxed), tell(k, round), "page {k}");
        }
        close_all(&service, &region);
        for k in 0..pages {
            assert_eq!(cell(here, k).load(Relaxed), tell(k, round), "page {k}");
        }
    }
    for page in (0..all).filter(|page| !(first..first + pages).contains(page)) {
        let want = if touched(page) { page as u64 + 1 } else { 0 };
        assert_eq!(cell(base, page).load(Relaxed), want, "page {page}");
    }
    sound(&service);
    within(&limit);
    drop(region);
    assert_eq!(limit.usage(), 0);
    for k in 0..pages {
        assert_eq!(cell(other, k).load(Relaxed), tell(k, 5), "page {k}");
    }
    sound(&service);
}

#[test]
fn shared_memory_in_the_place_of_open_pages_stays_the_programs() {
    case(|| shared_memory_in_the_place_of_open_pages(16, false));
}

#[test]
fn shared_memory_in_the_place_of_a_whole_block_stays_the_programs() {
    case(|| shared_memory_in_the_place_of_open_pages(3, true));
}

#[test]
fn shared_memory_that_nobody_has_touched_here_stays_the_programs() {
    case(|| shared_memory_in_the_place_of_open_pages(0, true));
}

#[test]
fn files_and_gaps_in_the_place_of_open_pages_stay_as_they_are() {
    case(|| {
        let (service, limit) = service_with(64, opens(ThpMode::Never, 100));
        let region = open_region(&service, 4 * MIB);
        let (base, all) = (region.as_ptr() as usize, 4 * MIB / PAGE);
        let text = std::fs::read("/proc/self/exe").expect("read");
        let file = std::fs::File::open("/proc/self/exe").expect("open");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let at = |page: usize| base + page * PAGE;
        map(at(64), 8, libc::MAP_PRIVATE | libc::MAP_FIXED, fd);
        let anon = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        map(at(200), 8, anon, -1);
        for k in 0..4 {
            cell(at(200), k).store(77, Relaxed);
        }
        // SAFETY: bytes that the test counts on no more.
        unsafe { libc::munmap(at(300) as *mut _, 20 * PAGE) };
        // What the program writes to a private file mapping is its own as well.
        cell(at(64), 2).store(99, Relaxed);
        let charged = limit.usage();
        close_all(&service, &region);
        service.inside().mm().reclaim(64);
        assert_eq!(open_pages(&service), 0);
        assert!(limit.usage() < charged / 2);
        sound(&service);
        for round in 0..2 {
            for page in 0..all {
                let want = match page {
                    66 => 99,
                    64..72 => {
                        let from = (page - 64) * PAGE + 64;
                        u64::from_ne_bytes(text[from..from + 8].try_into().unwrap())
                    }
                    200..204 => 77,
                    204..208 => 0,
                    300..320 => continue,
                    _ if touched(page) => page as u64 + 1,
                    _ => 0,
                };
                assert_eq!(cell(base, page).load(Relaxed), want, "page {page}");
            }
            if round == 0 {
                close_all(&service, &region);
            }
        }
        sound(&service);
        map(at(300), 20, anon, -1);
        drop(region);
        assert_eq!(limit.usage(), 0);
        sound(&service);
    });
}

/// Mappings of no use, so many that the kernel makes none more; gone when dropped.
struct Full(usize);

const FULL: usize = 200_000 * PAGE;

impl Full {
    fn new() -> Full {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(0, FULL / PAGE, flags, -1);
        let full = (0..FULL).step_by(2 * PAGE).any(|at| {
            // SAFETY: a page of the mapping just made, which nobody reads.
            unsafe { libc::mprotect((base + at) as *mut _, PAGE, libc::PROT_NONE) != 0 }
        });
        assert!(full, "vm.max_map_count is too high for this test");
        Full(base)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value's own.
        unsafe { libc::munmap(self.0 as *mut _, FULL) };
    }
}

#[test]
fn what_the_kernel_has_no_mapping_for_stays_open_and_loses_nothing() {
    case(|| {
        let (service, limit) = service_with(64, opens(ThpMode::Never, 100));
        let mut region = open_region(&service, 4 * MIB);
        let (base, all) = (region.as_ptr() as usize, 4 * MIB / PAGE);
        let (pager, start) = (service.inside(), region.start());
        let (mm, space) = (pager.mm(), pager.space());
        // From page 256 on it is a mapping of its own for the kernel, which a part of a block cuts.
        let behind = base + 256 * PAGE;
        // SAFETY: says what a core dump has; no byte changes.
        let cut = unsafe { libc::madvise(behind as *mut _, 3 * MIB, libc::MADV_DONTDUMP) };
        assert_eq!(cut, 0);
        let (charged, open) = (limit.usage(), open_pages(&service));
        let full = Full::new();
        let outcome = mm.page_out(space, start, 300);
        let between = (limit.usage(), open_pages(&service));
        // Neither these, which could be registered, nor others wait for ever.
        for page in (0..256).filter(|page| !touched(*page)) {
            cell(base, page).store(page as u64 + 7, Relaxed);
        }
        // A whole block is closed before it is discarded: it cannot be, and is empty all the same.
        let discarded = mm.madvise(space, start, 512, Advice::DontNeed);
        let sum: u64 = (0..512).map(|page| cell(base, page).load(Relaxed)).sum();
        let after = (limit.usage(), open_pages(&service));
        cell(base, 5).store(55, Relaxed);
        drop(full);
        assert!(outcome.is_err(), "there was room");
        assert_eq!(between, (charged, open));
        discarded.expect("discard");
        assert_eq!(sum, 0);
        assert_eq!(after, (charged, open));
        sound(&service);
        close_all(&service, &region);
        assert_eq!(open_pages(&service), 0);
        assert_eq!(cell(base, 5).load(Relaxed), 55);
        for page in 512..all {
            let want = if touched(page) { page as u64 + 1 } else { 0 };
            assert_eq!(cell(base, page).load(Relaxed), want, "page {page}");
        }
        region.fill(1);
        sound(&service);
        assert!(limit.usage() >= all as u64);
    });
}

/// One thread unmaps a part of a block and maps it anew, another closes whatever is open, while
/// the rest of the block is written and discarded.
#[test]
fn what_lies_beside_a_range_that_is_unmapped_is_booked_when_it_is_closed() {
    case(|| {
        let (service, limit) = service_with(64, opens(ThpMode::Never, 100));
        let region = service.map(2 * MIB).expect("map");
        let (base, start) = (region.as_ptr() as usize, region.start());
        let (pager, done) = (service.inside(), AtomicU64::new(0));
        let (mm, space) = (pager.mm(), pager.space());
        let mut met = 0;
        std::thread::scope(|s| {
            let done = &done;
            s.spawn(move || {
                while done.load(Relaxed) == 0 {
                    // SAFETY: nobody uses this half but this thread.
                    unsafe { pager.unmap(start, 256) }.expect("unmap");
                    // SAFETY: where nothing is now.
                    unsafe { pager.map(Place::At(base), 256, Prot::RW) }.expect("map");
                    for page in (0..256).step_by(16) {
                        cell(base, page).store(1, Relaxed);
                    }
                }
            });
            s.spawn(move || {
                let begin = Instant::now();
                for round in 1.. {
                    for page in scattered(256).map(|page| 256 + page) {
                        cell(base, page).store(round, Relaxed);
                    }
                    for page in 256..512 {
                        assert_eq!(cell(base, page).load(Relaxed), round, "page {page}");
                    }
                    let gone = mm.madvise(space, start.add(256), 256, Advice::DontNeed);
                    gone.expect("discard");
                    for page in 256..512 {
                        let got = cell(base, page).load(Relaxed);
                        if got != 0 {
                            done.store(1, Relaxed);
                            panic!("page {page} is {got} after its discard in round {round}");
                        }
                    }
                    if begin.elapsed().as_secs() >= 3 {
                        break;
                    }
                }
                done.store(1, Relaxed);
            });
            while done.load(Relaxed) == 0 {
                met += u64::from(open_pages(&service) > 64);
                mm.reclaim(1 << 20);
                std::thread::yield_now();
            }
        });
        assert!(met > 100, "{met} rounds met the race");
        sound(&service);
        drop(region);
        assert_eq!(limit.usage(), mm.store_charged());
        sound(&service);
    });
}
