//! Cases about the task itself.

mod library;
pub mod support;

use deckle_task::{SpawnError, in_service_task, real_locks, spawn, spawn_thread};
use library::libraries_with_thread_local_data_may_come_later;
use std::cell::{Cell, RefCell};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use support::*;

pub type Case = (&'static str, fn());

macro_rules! cases {
    ($($name:ident)*) => { &[$((stringify!($name), $name as fn())),*] };
}
pub(crate) use cases;

pub const CASES: &[Case] = cases! {
    std_works_inside_the_task
    errno_is_separate
    the_program_stays_single_threaded
    waits_of_the_program_do_not_see_the_task
    libc_takes_real_locks_from_then_on
    p30_descriptors_of_the_task_survive_close_range_in_the_program
    descriptors_of_the_program_are_not_kept_open
    kept_descriptors_are_kept
    the_working_directory_is_separate
    p22_a_killed_task_is_noticed_and_the_program_lives
    p22_a_stack_overflow_kills_the_task_alone
    signals_of_the_program_do_not_reach_the_task
    libraries_with_thread_local_data_may_come_later
    threads_of_the_service_share_its_descriptors
    p20_a_child_of_fork_makes_its_own_task_in_the_same_area
    a_busy_area_is_refused_and_a_dead_one_used_again
    bad_settings_are_refused
};

thread_local! {
    static PLAIN: Cell<u32> = const { Cell::new(7) };
    static LAZY: RefCell<Vec<String>> = RefCell::new(vec![String::from("first")]);
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn set_errno(value: i32) {
    // SAFETY: the caller's own errno.
    unsafe { *libc::__errno_location() = value }
}

fn std_works_inside_the_task() {
    static SHARED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    PLAIN.set(8);
    LAZY.with_borrow_mut(|v| v.push("program".into()));
    let (from, to) = pipe();
    assert!(!in_service_task());
    let held = SHARED.lock().unwrap();
    let task = start(&[to], move || {
        assert!(in_service_task());
        assert_eq!(PLAIN.get(), 7);
        PLAIN.set(9);
        LAZY.with_borrow_mut(|v| {
            assert_eq!(v.len(), 1);
            v.push(format!("{}-{:?}", v[0], 1.5));
        });
        let map: std::collections::HashMap<u32, String> =
            (0..1000).map(|i| (i, i.to_string())).collect();
        assert!(map.iter().all(|(k, v)| v.parse() == Ok(*k)));
        assert!(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1))).is_err());
        assert_eq!("42".parse::<i32>(), Ok(42));
        // SAFETY: a string that ends in NUL; needs libc's character tables.
        let n = unsafe { libc::strtol(c" 42".as_ptr(), std::ptr::null_mut(), 10) };
        assert_eq!(n, 42);
        // The program holds the mutex until it has read this.
        assert!(SHARED.try_lock().is_err());
        write(to, "waiting");
        SHARED
            .lock()
            .unwrap()
            .push(LAZY.with_borrow(|v| v.join(",")));
        write(to, &format!("done {}", PLAIN.get()));
    });
    assert_eq!(read(from), "waiting");
    drop(held);
    assert_eq!(read(from), "done 9");
    assert!(task.wait_end(LONG));
    assert_eq!(*SHARED.lock().unwrap(), ["first,first-1.5"]);
    assert_eq!(PLAIN.get(), 8);
    assert_eq!(LAZY.with_borrow(Vec::len), 2);
}

fn errno_is_separate() {
    let step = Step::new();
    set_errno(libc::EXDEV);
    start(&[], || {
        assert_eq!(errno(), 0);
        set_errno(libc::EDOM);
        step.set(1);
        step.await_value(2);
        assert_eq!(errno(), libc::EDOM);
        step.set(3);
    });
    assert_eq!(errno(), libc::EXDEV);
    step.await_value(1);
    assert_eq!(errno(), libc::EXDEV);
    set_errno(libc::EILSEQ);
    step.set(2);
    step.await_value(3);
    assert_eq!(errno(), libc::EILSEQ);
}

fn the_program_stays_single_threaded() {
    let step = Step::new();
    let task = start(&[], || step.await_value(1));
    assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 1);
    // SAFETY: changes nothing; the kernel allows it only in a process of one thread.
    let alone = || unsafe { libc::unshare(libc::CLONE_THREAD) } == 0;
    assert!(alone());
    assert!(task.is_alive());
    // The check can fail: with a thread it does.
    std::thread::scope(|s| {
        s.spawn(|| assert!(!alone()));
    });
    step.set(1);
    assert!(task.wait_end(LONG));
}

