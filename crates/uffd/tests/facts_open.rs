//! Facts: opening, handshake, and who is served.

use crate::common::mem::{Map, PAGE, has_page, is_zero, peek, present, write_page};
use crate::common::process::{fork, next_event, next_fault, reader, task};
use std::io::Write;
use std::os::fd::AsRawFd;

use crate::common::{fact, is_root, skip, uffd, user_mode_uffd};
use deckle_uffd::{
    CopyMode, Errno, Event, Features, MoveMode, Msg, RegisterMode, Uffd, Via, WakeMode, Why,
};

/// A pipe with one byte in it; reads that byte into `addr` and says what read(2) said.
fn read_into(addr: usize) -> Result<usize, Errno> {
    let (from, mut to) = std::io::pipe().expect("a pipe");
    to.write_all(b"x").expect("room");
    // SAFETY: one byte of the test's mapping.
    let got = unsafe { libc::read(from.as_raw_fd(), addr as *mut _, 1) };
    usize::try_from(got).map_err(|_| Errno::last())
}

#[test]
fn p2_both_ways_lead_to_the_same_interface() {
    fact(|| {
        let routes = Uffd::routes(false);
        if let (Err(a), Err(b)) = (routes.syscall, routes.device) {
            skip(&format!("system call: {a}, device: {b}"));
        }
        for (via, route) in [(Via::Syscall, routes.syscall), (Via::Device, routes.device)] {
            if route.is_ok() {
                assert!(
                    Uffd::probe(via, false)
                        .expect("probe")
                        .contains(Features::MOVE)
                );
            } else {
                eprintln!("{via} is closed here");
            }
        }
        assert!(!is_root() || routes.syscall.is_ok(), "root is not refused");
        let (_, via) = Uffd::open_any(false).expect("one way is open");
        assert_eq!(via == Via::Syscall, routes.syscall.is_ok());
    });
}

#[test]
fn p4_the_handshake_is_once_and_refuses_unknown_bits() {
    fact(|| {
        let offered = match Uffd::probe(Via::Syscall, true) {
            Ok(offered) => offered,
            Err(e) => skip(&format!("userfaultfd: {e}")),
        };
        let fd = || Uffd::open(Via::Syscall, true).expect("open");
        let invalid = Err(Errno(libc::EINVAL));
        assert!(offered.contains(Features::all()), "offered: {offered}");
        assert_eq!(fd().api(Features::from_bits(1 << 62)).map(drop), invalid);
        let uffd = fd();
        let map = Map::pages(1);
        let register = || {
            uffd.register(map.addr, PAGE, RegisterMode::MISSING)
                .map(drop)
        };
        assert_eq!(
            uffd.read_events(&mut [Msg::empty()]),
            Err(Errno(libc::EINVAL))
        );
        assert_eq!(register(), invalid);
        assert_eq!(uffd.api(Features::MOVE).expect("first").offered, offered);
        assert_eq!(uffd.api(Features::MOVE).map(drop), invalid);
        assert_eq!(register(), Ok(()));
        assert_eq!(uffd.read_events(&mut [Msg::empty()]), Ok(0));
    });
}

