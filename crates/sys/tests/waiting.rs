//! Futexes, descriptors and what is waited for.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::time::Duration;
use deckle_sys::epoll::{AT_ONCE, Epoll};
use deckle_sys::poll::{is_ready, poll, to_read};
use deckle_sys::{Fd, futex};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Instant;

#[test]
fn who_waits_for_a_word_is_woken() {
    let (word, awake) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while word.load(Acquire) == 0 {
                assert!(futex::wait(&word, 0, Some(Duration::from_secs(60))));
            }
            awake.store(1, Release);
            futex::wake(&awake, 1);
        });
        word.store(1, Release);
        futex::wake(&word, 1);
        while awake.load(Acquire) == 0 {
            futex::wait(&awake, 0, None);
        }
    });
}

#[test]
fn a_wait_ends_at_once_for_another_value_and_after_its_time() {
    let (word, start) = (AtomicU32::new(3), Instant::now());
    assert!(futex::wait(&word, 2, None));
    while futex::wait(&word, 3, Some(Duration::from_millis(20))) {}
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_descriptor_is_closed_once_by_its_last_owner() {
    let (read, mut write) = std::io::pipe().unwrap();
    let read = Fd::from(OwnedFd::from(read));
    assert!(!is_ready(read.raw(), Duration::ZERO));
    write.write_all(b"x").unwrap();
    assert_eq!(poll(&mut [to_read(read.raw())], -1), Ok(1));
    // Given to the standard library and back: open all the while.
    let read = Fd::from(OwnedFd::from(read));
    assert!(is_ready(read.raw(), Duration::ZERO));
    drop(read);
    // Nobody can read any more: so it was closed, and by this owner.
    let broken = write.write_all(b"x").unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::BrokenPipe);
}

/// The keys of what is ready, in order.
fn keys(epoll: &Epoll) -> Vec<u64> {
    let mut keys = Vec::new();
    epoll.ready(&mut keys);
    keys.sort_unstable();
    keys
}

#[test]
fn of_many_descriptors_those_that_are_ready_are_told_until_they_are_read_or_removed() {
    let epoll = Epoll::new().unwrap();
    let pipes: Vec<_> = (0..AT_ONCE as u64 + 9)
        .map(|key| {
            let (read, write) = std::io::pipe().unwrap();
            let read = Fd::from(OwnedFd::from(read));
            epoll.add(&read, key).unwrap();
            (read, write)
        })
        .collect();
    assert_eq!(keys(&epoll), []);
    assert!(!is_ready(epoll.raw(), Duration::ZERO));
    for key in [7, 100] {
        (&pipes[key].1).write_all(b"x").unwrap();
    }
    assert!(is_ready(epoll.raw(), Duration::ZERO));
    assert_eq!(keys(&epoll), [7, 100]);
    assert_eq!(keys(&epoll), [7, 100]);
    epoll.remove(&pipes[7].0);
    epoll.remove(&pipes[7].0);
    assert_eq!(keys(&epoll), [100]);
    // All, in two parts, of which none is told for ever in the other's place.
    (pipes.iter()).for_each(|p| (&p.1).write_all(b"x").unwrap());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let some = keys(&epoll);
        assert_eq!(some.len(), AT_ONCE);
        seen.extend(some);
    }
    assert_eq!(seen.len(), pipes.len() - 1);
}
