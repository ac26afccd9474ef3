//! The core's only lock: a mutex on one word that waits through the [`Machine`].
//!
//! Unsafe code: a lock hands out `&mut T` from `&Lock<T>`; that needs an `UnsafeCell`. The
//! exclusion that makes it sound is in this file and nowhere else.
//!
//! The word has three values (the scheme of "Futexes Are Tricky", Drepper 2011, mutex 2):
//! free, taken, and taken while somebody may wait. Only a release of the third value costs a
//! wake-up; a waiter that gets the lock leaves it in the third value, because it cannot know
//! whether others wait still.
#![allow(unsafe_code)]

use crate::machine::{LockClass, Machine, Site};
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WAITED_FOR: u32 = 2;
/// Looks at a taken lock before parking: about the length of the shortest critical section.
const SPINS: u32 = 100;

/// A mutex. Not fair, not recursive; a second `lock` by its holder waits for ever.
pub struct Lock<T> {
    word: AtomicU32,
    class: LockClass,
    at: u64,
    value: UnsafeCell<T>,
}

// SAFETY: a shared lock gives out the value to one guard at a time, so sharing the lock moves
// `T` from thread to thread but never shares it: `T: Send` is enough.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock of `class`; `at` orders locks of one class (a block's number, else 0).
    pub const fn new(class: LockClass, at: u64, value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            class,
            at,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, waiting as long as needed. Calls `preempt(Site::Lock(class))` first.
    pub fn lock<'a, M: Machine>(&'a self, m: &'a M) -> Guard<'a, T, M> {
        m.preempt(Site::Lock(self.class));
        if !self.try_take() {
            self.wait(m);
        }
        self.guard(m)
    }

    /// Takes the lock if it is free; never waits.
    pub fn try_lock<'a, M: Machine>(&'a self, m: &'a M) -> Option<Guard<'a, T, M>> {
        self.try_take().then(|| self.guard(m))
    }

    /// The value, without locking: nobody else can have the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Whether somebody holds the lock now; only a hint.
    pub fn is_locked(&self) -> bool {
        self.word.load(Relaxed) != FREE
    }

    fn try_take(&self) -> bool {
        self.word
            .compare_exchange(FREE, TAKEN, Acquire, Relaxed)
            .is_ok()
    }

    #[cold]
    fn wait<M: Machine>(&self, m: &M) {
        for _ in 0..SPINS {
            match self.word.load(Relaxed) {
                FREE if self.try_take() => return,
                WAITED_FOR => break,
                _ => core::hint::spin_loop(),
            }
        }
        // From here on the word says that somebody waits, also when this swap takes the lock:
        // others may be parked, and only the word remembers them.
        while self.word.swap(WAITED_FOR, Acquire) != FREE {
            m.park(&self.word, WAITED_FOR);
        }
    }

    fn guard<'a, M: Machine>(&'a self, m: &'a M) -> Guard<'a, T, M> {
        m.lock_taken(self.class, self.at);
        Guard {
            lock: self,
            machine: m,
            not_send: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lock { class, at, .. } = self;
        write!(f, "Lock({class:?} {at:#x}")?;
        f.write_str(if self.is_locked() { ", taken)" } else { ")" })
    }
}

/// The right to use a locked value; dropping it releases the lock.
///
/// Stays on the thread that took it: the machine counts held locks by CPU.
#[must_use = "a lock is released when its guard is dropped"]
pub struct Guard<'a, T, M: Machine> {
    lock: &'a Lock<T>,
    machine: &'a M,
    not_send: PhantomData<*mut ()>,
}

