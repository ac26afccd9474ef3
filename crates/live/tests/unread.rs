//! Moves of managed memory whose message nobody has read yet.

use crate::common::{PAGE, case};
use crate::service::{Trim, opens};
use deckle_live::{Die, Limit, LiveConfig, Pager, Place};
use deckle_mm::{Advice, FaultMode, PageRun, Prot, ThpMode, Tunables, Vpn};
use std::cell::Cell;
use std::sync::Arc;
use std::thread::{JoinHandle, spawn, yield_now};
use std::time::{Duration, Instant};

/// Pages of each half: a block, so that no folio belongs to both.
const HALF: u32 = deckle_mm::BLOCK_PAGES;
const BYTES: usize = HALF as usize * PAGE;

type Managed = &'static Pager<Limit, Trim>;

/// A pager that nobody reads messages for, and two halves whose pages hold their numbers.
fn halves(adopts: bool) -> (Managed, Vpn) {
    let tunables = Tunables {
        thp: ThpMode::Never,
        ..Tunables::default()
    };
    halves_with(adopts, tunables)
}

fn halves_with(adopts: bool, tunables: Tunables) -> (Managed, Vpn) {
    let limit = Arc::new(Limit::new(1 << 16, 1 << 16, u64::MAX));
    let config = LiveConfig {
        adopts,
        ..LiveConfig::default()
    };
    let store = Trim::default();
    let pager = Pager::new(config, limit, store, tunables, Box::new(Die)).expect("pager");
    let pager: Managed = Box::leak(Box::new(pager));
    // SAFETY: at no address in particular.
    let map = unsafe { pager.map(Place::aligned(BYTES), u64::from(2 * HALF), Prot::RW) };
    let start = map.expect("map");
    for page in start.0..start.0 + u64::from(2 * HALF) {
        touch(pager, page);
        // SAFETY: just mapped, and nobody evicts it.
        unsafe { word(page).write_volatile(page) };
    }
    (pager, start)
}

fn touch(pager: Managed, page: u64) {
    let (mm, space) = (pager.mm(), pager.space());
    mm.fault(space, Vpn(page), true, FaultMode::MayWait)
        .unwrap();
}

fn word(page: u64) -> *mut u64 {
    (page as usize * PAGE) as *mut u64
}

/// Moves a half to another place, or to where the kernel likes, in a thread of its own, and waits
/// until that is done, but for the message.
fn move_half(from: usize, to: Option<usize>) -> JoinHandle<bool> {
    let mover = spawn(move || {
        // SAFETY: moves pages of the test's own, which it does not touch afterwards where they
        // were, to where nobody counts on anything.
        unsafe {
            let (none, how) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let to = to.map_or_else(
                || libc::mmap(std::ptr::null_mut(), BYTES, none, how, -1, 0),
                |at| at as *mut _,
            );
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(from as *mut _, BYTES, BYTES, flags, to) == to
        }
    });
    while is_there(from) {
        yield_now();
    }
    mover
}

/// Waits until the message of the move was read.
fn end(mover: JoinHandle<bool>) {
    let ends = Instant::now() + Duration::from_secs(10);
    while !mover.is_finished() {
        assert!(Instant::now() < ends, "nobody has read of it");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(mover.join().unwrap());
}

/// No handler runs, which is as if each waited. The kernel refuses to mark pages, until the message
/// of the move has been read.
#[test]
fn who_waits_for_a_move_has_it_read_and_forgets_nothing() {
    case(|| {
        let (pager, start) = halves(false);
        pager.page_out(start, u64::from(HALF)).expect("page_out");
        let away = PageRun::new(pager.space(), start, HALF);
        assert_eq!(pager.platform().forgotten(away).count(), 0);

        let mover = move_half(start.addr() as usize + BYTES, None);
        spawn(move || pager.background_loop());
        pager.platform().hold(away);
        end(mover);
        // What the program discards is told still.
        let page = start.addr() as usize as *mut libc::c_void;
        // SAFETY: a page of the test's own that is away.
        unsafe { libc::madvise(page, PAGE, libc::MADV_DONTNEED) };
        assert_eq!(pager.platform().forgotten(away).count(), 1);
    });
}

/// The program was ended, since the pages that had come were dropped for those that the books had
/// there.
#[test]
fn what_is_discarded_where_others_have_come_is_not_theirs() {
    case(|| {
        let (pager, start) = halves(true);
        let (mm, space) = (pager.mm(), pager.space());
        let other = start.add(u64::from(HALF));
        pager
            .page_out(other, u64::from(HALF / 2))
            .expect("page_out");
        let mover = move_half(other.addr() as usize, Some(start.addr() as usize));
        spawn(move || pager.background_loop());
        mm.madvise(space, start, u64::from(HALF), Advice::DontNeed)
            .expect("discard");
        end(mover);
        pager.settle_moves();
        for page in 0..u64::from(HALF) {
            touch(pager, start.0 + page);
            // SAFETY: it is there, and nobody evicts it.
            let found = unsafe { word(start.0 + page).read_volatile() };
            assert_eq!(found, other.0 + page, "page {page}");
        }
    });
}

/// New memory of the program's own, which it can write.
fn plain(bytes: usize) -> usize {
    let (rw, how) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rw, how, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

/// The part that was adopted, or was to be, stayed a mapping by itself, and the program's mremap
/// failed.
#[test]
fn a_mapping_of_which_a_part_would_be_adopted_stays_one() {
    case(|| {
        let (pager, _) = halves(true);
        let at = plain(2 * BYTES);
        let looks = Cell::new(0);
        let changes = || {
            looks.set(looks.get() + 1);
            Some(looks.get())
        };
        let how = (Prot::RW, false);
        assert!(pager.adopt((at, BYTES), how, changes).is_err());
        assert!(pager.adopt((at, BYTES), how, || None::<()>).is_err());
        // SAFETY: memory of the test's own.
        let moved = unsafe {
            let how = libc::MREMAP_MAYMOVE;
            libc::mremap(at as *mut _, 2 * BYTES, 2 * BYTES + PAGE, how)
        };
        assert_ne!(moved, libc::MAP_FAILED);
    });
}

/// The books had the range still, and the new mapping was refused as one that is there.
#[test]
fn a_new_mapping_in_the_place_of_what_has_gone_holds_zeros() {
    case(|| {
        let (pager, start) = halves_with(true, opens(ThpMode::Never, 90));
        let all = u64::from(2 * HALF);
        let at = start.addr() as usize;
        pager.page_out(start, u64::from(HALF)).expect("page_out");
        spawn(move || pager.handler_loop(0));
        spawn(move || pager.background_loop());
        for pages in [16, all] {
            // SAFETY: memory of the test's own.
            let gone = unsafe { libc::munmap(at as *mut _, pages as usize * PAGE) };
            assert_eq!(gone, 0);
            // SAFETY: replaces nothing.
            let new = unsafe { pager.map(Place::Free(at), pages, Prot::RW) };
            assert_eq!(new, Ok(start));
            for page in start.0..start.0 + pages {
                // SAFETY: just mapped.
                assert_eq!(unsafe { word(page).read_volatile() }, 0);
            }
        }
    });
}

/// Whether anything is mapped at an address.
fn is_there(addr: usize) -> bool {
    let mut seen = 0_u8;
    // SAFETY: writes a byte for a page, or fails.
    unsafe { libc::mincore(addr as *mut _, PAGE, &raw mut seen) == 0 }
}
