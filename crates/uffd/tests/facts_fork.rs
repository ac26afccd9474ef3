//! Facts: fork, and descriptors held by other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::mem::{Map, PAGE, has_page, is_zero, peek, present, write_page};
use crate::common::pair::mv;
use crate::common::process::{Task, fork, is_quiet, next_event, next_fault, task};
use crate::common::{self, fact, is_root, skip, uffd};
use deckle_uffd::{
    Categories, CopyMode, Done, Event, Features, Partial, ProtectMode, RegisterMode, Uffd, Why,
};

const ONE: Result<Done, Partial> = Ok(Done { bytes: PAGE });
const MANAGED: RegisterMode = RegisterMode::MISSING.union(RegisterMode::WP);

/// Managed pages filled with their patterns, of which the first is evicted. Take it apart by
/// naming every field: what `..` leaves out is dropped, and a descriptor thus closed.
struct Evicted {
    uffd: Arc<Uffd>,
    park_uffd: Uffd,
    map: Map,
    park: Map,
}

fn evicted(features: Features) -> Evicted {
    if features.contains(Features::EVENT_FORK) && !is_root() {
        skip("EVENT_FORK needs CAP_SYS_PTRACE");
    }
    let (uffd, park_uffd) = (uffd(features | Features::MOVE), uffd(Features::MOVE));
    let (map, park) = (Map::pages(4), Map::pages(4));
    park.advise(libc::MADV_DONTFORK);
    map.fill();
    uffd.register(map.addr, map.len, MANAGED).expect("register");
    park_uffd
        .register(park.addr, park.len, RegisterMode::WP)
        .expect("register");
    let done = mv(&park_uffd, park.addr, map.addr, PAGE);
    assert_eq!(done, ONE);
    Evicted {
        uffd: Arc::new(uffd),
        park_uffd,
        map,
        park,
    }
}

/// Runs `read` on the descriptor in a thread that is ready when this returns.
///
/// Ready: fork holds the locks of malloc while it waits for its event to be read (P10), so the
/// reader must have made its last allocation before, that of its own start included.
fn read_during_fork<T: Send + 'static>(
    uffd: &Arc<Uffd>,
    read: impl FnOnce(&Uffd) -> T + Send + 'static,
) -> Task<T> {
    let (uffd, ready) = (Arc::clone(uffd), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&ready);
    let reader = task(move || {
        flag.store(true, Ordering::SeqCst);
        read(&uffd)
    });
    while !ready.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    reader
}

/// Takes the child's descriptor from the next event, which must be a fork.
fn child_of(uffd: &Arc<Uffd>) -> Task<Uffd> {
    read_during_fork(uffd, |uffd| match next_event(uffd) {
        Event::Fork { child } => child,
        other => panic!("not a fork: {other:?}"),
    })
}

