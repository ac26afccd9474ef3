//! A lock of one word and futex calls: no thread-local state, no registration, no C library.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use deckle_sys::futex;

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
        while self.word.swap(AWAITED, Acquire) != FREE {
            futex::wait(&self.word, AWAITED, None);
        }
    }

    /// Gives back what [`Lock::acquire`] took: by its taker, or in a child of fork by the copy
    /// of it.
    pub fn release(&self) {
        if self.word.swap(FREE, Release) == AWAITED {
            futex::wake(&self.word, 1);
        }
    }
    /// Gives it back and ends the calling thread, whose stack may be another's from then on.
    pub fn release_and_exit(&self) -> ! {
        let word = self.word.as_ptr();
        // SAFETY: after the word is free nothing of this stack is touched; who waits is woken by
        // the call, or is not there.
        unsafe {
            core::arch::asm!(
                "xchg dword ptr [rdi], eax",
                "mov eax, {futex}",
                "syscall",
                "mov eax, {exit}",
                "xor edi, edi",
                "syscall",
                "ud2",
                futex = const libc::SYS_futex,
                exit = const libc::SYS_exit,
                in("rdi") word,
                in("eax") FREE,
                in("esi") libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                in("edx") 1,
                in("r10") 0,
                options(noreturn)
            );
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