fn waits_of_the_program_do_not_see_the_task() {
    let step = Step::new();
    let task = start(&[], || step.await_value(1));
    // SAFETY: asks for no status.
    let wait = || unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!((wait(), errno()), (-1, libc::ECHILD));
    step.set(1);
    assert!(task.wait_end(LONG));
    assert_eq!((wait(), errno()), (-1, libc::ECHILD));
    let mut tries = 0;
    while !task.reap() {
        tries += 1;
        assert!(tries < 1000);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(!task.reap());
}

unsafe extern "C" {
    static __libc_single_threaded: libc::c_char;
}

fn libc_takes_real_locks_from_then_on() {
    // SAFETY: a flag of libc.
    let single = || unsafe { (&raw const __libc_single_threaded).read_volatile() != 0 };
    assert!(single());
    assert!(real_locks());
    assert!(!single());
    assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 1);
    let child = fork(|| assert!(real_locks() && !single()));
    assert_eq!(wait_status(child), 0);
}

fn p30_descriptors_of_the_task_survive_close_range_in_the_program() {
    let (from, to) = pipe();
    let step = Step::new();
    start(&[from, to], move || {
        let (own_from, own_to) = pipe();
        step.set(1);
        step.await_value(2);
        write(own_to, "own");
        write(to, "kept");
        assert_eq!((read(own_from), read(from)), ("own".into(), "kept".into()));
        step.set(3);
    });
    step.await_value(1);
    // SAFETY: closes what this case does not use any more.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
    // Nothing of the task is in the program's table.
    assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), 4);
    step.set(2);
    step.await_value(3);
}

fn descriptors_of_the_program_are_not_kept_open() {
    let (from, to) = pipe();
    let step = Step::new();
    start(&[], move || {
        // SAFETY: asks for flags.
        let open = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
        assert!((0..1024).all(|fd| !open(fd)));
        step.await_value(1);
    });
    close(to);
    assert_eq!(
        read(from),
        "",
        "end of file, as nobody else holds the other end"
    );
    step.set(1);
}

fn kept_descriptors_are_kept() {
    let fds: Vec<i32> = (0..4).flat_map(|_| <[i32; 2]>::from(pipe())).collect();
    let keep = [fds[7], 0, fds[2], fds[3], fds[3]];
    let step = Step::new();
    start(&keep, move || {
        let open: Vec<i32> =
            // SAFETY: asks for flags.
            (0..1024).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1).collect();
        let mut wanted = keep.to_vec();
        wanted.sort();
        wanted.dedup();
        assert_eq!(open, wanted);
        step.set(1);
    });
    step.await_value(1);
}

fn the_working_directory_is_separate() {
    std::env::set_current_dir("/proc").unwrap();
    let step = Step::new();
    start(&[], || {
        assert_eq!(std::env::current_dir().unwrap().to_str(), Some("/"));
        std::env::set_current_dir("/dev").unwrap();
        step.set(1);
    });
    step.await_value(1);
    assert_eq!(std::env::current_dir().unwrap().to_str(), Some("/proc"));
}

fn pidfd_is_readable(pid: i32, timeout_ms: i32) -> bool {
    // SAFETY: makes a descriptor; one slot.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        assert!(fd >= 0);
        let mut slot = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let got = libc::poll(&mut slot, 1, timeout_ms);
        libc::close(fd);
        got == 1
    }
}

fn p22_a_killed_task_is_noticed_and_the_program_lives() {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let task = start(&[], || {
        loop {
            deckle_task::futex::wait(&NEVER, 0, None);
        }
    });
    assert!(!pidfd_is_readable(task.id(), 0));
    assert!(task.is_alive() && !task.wait_end(std::time::Duration::from_millis(1)));
    // SAFETY: a process this case has made.
    assert_eq!(unsafe { libc::kill(task.id(), libc::SIGKILL) }, 0);
    assert!(task.wait_end(LONG));
    assert!(pidfd_is_readable(task.id(), LONG.as_millis() as i32));
    assert_eq!(task.word().load(Ordering::SeqCst), 0);
}

fn p22_a_stack_overflow_kills_the_task_alone() {
    #[inline(never)]
    fn deeper(n: u64) -> u64 {
        let room = std::hint::black_box([n; 64]);
        if n == 0 {
            room[5]
        } else {
            deeper(n - 1) + room[3]
        }
    }
    let step = Step::new();
    let task = start(&[], || {
        deeper(std::hint::black_box(1 << 40));
        step.set(1);
    });
    assert!(task.wait_end(LONG));
    assert_eq!(step.get(), 0);
}

fn signals_of_the_program_do_not_reach_the_task() {
    static RAN_IN: AtomicU32 = AtomicU32::new(0);
    static RAN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: libc::c_int) {
        RAN.fetch_add(1, Ordering::SeqCst);
        if in_service_task() {
            RAN_IN.fetch_add(1, Ordering::SeqCst);
        }
    }
    for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGTSTP] {
        // SAFETY: the handler only counts.
        unsafe { libc::signal(signal, handler as *const () as usize) };
    }
    // SAFETY: a group of this case alone.
    assert_eq!(unsafe { libc::setpgid(0, 0) }, 0);
    let step = Step::new();
    let task = start(&[], || {
        step.await_value(1);
        step.set(2);
    });
    for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGTSTP] {
        // SAFETY: processes of this case.
        assert_eq!(unsafe { libc::kill(task.id(), signal) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(0, signal) }, 0);
    }
    step.set(1);
    step.await_value(2);
    assert_eq!(RAN.load(Ordering::SeqCst), 3, "once each in the program");
    assert_eq!(RAN_IN.load(Ordering::SeqCst), 0);
    // SAFETY: asks for the mask.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
        libc::sigismember(&mask, libc::SIGUSR1)
    };
    assert_eq!(mask, 0, "the program's mask is as before");
}

