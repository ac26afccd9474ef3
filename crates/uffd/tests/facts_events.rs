//! Facts: events, what waits for them, and what ends a registration.

use crate::common::mem::{Map, PAGE, advise, has_page, is_zero, peek, present, write_page};
use crate::common::process::{fork, is_quiet, next_event, next_fault, reader, task};
use crate::common::{fact, is_root, skip, uffd};
use deckle_uffd::{
    CopyMode, Done, Errno, Event, Features, MoveMode, Msg, Partial, RegisterMode, Uffd, WakeMode,
    Why, finish,
};

const CHANGING: Result<Done, Partial> = Err(Partial {
    done: 0,
    why: Why::Again { changing: true },
});
const ONE: Result<Done, Partial> = Ok(Done { bytes: PAGE });

/// The three operations that fill page `n` of `dst`, on three pages.
fn fill(uffd: &Uffd, dst: &Map, src: &Map) -> [Result<Done, Partial>; 3] {
    // SAFETY: holes and pages of the test.
    unsafe {
        [
            uffd.copy(
                dst.page(0),
                src.page(0) as *const u8,
                PAGE,
                CopyMode::empty(),
            ),
            uffd.zeropage(dst.page(1), PAGE, WakeMode::empty()),
            uffd.move_pages(dst.page(2), src.page(2), PAGE, MoveMode::empty()),
        ]
    }
}

