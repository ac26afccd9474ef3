//! Fact: a task that shares the program's memory but neither its descriptors nor its thread group
//! can be its pager.

mod common;

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use common::fact;
use common::mem::{Map, PAGE, has_page, present, write_page};
use common::service;
use deckle_uffd::{CopyMode, Event, Features, MoveMode, Msg, RegisterMode, Uffd};

const PAGES: usize = 16;

/// What program and service share. Phases: 0 starting, 1 evicted and serving, 2 stop.
struct Shared {
    phase: AtomicU32,
    map: AtomicUsize,
    park: AtomicUsize,
    moved: AtomicUsize,
    copied: AtomicUsize,
}

static SHARED: Shared = Shared {
    phase: AtomicU32::new(0),
    map: AtomicUsize::new(0),
    park: AtomicUsize::new(0),
    moved: AtomicUsize::new(0),
    copied: AtomicUsize::new(0),
};

/// The service; its exit code is the step that failed, 0 for none. No panic, no allocation: the
/// thread-local storage is the program's.
extern "C" fn serve(shared: *mut libc::c_void) -> i32 {
    // SAFETY: the argument is SHARED.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let code = match run(shared) {
        Ok(()) => 0,
        Err(step) => step,
    };
    // Also when a step failed, so that the program does not wait for ever.
    shared.phase.store(2, Ordering::SeqCst);
    code
}

fn run(shared: &Shared) -> Result<(), i32> {
    let (map, park) = (
        shared.map.load(Ordering::SeqCst),
        shared.park.load(Ordering::SeqCst),
    );
    let len = PAGES * PAGE;
    // SAFETY: plain system calls. The descriptor table is a copy of the program's, so closing
    // it all hurts nobody.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(15);
        if libc::close_range(3, u32::MAX, 0) != 0 {
            return Err(1);
        }
    }
    let (program, _) = Uffd::open_any(false).map_err(|_| 2)?;
    let (parking, _) = Uffd::open_any(false).map_err(|_| 3)?;
    program.api(Features::MOVE).map_err(|_| 4)?;
    parking.api(Features::MOVE).map_err(|_| 5)?;
    program
        .register(map, len, RegisterMode::MISSING)
        .map_err(|_| 6)?;
    parking
        .register(park, len, RegisterMode::WP)
        .map_err(|_| 7)?;
    // The first half is filled: evict it. The second half is missing from the start.
    // SAFETY: ranges of the test; the bytes are moved back at the first touch.
    unsafe { parking.move_pages(park, map, len / 2, MoveMode::empty()) }.map_err(|_| 8)?;
    shared.phase.store(1, Ordering::SeqCst);
    let mut msgs = [const { Msg::empty() }; 4];
    while shared.phase.load(Ordering::SeqCst) == 1 {
        if !program.wait(20).map_err(|_| 9)? {
            continue;
        }
        let got = program.read_events(&mut msgs).map_err(|_| 10)?;
        for msg in msgs.iter_mut().take(got) {
            let Some(Event::Pagefault { addr, .. }) = msg.take() else {
                return Err(11);
            };
            let offset = addr - map;
            if offset < len / 2 {
                // SAFETY: as above.
                unsafe { program.move_pages(addr, park + offset, PAGE, MoveMode::empty()) }
                    .map_err(|_| 12)?;
                shared.moved.fetch_add(1, Ordering::SeqCst);
            } else {
                // The last pages of the parking range hold what the missing ones are to get.
                // SAFETY: a hole of the test.
                unsafe {
                    program.copy(addr, (park + offset) as *const u8, PAGE, CopyMode::empty())
                }
                .map_err(|_| 13)?;
                shared.copied.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    Ok(())
}

#[test]
fn p30_p22_a_task_sharing_memory_but_no_descriptors_serves_the_program() {
    fact(|| {
        drop(common::uffd(Features::MOVE)); // Skipped here if there is no userfaultfd.
        let (map, park) = (Map::pages(PAGES), Map::pages(PAGES));
        park.advise(libc::MADV_DONTFORK);
        for n in 0..PAGES / 2 {
            write_page(map.page(n), n as u64);
            write_page(park.page(PAGES / 2 + n), (PAGES / 2 + n) as u64);
        }
        SHARED.map.store(map.addr, Ordering::SeqCst);
        SHARED.park.store(park.addr, Ordering::SeqCst);
        let descriptors = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        let threads = || {
            std::fs::read_dir("/proc/self/task")
                .expect("procfs")
                .count()
        };
        let before = (descriptors(), threads());
        let service = service::start(serve, &SHARED);
        while SHARED.phase.load(Ordering::SeqCst) == 0 {
            spin_loop();
        }
        // The program throws away every descriptor it has: none of them is the service's.
        // SAFETY: the case needs none but its log (1 and 2).
        let closed = unsafe { libc::close_range(3, u32::MAX, 0) };
        let mut intact = [false; PAGES];
        for (n, ok) in intact.iter_mut().enumerate() {
            *ok = has_page(map.page(n), n as u64);
        }
        let during = (descriptors(), threads());
        SHARED.phase.store(2, Ordering::SeqCst);
        assert_eq!(service.join(), 0, "the step that failed in the service");
        assert_eq!(closed, 0);
        assert_eq!(intact, [true; PAGES]);
        let half = PAGES / 2;
        let served = (
            SHARED.moved.load(Ordering::SeqCst),
            SHARED.copied.load(Ordering::SeqCst),
        );
        assert_eq!(served, (half, half));
        assert_eq!(present(map.addr, map.len), map.len);
        // Neither descriptor nor thread of it ever showed in the program.
        assert!(
            during.0 <= before.0 && during.1 == before.1,
            "{before:?} {during:?}"
        );
    });
}
