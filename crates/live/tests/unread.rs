//! A move that nobody reads of, since all who should wait for its end.

use crate::common::{PAGE, case};
use crate::service::Trim;
use deckle_live::{Die, Limit, LiveConfig, Pager, Place};
use deckle_mm::{FaultMode, PageRun, Prot, ThpMode, Tunables, Vpn};
use std::sync::Arc;
use std::time::Duration;

/// Pages of each half: a block, so that no folio belongs to both.
const HALF: u32 = deckle_mm::BLOCK_PAGES;

/// No handler runs, which is as if each waited. The kernel refuses to mark pages, until the message
/// of the move has been read.
#[test]
fn who_waits_for_a_move_has_it_read_and_forgets_nothing() {
    case(|| {
        let limit = Arc::new(Limit::new(1 << 16, 1 << 16, u64::MAX));
        let tunables = Tunables {
            thp: ThpMode::Never,
            ..Tunables::default()
        };
        let config = LiveConfig::default();
        let store = Trim::default();
        let pager = Pager::new(config, limit, store, tunables, Box::new(Die)).expect("pager");
        let pager: &'static Pager<Limit, Trim> = Box::leak(Box::new(pager));
        let (mm, space) = (pager.mm(), pager.space());
        let place = Place::aligned(HALF as usize * PAGE);
        // SAFETY: at no address in particular.
        let map = unsafe { pager.map(place, u64::from(2 * HALF), Prot::RW) };
        let start = map.expect("map");
        for page in start.0..start.0 + u64::from(2 * HALF) {
            mm.fault(space, Vpn(page), true, FaultMode::MayWait)
                .unwrap();
            // SAFETY: just mapped, and nobody evicts it.
            unsafe { ((page as usize * PAGE) as *mut u64).write_volatile(page) };
        }
        pager.page_out(start, u64::from(HALF)).expect("page_out");
        let away = PageRun {
            space,
            start,
            pages: HALF,
        };
        assert_eq!(pager.platform().forgotten(away).count(), 0);

        let there = (start.addr() as usize) + HALF as usize * PAGE;
        let mover = std::thread::spawn(move || {
            // SAFETY: moves pages of the test's own, which it does not touch afterwards, to where
            // the kernel likes.
            unsafe {
                let len = HALF as usize * PAGE;
                let new = libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                libc::mremap(there as *mut _, len, len, flags, new) == new
            }
        });
        while is_there(there) {
            std::thread::yield_now();
        }
        std::thread::spawn(move || pager.background_loop());
        pager.platform().hold(away);
        let ends = std::time::Instant::now() + Duration::from_secs(10);
        while !mover.is_finished() {
            assert!(std::time::Instant::now() < ends, "nobody has read of it");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(mover.join().unwrap());
        // What the program discards is told still.
        let page = start.addr() as usize as *mut libc::c_void;
        // SAFETY: a page of the test's own that is away.
        unsafe { libc::madvise(page, PAGE, libc::MADV_DONTNEED) };
        assert_eq!(pager.platform().forgotten(away).count(), 1);
    });
}

/// Whether anything is mapped at an address.
fn is_there(addr: usize) -> bool {
    let mut seen = 0_u8;
    // SAFETY: writes a byte for a page, or fails.
    unsafe { libc::mincore(addr as *mut _, PAGE, &raw mut seen) == 0 }
}
