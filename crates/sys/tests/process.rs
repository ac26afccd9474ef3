//! Children.

use deckle_sys::process;
use deckle_sys::{Errno, pidfd, signal};
use std::process::Command;

#[test]
fn a_child_ends_as_it_is_told_and_is_waited_for_once() {
    let child = Command::new("sleep").arg("1000").spawn().unwrap().id();
    let by = pidfd::open(child).unwrap();
    assert_eq!(process::wait(child as i32, libc::WNOHANG), Ok(None));
    assert!(!pidfd::has_ended(&by));
    pidfd::kill(&by, libc::SIGTERM).unwrap();
    let (raw, _) = process::wait_usage(child as i32).unwrap();
    assert_eq!(
        (libc::WIFSIGNALED(raw), libc::WTERMSIG(raw)),
        (true, libc::SIGTERM)
    );
    assert!(pidfd::has_ended(&by));
    let gone = Err(Errno(libc::ESRCH));
    assert_eq!(pidfd::kill(&by, 0), gone);
    assert_eq!(signal::send(child as i32, 0), gone);
    assert_eq!(process::wait(child as i32, 0), Err(Errno(libc::ECHILD)));
}

#[test]
fn a_fork_with_other_threads_is_refused_and_one_that_stays_small_is_not() {
    // The test program has one thread for each test.
    assert_eq!(process::fork_alone(), Err(Errno(libc::EBUSY)));
    let mut here = 1;
    let mut work = || {
        here += 1;
        here == 2
    };
    // SAFETY: no thread is made in there.
    assert_eq!(unsafe { process::in_child(&mut work) }, Ok(0));
    // As a panic leaves, which would wait here for whoever said something when the fork came.
    // SAFETY: as above.
    let raw =
        unsafe { process::in_child(|| std::panic::resume_unwind(Box::new("no way to leave"))) };
    assert_eq!(libc::WEXITSTATUS(raw.unwrap()), 1);
    assert_eq!(here, 1);
}