#[test]
fn p1_p21_user_mode_only_fails_system_calls_into_missing_memory() {
    fact(|| {
        let uffd = user_mode_uffd(Features::empty());
        let map = Map::pages(1);
        uffd.register(map.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        // Nobody serves: a descriptor that delivered this would hang here for ever.
        assert_eq!(read_into(map.addr), Err(Errno(libc::EFAULT)));
    });
}

#[test]
fn p1_sigbus_mode_fails_system_calls_into_missing_memory() {
    fact(|| {
        let uffd = uffd(Features::SIGBUS);
        let map = Map::pages(1);
        uffd.register(map.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        assert_eq!(read_into(map.addr), Err(Errno(libc::EFAULT)));
        let addr = map.addr;
        assert_eq!(
            fork(move || i32::from(peek(addr))).status(),
            0,
            "the child is unregistered"
        );
    });
}

#[test]
fn p1_a_privileged_descriptor_serves_system_calls() {
    fact(|| {
        let uffd = uffd(Features::empty());
        let (map, src) = (Map::pages(1), Map::pages(1));
        write_page(src.addr, 1);
        uffd.register(map.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        let addr = map.addr;
        let call = task(move || read_into(addr + 8));
        assert_eq!(next_fault(&uffd).0, addr);
        assert!(call.still_waits());
        // SAFETY: a hole of this test.
        let done = unsafe { uffd.copy(addr, src.addr as *const u8, PAGE, CopyMode::empty()) };
        assert_eq!(done.map(|d| d.bytes), Ok(PAGE));
        assert_eq!(call.join(), Ok(1));
        assert_eq!(peek(addr + 8), b'x');
    });
}

#[test]
fn p2_a_user_mode_only_descriptor_can_move() {
    fact(|| {
        let uffd = user_mode_uffd(Features::MOVE);
        let (map, park) = (Map::pages(2), Map::pages(2));
        map.fill();
        uffd.register(map.addr, map.len, RegisterMode::MISSING)
            .expect("register");
        uffd.register(park.addr, park.len, RegisterMode::WP)
            .expect("register");
        // SAFETY: both ranges belong to this test; bytes come back before they are read.
        let out = unsafe { uffd.move_pages(park.addr, map.addr, map.len, MoveMode::empty()) };
        assert_eq!(out.map(|d| d.bytes), Ok(map.len));
        assert_eq!(
            (present(map.addr, map.len), present(park.addr, park.len)),
            (0, park.len)
        );
        // SAFETY: as above.
        let back = unsafe { uffd.move_pages(map.addr, park.addr, map.len, MoveMode::empty()) };
        assert_eq!(back.map(|d| d.bytes), Ok(map.len));
        assert!(has_page(map.page(0), 0) && has_page(map.page(1), 1));
    });
}

#[test]
fn p21_p22_without_a_handler_a_touch_waits_but_can_be_killed() {
    fact(|| {
        drop(uffd(Features::empty())); // Skipped here if there is none.
        let child = fork(|| {
            let uffd = uffd(Features::empty());
            let map = Map::pages(1);
            uffd.register(map.addr, PAGE, RegisterMode::MISSING)
                .expect("register");
            i32::from(peek(map.addr))
        });
        let mut child = child;
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(
            !child.has_ended(),
            "the touch came back without anybody serving it"
        );
        assert_eq!(child.kill(), 128 + libc::SIGKILL);
    });
}

#[test]
fn p22_p30_closing_releases_waiters_into_zeros() {
    fact(|| {
        let uffd = uffd(Features::MOVE);
        let (map, park) = (Map::pages(1), Map::pages(1));
        write_page(map.addr, 7);
        uffd.register(map.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        uffd.register(park.addr, PAGE, RegisterMode::WP)
            .expect("register");
        // SAFETY: both ranges belong to this test, which expects to lose the bytes.
        unsafe { uffd.move_pages(park.addr, map.addr, PAGE, MoveMode::empty()) }.expect("evict");
        let touch = reader(map.addr);
        assert_eq!(next_fault(&uffd).0, map.addr);
        assert!(touch.still_waits());
        drop(uffd);
        assert_eq!(touch.join(), 0, "released without the data");
        assert!(
            is_zero(map.addr) && has_page(park.addr, 7),
            "the bytes are still elsewhere"
        );
    });
}

#[test]
fn p8_operations_on_a_closed_or_foreign_descriptor_say_so() {
    fact(|| {
        // SAFETY: not a userfaultfd, but nothing is read from it.
        let not =
            unsafe { Uffd::from_owned_fd(std::fs::File::open("/dev/null").expect("null").into()) };
        let map = Map::pages(1);
        // SAFETY: nothing can happen through this descriptor.
        let result = unsafe { not.move_pages(map.addr, map.addr, PAGE, MoveMode::empty()) };
        assert_eq!(result.map_err(|p| (p.done, p.why)), Err((0, Why::BadFd)));
    });
}

#[test]
fn poison_raises_sigbus() {
    fact(|| {
        drop(uffd(Features::POISON)); // Skipped here if there is none.
        let child = fork(|| {
            let uffd = uffd(Features::POISON);
            let map = Map::pages(2);
            uffd.register(map.addr, map.len, RegisterMode::MISSING)
                .expect("register");
            // SAFETY: a hole of this test.
            let done = unsafe { uffd.poison(map.addr, PAGE, WakeMode::empty()) };
            assert_eq!(done.map(|d| d.bytes), Ok(PAGE));
            i32::from(peek(map.addr))
        });
        assert_eq!(child.status(), 128 + libc::SIGBUS);
    });
}

#[test]
fn a_fault_carries_its_threads_id_if_asked_for() {
    fact(|| {
        let uffd = uffd(Features::THREAD_ID | Features::EXACT_ADDRESS);
        let map = Map::pages(1);
        uffd.register(map.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        let at = map.addr + 123;
        let touch = task(move || {
            peek(at);
            // SAFETY: no preconditions.
            unsafe { libc::gettid() }
        });
        let Event::Pagefault { addr, ptid, .. } = next_event(&uffd) else {
            panic!("not a fault")
        };
        assert_eq!(addr, at);
        // SAFETY: a hole of this test.
        unsafe { uffd.zeropage(map.addr, PAGE, WakeMode::empty()) }.expect("serve");
        assert_eq!(ptid as i32, touch.join());
    });
}

#[test]
fn minor_faults_of_shared_memory_are_served_by_continue() {
    fact(|| {
        let uffd = uffd(Features::MINOR_SHMEM);
        // SAFETY: a valid name.
        let fd = unsafe { libc::memfd_create(c"minor".as_ptr(), 0) };
        // SAFETY: our own new descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd, PAGE as i64) }, 0);
        let view = || {
            let (rw, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rw, shared, fd, 0) as usize }
        };
        let (one, two) = (view(), view());
        uffd.register(one, PAGE, RegisterMode::MINOR)
            .expect("register");
        write_page(two, 6);
        let touch = reader(one);
        let Event::Pagefault { addr, minor, .. } = next_event(&uffd) else {
            panic!("not a fault")
        };
        assert_eq!((addr, minor), (one, true));
        // SAFETY: the page cache holds the bytes that are to be seen.
        let done = unsafe { uffd.continue_range(one, PAGE, WakeMode::empty()) };
        assert_eq!(done.map(|d| d.bytes), Ok(PAGE));
        touch.join();
        assert!(has_page(one, 6));
    });
}