fn threads_of_the_service_share_its_descriptors() {
    let second = area();
    let third = area();
    let step = Step::new();
    let ends: &'static Mutex<(i32, i32)> = Box::leak(Box::new(Mutex::new((-1, -1))));
    let task = start(&[], move || {
        PLAIN.set(1);
        for (i, area) in [second, third].into_iter().enumerate() {
            let (entry, argument) = entry_of(move || {
                assert!(in_service_task());
                assert_eq!(PLAIN.get(), 7);
                PLAIN.set(100);
                step.await_value(1);
                if i == 0 {
                    write(ends.lock().unwrap().1, "hello");
                } else {
                    let from = ends.lock().unwrap().0;
                    assert_eq!(read(from), "hello");
                    step.set(2);
                }
            });
            // SAFETY: as in `start`.
            let thread = unsafe { spawn_thread(area, entry, argument) }.unwrap();
            assert!(thread.id() > 0);
        }
        // At high numbers, which the program does not use for something of its own.
        let (from, to) = pipe();
        // SAFETY: makes descriptors.
        let high = |fd| unsafe { libc::fcntl(fd, libc::F_DUPFD, 500) };
        *ends.lock().unwrap() = (high(from), high(to));
        assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 3);
        step.set(1);
        step.await_value(3);
        assert_eq!(PLAIN.get(), 1);
        step.set(4);
    });
    step.await_value(2);
    // SAFETY: asks for flags.
    let flags = unsafe { libc::fcntl(ends.lock().unwrap().0, libc::F_GETFD) };
    assert_eq!(flags, -1);
    assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 1);
    step.set(3);
    step.await_value(4);
    assert!(task.wait_end(LONG));
}

fn p20_a_child_of_fork_makes_its_own_task_in_the_same_area() {
    let (one, step) = (area(), Step::new());
    let work = |step: &'static Step, first| {
        move || {
            assert_eq!((PLAIN.get(), errno()), (7, 0));
            PLAIN.set(first);
            set_errno(1);
            step.set(first);
            step.await_value(50);
            assert_eq!(PLAIN.get(), first);
            step.set(60);
        }
    };
    let task = start_in(one, &[], work(step, 1));
    step.await_value(1);
    let child = fork(|| {
        step.set(0);
        // SAFETY: the child has made no task yet.
        unsafe { one.after_fork() };
        let task = start_in(one, &[], work(step, 2));
        step.await_value(2);
        step.set(50);
        step.await_value(60);
        assert!(task.wait_end(LONG));
    });
    assert_eq!(wait_status(child), 0);
    assert!(task.is_alive());
    assert_eq!(step.get(), 1);
    step.set(50);
    step.await_value(60);
}

fn a_busy_area_is_refused_and_a_dead_one_used_again() {
    let (one, step) = (area(), Step::new());
    let first = start_in(one, &[], || {
        PLAIN.set(1);
        LAZY.with_borrow_mut(Vec::clear);
        step.set(1);
        step.await_value(2);
    });
    step.await_value(1);
    let (entry, argument) = entry_of(|| ());
    let options = deckle_task::Options {
        name: c"second",
        keep: &[],
    };
    // SAFETY: as in `start`.
    let second = unsafe { spawn(one, &options, entry, argument) };
    assert_eq!(second.unwrap_err(), SpawnError::Busy { tid: first.id() });
    step.set(2);
    assert!(first.wait_end(LONG));
    start_in(one, &[], || {
        assert_eq!(PLAIN.get(), 7);
        assert_eq!(LAZY.with_borrow(Vec::len), 1);
        step.set(3);
    });
    step.await_value(3);
}

fn bad_settings_are_refused() {
    let one = area();
    for keep in [&[-1][..], &[0; 17][..]] {
        let (entry, argument) = entry_of(|| ());
        // SAFETY: as in `start`.
        let got = unsafe {
            spawn(
                one,
                &deckle_task::Options { name: c"x", keep },
                entry,
                argument,
            )
        };
        assert_eq!(got.unwrap_err(), SpawnError::Keep { limit: 16 });
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads and writes limits of this process.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    limit.rlim_cur = 1 << 30;
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    let refused = deckle_task::Area::new(1 << 30).unwrap_err();
    assert_eq!(
        refused,
        SpawnError::Refused {
            call: "mmap",
            errno: libc::ENOMEM
        }
    );
    assert!(refused.to_string().contains("mmap"));
}
