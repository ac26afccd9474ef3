//! Facts: a task that shares the program's memory but neither its descriptors nor its thread group
//! can be its pager, also across fork; and how far it can be seen.

use crate::common;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::common::fact;
use crate::common::mem::{Map, PAGE, has_page, present, write_page};
use crate::common::service;
use deckle_uffd::{CopyMode, Errno, Event, Features, MoveMode, Msg, RegisterMode, Uffd, Why};

const PAGES: usize = 16;

/// What program and service share. Phases: 0 starting, 1 evicted and serving, 2 stop.
struct Shared {
    phase: AtomicU32,
    features: AtomicU64,
    map: AtomicUsize,
    park: AtomicUsize,
    moved: AtomicUsize,
    copied: AtomicUsize,
}

static SHARED: Shared = Shared {
    phase: AtomicU32::new(0),
    features: AtomicU64::new(0),
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
    let features = shared.features.load(Ordering::SeqCst);
    program.api(Features::from_bits(features)).map_err(|_| 4)?;
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
            let addr = match msg.take() {
                Some(Event::Pagefault { addr, .. }) => addr,
                Some(Event::Fork { child }) => {
                    serve_child(shared, &child)?;
                    continue;
                }
                _ => return Err(11),
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

/// Serves one fault of a forked child from the parking range.
fn serve_child(shared: &Shared, child: &Uffd) -> Result<(), i32> {
    let (map, park) = (
        shared.map.load(Ordering::SeqCst),
        shared.park.load(Ordering::SeqCst),
    );
    let mut msgs = [const { Msg::empty() }; 1];
    while child.read_events(&mut msgs).map_err(|_| 20)? == 0 {
        child.wait(20).map_err(|_| 21)?;
    }
    let Some(Event::Pagefault { addr, .. }) = msgs[0].take() else {
        return Err(22);
    };
    let from = (park + (addr - map)) as *const u8;
    // SAFETY: a hole in the child's memory and the bytes that belong there.
    unsafe { child.copy(addr, from, PAGE, CopyMode::empty()) }.map_err(|_| 23)?;
    shared.copied.fetch_add(1, Ordering::SeqCst);
    // Kept open, or the child's other evicted memory would turn into zeros while it lives. To
    // learn of its end the served page is offered again: Exists while it lives, then Gone.
    loop {
        // SAFETY: the page is occupied, so nothing can be filled.
        let again = unsafe { child.copy(addr, from, PAGE, CopyMode::empty()) };
        match again.map_err(|p| p.why) {
            Err(Why::Exists) => spin_loop(),
            Err(Why::Gone) => return Ok(()),
            _ => return Err(24),
        }
    }
}

/// The program's memory and the parking range, half of each filled.
fn prepare(features: Features) -> (Map, Map) {
    drop(common::uffd(features)); // Skipped here if there is no userfaultfd.
    let (map, park) = (Map::pages(PAGES), Map::pages(PAGES));
    park.advise(libc::MADV_DONTFORK);
    for n in 0..PAGES / 2 {
        write_page(map.page(n), n as u64);
        write_page(park.page(PAGES / 2 + n), (PAGES / 2 + n) as u64);
    }
    SHARED.features.store(features.bits(), Ordering::SeqCst);
    SHARED.map.store(map.addr, Ordering::SeqCst);
    SHARED.park.store(park.addr, Ordering::SeqCst);
    (map, park)
}

/// Starts the service and waits until it serves.
fn start() -> service::Service {
    let service = service::start(serve, &SHARED);
    while SHARED.phase.load(Ordering::SeqCst) == 0 {
        spin_loop();
    }
    service
}

#[test]
fn p30_p22_a_task_sharing_memory_but_no_descriptors_serves_the_program() {
    fact(|| {
        let (map, _park) = prepare(Features::MOVE);
        let descriptors = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        let threads = || {
            std::fs::read_dir("/proc/self/task")
                .expect("procfs")
                .count()
        };
        let before = (descriptors(), threads());
        let service = start();
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

#[test]
fn p20_p10_such_a_task_reads_the_fork_event_and_serves_the_child() {
    fact(|| {
        if !common::is_root() {
            common::skip("EVENT_FORK needs CAP_SYS_PTRACE");
        }
        let (map, _park) = prepare(Features::MOVE | Features::EVENT_FORK);
        let service = start();
        let addr = map.addr;
        // The child's descriptor arrives in the table of the service: the program, and so the
        // child, never has one.
        let child = common::process::fork(move || {
            // SAFETY: this process needs no descriptor.
            unsafe { libc::close_range(3, u32::MAX, 0) };
            i32::from(has_page(addr + PAGE, 1))
        });
        assert_eq!(child.status(), 1, "the child saw wrong bytes");
        // Served again only after the child is gone: the program's own page.
        assert!(has_page(map.page(1), 1));
        SHARED.phase.store(2, Ordering::SeqCst);
        assert_eq!(service.join(), 0, "the step that failed in the service");
        let served = (
            SHARED.moved.load(Ordering::SeqCst),
            SHARED.copied.load(Ordering::SeqCst),
        );
        assert_eq!(served, (1, 1));
    });
}

/// The error of unshare(CLONE_NEWUSER), 0 for success, in the calling process.
fn unshare_user() -> i32 {
    // SAFETY: touches no memory; in a process of its own.
    match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
        0 => 0,
        _ => Errno::last().0,
    }
}

#[test]
fn p22_such_a_task_is_neither_a_child_for_wait_nor_a_thread_for_unshare() {
    fact(|| {
        drop(common::uffd(Features::MOVE)); // Skipped here if there is none.
        // In children, since the case itself has the test harness's second thread: that alone
        // makes the kernel refuse a new user namespace.
        let allowed = common::process::fork(unshare_user).status();
        if allowed != 0 {
            common::skip(&format!("user namespaces: {}", Errno(allowed)));
        }
        let with_thread = common::process::fork(|| {
            let stop = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while stop.load(Ordering::SeqCst) == 0 {
                        spin_loop();
                    }
                });
                let refused = unshare_user();
                stop.store(1, Ordering::SeqCst);
                refused
            })
        });
        assert_eq!(
            with_thread.status(),
            libc::EINVAL,
            "what a real thread would cost"
        );
        let with_service = common::process::fork(|| {
            let (_map, _park) = prepare(Features::MOVE);
            let service = start();
            // SAFETY: no status is asked for.
            let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
            let unshared = unshare_user();
            SHARED.phase.store(2, Ordering::SeqCst);
            match (pid, service.join()) {
                (-1, 0) => unshared,
                (-1, step) => 100 + step,
                _ => 200,
            }
        });
        assert_eq!(
            with_service.status(),
            0,
            "100 and over: a step failed; 200: seen by wait"
        );
    });
}
