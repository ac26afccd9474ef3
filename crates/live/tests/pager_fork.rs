//! The pager standing still for a fork.

mod common;
#[path = "common/trim.rs"]
mod trim;

use common::{PAGE, case, forever};
use deckle_live::{Die, Limit, LiveConfig, Pager};
use deckle_mm::{Prot, ThpMode, Tunables};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::thread::{sleep, spawn};
use std::time::Duration;
use trim::Trim;

/// A thread whose fault waits for a worker asks for a fork (its stack may be managed memory):
/// the workers stand still then, so that its fault must not wait for them.
#[test]
fn p10_p20_a_queued_fault_of_the_forking_thread_is_served_while_all_stand_still() {
    case(|| {
        let limit = Arc::new(Limit::new(256, 256, u64::MAX));
        let config = LiveConfig {
            arena_bytes: Some(64 << 20),
            fork_events: true,
            ..LiveConfig::default()
        };
        let tunables = Tunables {
            thp: ThpMode::Never,
            ..Tunables::default()
        };
        let pager = Pager::new(config, limit, Trim::default(), tunables, Box::new(Die));
        let pager = forever(pager.expect("pager"));
        let start = pager
            .mm()
            .mmap(pager.space(), None, 512, 512, Prot::RW)
            .expect("map");
        spawn(|| pager.handler_loop(0));
        let tid: &AtomicU32 = forever(AtomicU32::new(0));
        let at: &AtomicUsize = forever(AtomicUsize::new(0));
        let enough: &AtomicBool = forever(AtomicBool::new(false));
        let toucher = spawn(move || {
            // SAFETY: no arguments.
            tid.store(unsafe { libc::gettid() } as u32, SeqCst);
            while !enough.load(SeqCst) {
                let page = at.fetch_add(1, SeqCst);
                let byte = (start.addr() as usize + page * PAGE) as *mut u8;
                // SAFETY: of the mapping made above, which has more pages than the limit.
                unsafe { byte.write_volatile(page as u8 | 1) };
            }
        });
        // The limit is reached: nobody reclaims, so that the fault is queued for ever.
        let mut seen = usize::MAX;
        while at.load(SeqCst) < 200 || seen != at.load(SeqCst) {
            seen = at.load(SeqCst);
            sleep(Duration::from_millis(100));
        }
        enough.store(true, SeqCst);
        assert!(!toucher.is_finished(), "its fault waits");
        pager.freeze(tid.load(SeqCst), || {}).expect("freeze");
        toucher.join().expect("served");
        pager.thaw().expect("booked");
        pager.mm().verify(false).expect("reconciled");
        for page in 0..at.load(SeqCst) {
            let byte = (start.addr() as usize + page * PAGE) as *const u8;
            // SAFETY: as above; present, since nothing was evicted.
            assert_eq!(unsafe { byte.read_volatile() }, page as u8 | 1);
        }
    });
}