#[test]
fn p9_p10_an_unread_fork_event_stops_every_operation_and_the_caller() {
    fact(|| {
        if !is_root() {
            skip("EVENT_FORK needs CAP_SYS_PTRACE");
        }
        let uffd = uffd(Features::MOVE | Features::EVENT_FORK);
        // Not the range that is filled: one event stops operations on any range.
        let (other, dst, src) = (Map::pages(1), Map::pages(3), Map::pages(3));
        src.fill();
        uffd.register(other.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        uffd.register(dst.addr, dst.len, RegisterMode::MISSING)
            .expect("register");
        let forking = task(|| fork(|| 5).status());
        assert!(uffd.wait(10_000).expect("poll"));
        assert!(
            forking.still_waits(),
            "fork returned before its event was read"
        );
        for _ in 0..3 {
            assert_eq!(fill(&uffd, &dst, &src), [CHANGING; 3]);
        }
        assert!(matches!(next_event(&uffd), Event::Fork { .. }));
        // Being read is enough; what is left of the change is a moment.
        let mut tries = 0;
        let from = src.addr as *const u8;
        let done = finish(
            PAGE,
            // SAFETY: a hole of the test.
            |at, len| unsafe { uffd.copy(dst.addr + at, from.add(at), len, CopyMode::empty()) },
            || {
                tries += 1;
                std::thread::yield_now();
                tries < 1_000_000
            },
        );
        assert_eq!(done, ONE);
        assert_eq!(forking.join(), 5);
        assert!(has_page(dst.page(0), 0));
    });
}

#[test]
fn p9_p10_a_remove_event_blocks_its_caller_until_read() {
    fact(|| {
        let uffd = uffd(Features::MOVE | Features::EVENT_REMOVE);
        let (map, dst, src) = (Map::pages(4), Map::pages(3), Map::pages(3));
        map.fill();
        src.fill();
        uffd.register(map.addr, map.len, RegisterMode::MISSING)
            .expect("register");
        uffd.register(dst.addr, dst.len, RegisterMode::MISSING)
            .expect("register");
        let (start, end) = (map.page(1), map.page(3));
        let call = task(move || advise(start, end - start, libc::MADV_DONTNEED));
        assert!(uffd.wait(10_000).expect("poll"));
        assert!(call.still_waits());
        assert_eq!(fill(&uffd, &dst, &src), [CHANGING; 3]);
        match next_event(&uffd) {
            Event::Remove { start: s, end: e } => assert_eq!((s, e), (start, end)),
            other => panic!("{other:?}"),
        }
        assert_eq!(call.join(), Ok(()));
        assert_eq!(fill(&uffd, &dst, &src), [ONE; 3]);
        assert_eq!(present(map.addr, map.len), 2 * PAGE);
    });
}

#[test]
fn p9_pending_faults_are_read_before_events() {
    fact(|| {
        let uffd = uffd(Features::EVENT_REMOVE);
        let (map, src) = (Map::pages(2), Map::pages(1));
        uffd.register(map.addr, map.len, RegisterMode::MISSING)
            .expect("register");
        let (one, two) = (map.page(0), map.page(1));
        let call = task(move || advise(one, PAGE, libc::MADV_DONTNEED));
        assert!(uffd.wait(10_000).expect("poll"), "the event comes first");
        assert!(call.still_waits());
        let touch = reader(two);
        assert!(touch.still_waits());
        // One read, with room for one: the younger fault.
        let mut msgs = [Msg::empty()];
        assert_eq!(uffd.read_events(&mut msgs), Ok(1));
        assert!(matches!(msgs[0].take(), Some(Event::Pagefault { addr, .. }) if addr == two));
        // SAFETY: a hole of the test.
        let copy = || unsafe { uffd.copy(two, src.addr as *const u8, PAGE, CopyMode::empty()) };
        assert_eq!(
            copy(),
            CHANGING,
            "it cannot be served while the event is unread"
        );
        assert!(matches!(next_event(&uffd), Event::Remove { .. }));
        assert_eq!(call.join(), Ok(()));
        write_page(src.addr, 0);
        assert_eq!(copy(), ONE);
        touch.join();
    });
}

#[test]
fn p18_a_reservation_registers_once_and_protection_changes_keep_it() {
    fact(|| {
        const LEN: usize = 1 << 36;
        let uffd = uffd(Features::empty());
        let arena = Map::raw(LEN, libc::PROT_NONE);
        uffd.register(arena.addr, LEN, RegisterMode::MISSING)
            .expect("register 64 GiB at once");
        let part = arena.addr + LEN / 2;
        // SAFETY: untouched memory of the test.
        let result =
            unsafe { libc::mprotect(part as *mut _, 4 * PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(result, 0);
        let touch = reader(part + PAGE);
        assert_eq!(next_fault(&uffd), (part + PAGE, false, false));
        // SAFETY: a hole of the test.
        unsafe { uffd.zeropage(part + PAGE, PAGE, WakeMode::empty()) }.expect("serve");
        assert_eq!(touch.join(), 0);
    });
}

#[test]
fn p18_many_small_registrations_run_out_of_mappings() {
    fact(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("procfs");
        let limit: usize = text.trim().parse().expect("a number");
        if limit > 300_000 {
            skip(&format!(
                "vm.max_map_count is {limit}: the test would take minutes"
            ));
        }
        let uffd = uffd(Features::empty());
        let map = Map::pages(2 * limit);
        let refused = (0..limit).map(|n| {
            uffd.register(map.page(2 * n), PAGE, RegisterMode::MISSING)
                .map(drop)
        });
        let (n, error) = refused
            .enumerate()
            .find(|(_, r)| r.is_err())
            .expect("a limit");
        assert_eq!(error, Err(Errno(libc::ENOMEM)));
        assert!(n <= limit / 2, "{n} registrations with a limit of {limit}");
        // Closing, not unmapping by parts, ends them all.
        drop(uffd);
    });
}

/// mremap to a new place; says where.
fn move_mapping(map: &Map) -> usize {
    let target = Map::raw(map.len, libc::PROT_NONE);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = target.addr as *mut libc::c_void;
    // SAFETY: both ranges belong to the test; the target is replaced.
    let new = unsafe { libc::mremap(map.addr as *mut _, map.len, map.len, flags, to) };
    assert_eq!(new, to, "mremap: {}", Errno::last());
    std::mem::forget(target);
    new as usize
}

#[test]
fn p19_mremap_without_its_event_drops_the_registration() {
    fact(|| {
        let uffd = uffd(Features::MOVE);
        let (map, park) = (Map::pages(2), Map::pages(2));
        map.fill();
        uffd.register(map.addr, map.len, RegisterMode::MISSING)
            .expect("register");
        uffd.register(park.addr, park.len, RegisterMode::WP)
            .expect("register");
        // SAFETY: pages of the test.
        unsafe { uffd.move_pages(park.addr, map.addr, PAGE, MoveMode::empty()) }.expect("evict");
        let new = move_mapping(&map);
        assert!(is_zero(new), "the silent loss");
        assert!(has_page(new + PAGE, 1) && is_quiet(&uffd));
    });
}

#[test]
fn p19_mremap_with_its_event_keeps_the_registration() {
    fact(|| {
        let uffd = uffd(Features::MOVE | Features::EVENT_REMAP);
        let (map, park) = (Map::pages(2), Map::pages(2));
        map.fill();
        uffd.register(map.addr, map.len, RegisterMode::MISSING)
            .expect("register");
        uffd.register(park.addr, park.len, RegisterMode::WP)
            .expect("register");
        // SAFETY: pages of the test.
        unsafe { uffd.move_pages(park.addr, map.addr, PAGE, MoveMode::empty()) }.expect("evict");
        let (old, len) = (map.addr, map.len);
        let call = task(move || move_mapping(&map));
        let (from, to) = match next_event(&uffd) {
            Event::Remap { from, to, len: l } => {
                assert_eq!(l, len);
                (from, to)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((from, call.join()), (old, to));
        let touch = reader(to);
        assert_eq!(next_fault(&uffd), (to, false, false));
        // SAFETY: pages of the test.
        let back = unsafe { uffd.move_pages(to, park.addr, PAGE, MoveMode::empty()) };
        assert_eq!(back, ONE);
        touch.join();
        assert!(has_page(to, 0) && has_page(to + PAGE, 1));
    });
}

#[test]
fn p19_a_new_mapping_over_the_range_is_not_registered() {
    fact(|| {
        let uffd = uffd(Features::empty());
        let map = Map::pages(1);
        uffd.register(map.addr, PAGE, RegisterMode::MISSING)
            .expect("register");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces a mapping of the test.
        let new = unsafe { libc::mmap(map.addr as *mut _, PAGE, prot, flags, -1, 0) };
        assert_eq!(new as usize, map.addr);
        assert_eq!(peek(map.addr), 0);
        assert!(is_quiet(&uffd));
    });
}

#[test]
fn p19_unmap_is_reported_with_its_event() {
    fact(|| {
        let uffd = uffd(Features::EVENT_UNMAP);
        let map = Map::pages(3);
        let (addr, len) = (map.addr, map.len);
        uffd.register(addr, len, RegisterMode::MISSING)
            .expect("register");
        let call = task(move || drop(map));
        match next_event(&uffd) {
            Event::Unmap { start, end } => assert_eq!((start, end), (addr, addr + len)),
            other => panic!("{other:?}"),
        }
        call.join();
    });
}
