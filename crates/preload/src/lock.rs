//! A lock for both kinds of callers: threads of the program and service tasks.
//!
//! One word and futex calls: no thread-local state, no registration, no libc. Nothing of this
//! library is taken while such a lock is held, and its holder never touches managed memory.

use crate::sys;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32};
use core::time::Duration;
use deckle_task::futex;

/// How long a service task waits before it looks whether the holder can still come.
const PATIENCE: Duration = Duration::from_secs(1);

/// A pidfd of the program, in the service's descriptor table; -1 before there is one.
static PROGRAM: AtomicI32 = AtomicI32::new(-1);

/// Tells waiting service tasks by which descriptor the program's end is seen.
pub fn watch_program(pidfd: i32) {
    PROGRAM.store(pidfd, Relaxed);
}

/// A program that was killed inside of one of our calls never gives its lock back: a service
/// task that waits for it would stay for ever, when all there is left to do is to end.
fn end_with_program() {
    let mut entry = libc::pollfd {
        fd: PROGRAM.load(Relaxed),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry, no waiting; a negative descriptor is ignored.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    if ready == 1 && entry.revents & libc::POLLIN != 0 {
        // SAFETY: ends the service, whose program is dead.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]) };
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may be asleep.
const AWAITED: u32 = 2;

/// A value behind one word.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one caller at the value at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to the value; given back when dropped.
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    /// Takes the lock without a guard: before a fork, for the child to find the value whole.
    pub fn acquire(&self) {
        let quick = |_: &u32| {
            self.word
                .compare_exchange_weak(FREE, HELD, Acquire, Relaxed)
                .is_ok()
        };
        if (0..64).any(|turn| quick(&turn)) {
            return;
        }
        let service = deckle_task::in_service_task();
        while self.word.swap(AWAITED, Acquire) != FREE {
            futex::wait(&self.word, AWAITED, service.then_some(PATIENCE));
            if service && self.word.load(Relaxed) != FREE {
                end_with_program();
            }
        }
    }

    /// Gives back what [`Lock::acquire`] took: by its taker, or in a child of fork by the copy
    /// of it.
    pub fn release(&self) {
        if self.word.swap(FREE, Release) == AWAITED {
            futex::wake(&self.word, 1);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only way to the value while the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