#[test]
fn p20_without_the_event_a_child_reads_zeros_for_evicted_memory() {
    fact(|| {
        let Evicted {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = evicted(Features::empty());
        let addr = map.addr;
        let child = fork(move || i32::from(is_zero(addr) && has_page(addr + PAGE, 1)));
        assert_eq!(child.status(), 1, "the trap that EVENT_FORK is for");
        assert!(is_quiet(&uffd));
        assert!(has_page(park.addr, 0));
    });
}

#[test]
fn p20_with_the_event_the_parent_serves_the_childs_faults() {
    fact(|| {
        let Evicted {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = evicted(Features::EVENT_FORK);
        let handler = child_of(&uffd);
        let addr = map.addr;
        let child = fork(move || {
            let intact = (0..4).all(|n| has_page(addr + n * PAGE, n as u64));
            i32::from(intact)
        });
        let child_uffd = handler.join();
        assert_eq!(next_fault(&child_uffd), (addr, false, false));
        let from = park.addr as *const u8;
        // SAFETY: a hole in the child's memory, filled with the bytes that belong there.
        let done = unsafe { child_uffd.copy(addr, from, PAGE, CopyMode::empty()) };
        assert_eq!(done, ONE);
        assert_eq!(child.status(), 1, "the child saw wrong bytes");
        assert_eq!(present(addr, PAGE), 0, "the parent's memory is as before");
        // Its memory is gone with the child.
        // SAFETY: nothing is left to be filled.
        let late = unsafe { child_uffd.copy(addr, from, PAGE, CopyMode::empty()) };
        assert_eq!(
            late,
            Err(Partial {
                done: 0,
                why: Why::Gone
            })
        );
    });
}

#[test]
fn p20_move_does_not_reach_into_another_process() {
    fact(|| {
        let Evicted {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = evicted(Features::EVENT_FORK);
        let handler = child_of(&uffd);
        let addr = map.addr;
        let child = fork(move || i32::from(has_page(addr, 0)));
        let child_uffd = handler.join();
        assert_eq!(next_fault(&child_uffd), (addr, false, false));
        // A hole in the child's memory; expected to be refused.
        let done = mv(&child_uffd, addr, park.addr, PAGE);
        assert_eq!(
            done,
            Err(Partial {
                done: 0,
                why: Why::Invalid
            })
        );
        let from = park.addr as *const u8;
        // SAFETY: as above, with the bytes that belong there.
        unsafe { child_uffd.copy(addr, from, PAGE, CopyMode::empty()) }.expect("copy");
        assert_eq!(child.status(), 1);
    });
}

#[test]
fn p20_write_protection_survives_fork_and_both_first_writes_are_reported() {
    fact(|| {
        let features = Features::EVENT_FORK | Features::PAGEFAULT_FLAG_WP;
        let Evicted {
            uffd,
            map,
            park: _park,
            park_uffd: _open,
        } = evicted(features);
        let page = map.page(2);
        uffd.write_protect(map.page(1), 3 * PAGE, ProtectMode::WP)
            .expect("protect");
        let handler = child_of(&uffd);
        let child = fork(move || {
            write_page(page, 77);
            i32::from(has_page(page, 77))
        });
        let child_uffd = handler.join();
        assert_eq!(next_fault(&child_uffd), (page, true, true));
        child_uffd
            .write_protect(page, PAGE, ProtectMode::empty())
            .expect("lift");
        assert_eq!(child.status(), 1);
        let write = task(move || write_page(page, 88));
        assert_eq!(next_fault(&uffd), (page, true, true));
        assert!(has_page(page, 2), "the child's write is not seen here");
        uffd.write_protect(page, PAGE, ProtectMode::empty())
            .expect("lift");
        write.join();
        assert!(has_page(page, 88));
        let protected =
            |n| common::mem::count(map.page(n), PAGE, Categories::PRESENT, Categories::WRITTEN);
        assert_eq!((protected(1), protected(3)), (PAGE, PAGE));
    });
}

#[test]
fn p20_dropping_the_childs_descriptor_turns_its_evicted_memory_into_zeros() {
    fact(|| {
        let Evicted {
            uffd,
            map,
            park: _park,
            park_uffd: _open,
        } = evicted(Features::EVENT_FORK);
        let handler = child_of(&uffd);
        let addr = map.addr;
        let child = fork(move || i32::from(is_zero(addr)));
        let child_uffd = handler.join();
        assert_eq!(next_fault(&child_uffd), (addr, false, false));
        drop(child_uffd);
        assert_eq!(child.status(), 1);
    });
}

#[test]
fn p20_a_message_nobody_takes_gives_its_descriptor_back() {
    fact(|| {
        let Evicted {
            uffd,
            map,
            park: _park,
            park_uffd: _open,
        } = evicted(Features::EVENT_FORK);
        let open = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        let before = open();
        let reader = read_during_fork(&uffd, |uffd| {
            let mut msgs = [deckle_uffd::Msg::empty()];
            assert!(uffd.wait(10_000).expect("poll"));
            assert_eq!(uffd.read_events(&mut msgs), Ok(1));
            let during = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
            drop(msgs);
            during
        });
        let addr = map.addr;
        let child = fork(move || i32::from(is_zero(addr)));
        assert_eq!(reader.join(), before + 1);
        assert_eq!(open(), before);
        assert_eq!(child.status(), 1);
    });
}

#[test]
fn p30_a_duplicate_elsewhere_keeps_faults_delivered_after_the_own_close() {
    fact(|| {
        let Evicted {
            uffd,
            map,
            park,
            park_uffd: _open,
        } = evicted(Features::empty());
        let second = map.page(1);
        // Both evicted pages are without their bytes now.
        let done = mv(&uffd, park.page(1), second, PAGE);
        assert!(
            done.is_err(),
            "the parking range belongs to its own descriptor"
        );
        let holder = {
            // Bytes that the holder can see: the parking range is not inherited.
            let copy = Map::pages(1);
            write_page(copy.addr, 0);
            let held = Arc::clone(&uffd);
            let addr = map.addr;
            fork(move || {
                assert_eq!(next_fault(&held), (addr, false, false));
                let from = copy.addr as *const u8;
                // SAFETY: a hole in the parent's memory and the bytes that belong there.
                let done = unsafe { held.copy(addr, from, PAGE, CopyMode::empty()) };
                assert_eq!(done, ONE);
                std::thread::sleep(std::time::Duration::from_secs(12));
                0
            })
        };
        let own = Arc::into_inner(uffd).expect("the only handle in this process");
        drop(own);
        // Served by the holder.
        assert!(has_page(map.addr, 0));
        common::mem::advise(map.addr, PAGE, libc::MADV_DONTNEED).expect("a hole again");
        let touch = common::process::reader(map.addr);
        assert!(
            touch.still_waits(),
            "still registered: nobody serves this one"
        );
        // The last descriptor goes: zeros, without an error.
        assert_eq!(holder.kill(), 128 + libc::SIGKILL);
        assert_eq!(touch.join(), 0);
        assert!(is_zero(map.addr) && peek(map.page(1)) != 0);
    });
}