impl<T, M: Machine> Deref for Guard<'_, T, M> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard exists, so the word is not FREE since the guard was made and no
        // other guard of this lock exists; `&mut T` comes from this guard only, by `&mut self`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, M: Machine> DerefMut for Guard<'_, T, M> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` excludes other references made by this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, M: Machine> Drop for Guard<'_, T, M> {
    fn drop(&mut self) {
        let Lock {
            word, class, at, ..
        } = self.lock;
        // Before the word changes: afterwards another CPU may report the same lock as taken.
        self.machine.lock_released(*class, *at);
        if word.swap(FREE, Release) == WAITED_FOR {
            self.machine.unpark(word, 1);
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A machine of real threads for the core's tests.

    use crate::machine::{LockClass, Machine, Site, Work};
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
    use std::cell::RefCell;
    use std::sync::{Condvar, Mutex};
    use std::vec::Vec;

    std::thread_local! {
        static HELD: RefCell<Vec<(LockClass, u64)>> = const { RefCell::new(Vec::new()) };
    }

    /// Parks exactly as a futex does, and checks the lock order.
    #[derive(Default)]
    pub(crate) struct Threads {
        /// Who waits: address of the word, ticket.
        queue: Mutex<Vec<(usize, u64)>>,
        woken: Condvar,
        /// Calls of `park` that did wait.
        pub parked: AtomicU64,
        /// Calls of `preempt`.
        pub preempts: AtomicU64,
    }

    impl Machine for Threads {
        fn this_cpu(&self) -> usize {
            0
        }
        fn nr_cpus(&self) -> usize {
            1
        }
        fn park(&self, word: &AtomicU32, expected: u32) {
            let mut queue = self.queue.lock().unwrap();
            if word.load(SeqCst) != expected {
                return;
            }
            let ticket = self.parked.fetch_add(1, Relaxed);
            queue.push((word.as_ptr() as usize, ticket));
            while queue.iter().any(|w| w.1 == ticket) {
                queue = self.woken.wait(queue).unwrap();
            }
        }
        fn unpark(&self, word: &AtomicU32, count: u32) {
            let mut queue = self.queue.lock().unwrap();
            // No more than `count`, so that a lost wake-up shows as a hang.
            for _ in 0..count {
                let Some(i) = queue.iter().position(|w| w.0 == word.as_ptr() as usize) else {
                    break;
                };
                queue.remove(i);
            }
            self.woken.notify_all();
        }
        fn kick(&self, _work: Work) {}
        fn preempt(&self, _site: Site) {
            self.preempts.fetch_add(1, Relaxed);
        }
        fn lock_taken(&self, class: LockClass, at: u64) {
            HELD.with_borrow_mut(|held| {
                if let Some(&last) = held.last() {
                    let same_block = class == LockClass::Block && last.0 == class && last.1 < at;
                    assert!(
                        last.0 < class || same_block,
                        "took {class:?} {at:#x} after {last:?}"
                    );
                }
                held.push((class, at));
            });
        }
        fn lock_released(&self, class: LockClass, at: u64) {
            HELD.with_borrow_mut(|held| {
                let i = held.iter().rposition(|h| *h == (class, at));
                held.remove(i.expect("released a lock that is not held"));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Threads;
    use super::*;
    use core::sync::atomic::Ordering::SeqCst;
    use std::sync::Arc;
    use std::thread;
    use std::vec::Vec;

    #[test]
    fn threads_never_share_the_value_and_no_wakeup_is_lost() {
        const THREADS: u64 = 6;
        const ROUNDS: u64 = 3000;
        let machine = Arc::new(Threads::default());
        // Two words that a torn critical section would make differ.
        let lock = Arc::new(Lock::new(LockClass::Lru, 0, (0u64, 0u64)));
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let (machine, lock) = (machine.clone(), lock.clone());
                thread::spawn(move || {
                    for i in 0..ROUNDS {
                        let mut v = lock.lock(&*machine);
                        v.0 += 1;
                        // Let others run into the taken lock, so that they park.
                        if (i + t) % 7 == 0 {
                            thread::yield_now();
                        }
                        v.1 += 1;
                        assert_eq!(v.0, v.1);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(*lock.lock(&*machine), (THREADS * ROUNDS, THREADS * ROUNDS));
        assert!(machine.parked.load(SeqCst) > 0, "the slow path never ran");
        assert!(machine.preempts.load(SeqCst) > THREADS * ROUNDS);
        assert!(!lock.is_locked());
    }

    #[test]
    fn try_lock_fails_while_taken_and_leaves_no_trace() {
        let machine = Threads::default();
        let lock = Lock::new(LockClass::Zone, 3, 7);
        let held = lock.lock(&machine);
        assert!(lock.try_lock(&machine).is_none());
        assert_eq!(*held, 7);
        drop(held);
        *lock.try_lock(&machine).expect("free") = 8;
        assert_eq!(*lock.lock(&machine), 8);
    }

    /// Every interleaving of the word's transitions for three threads that lock and unlock
    /// once each: two never hold the lock together, and none stays parked at the end.
    #[test]
    fn every_interleaving_of_the_word_is_exclusive_and_wakes_all() {
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        enum At {
            Fast,
            Swap,
            Park,
            Parked,
            Held,
            Wake,
            Done,
        }
        type State = (u32, [At; 3]);
        fn steps((word, at): State, i: usize) -> Vec<State> {
            let to = |word: u32, a: At| {
                let mut at = at;
                at[i] = a;
                (word, at)
            };
            match at[i] {
                // The fast path, then the loop of `wait`; spinning only repeats `Fast`.
                At::Fast if word == FREE => std::vec![to(TAKEN, At::Held)],
                At::Fast => std::vec![to(word, At::Swap)],
                At::Swap if word == FREE => std::vec![to(WAITED_FOR, At::Held)],
                At::Swap => std::vec![to(WAITED_FOR, At::Park)],
                At::Park if word == WAITED_FOR => std::vec![to(word, At::Parked)],
                At::Park => std::vec![to(word, At::Swap)],
                At::Parked | At::Done => Vec::new(),
                At::Held if word == WAITED_FOR => std::vec![to(FREE, At::Wake)],
                At::Held => std::vec![to(FREE, At::Done)],
                // Wakes any one of those parked, or nobody.
                At::Wake => {
                    let done = to(word, At::Done);
                    let mut next: Vec<State> = (0..3)
                        .filter(|&k| at[k] == At::Parked)
                        .map(|k| {
                            let mut woken = done;
                            woken.1[k] = At::Swap;
                            woken
                        })
                        .collect();
                    if next.is_empty() {
                        next.push(done);
                    }
                    next
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        let mut todo = std::vec![(FREE, [At::Fast; 3])];
        while let Some(state) = todo.pop() {
            if !seen.insert(state) {
                continue;
            }
            assert!(state.1.iter().filter(|a| **a == At::Held).count() <= 1);
            let next: Vec<State> = (0..3).flat_map(|i| steps(state, i)).collect();
            if next.is_empty() {
                assert!(state.1.iter().all(|a| *a == At::Done), "somebody sleeps on");
            }
            todo.extend(next);
        }
        assert!(seen.len() > 100);
    }
}
