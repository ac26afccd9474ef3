//! Scratch memory that calls borrow, so that the hot paths allocate nothing.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most items that wait idle; more CPUs than that at once allocate and free.
const MAX_IDLE: usize = 64;

/// Something a pool holds.
pub(crate) trait Scratch {
    /// Bytes it uses now; may grow with use.
    fn bytes(&self) -> usize;
}

/// Items of one kind: as many as there were calls at once, up to a limit.
pub(crate) struct Pool<T: Scratch> {
    state: Mutex<State<T>>,
    returned: Condvar,
}

struct State<T> {
    idle: Vec<Item<T>>,
    /// Items there are, idle and lent.
    made: usize,
    /// Bytes of all items, lent ones as of the time they were lent.
    bytes: usize,
    /// Callers that wait for an item.
    waiting: usize,
}

struct Item<T> {
    scratch: Box<T>,
    /// Bytes of it counted in the state.
    counted: usize,
}

impl<T: Scratch> Pool<T> {
    pub(crate) fn new() -> Pool<T> {
        let state = State {
            idle: Vec::new(),
            made: 0,
            bytes: 0,
            waiting: 0,
        };
        Pool {
            state: Mutex::new(state),
            returned: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends an item: an idle one, else a new one, else (no memory) the next one returned.
    /// `None` only when there is no item at all and none can be made.
    pub(crate) fn lend(&self, make: impl FnOnce() -> Option<Box<T>>) -> Option<Lent<'_, T>> {
        let mut state = self.lock();
        if let Some(item) = state.idle.pop() {
            return Some(Lent {
                pool: self,
                item: Some(item),
            });
        }
        // Room to give it back, reserved now: returning must not fail.
        let all = state.made + 1;
        let room = state.idle.try_reserve(all).is_ok();
        let made = if room { make() } else { None };
        if let Some(scratch) = made {
            let counted = scratch.bytes();
            state.made += 1;
            state.bytes += counted;
            return Some(Lent {
                pool: self,
                item: Some(Item { scratch, counted }),
            });
        }
        while state.made > 0 {
            if let Some(item) = state.idle.pop() {
                return Some(Lent {
                    pool: self,
                    item: Some(item),
                });
            }
            state.waiting += 1;
            state = self
                .returned
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        None
    }

    /// Whether there is at least one item, made now if need be. An item once made stays, so
    /// that every later `lend` succeeds.
    pub(crate) fn ensure(&self, make: impl FnOnce() -> Option<Box<T>>) -> bool {
        self.lock().made > 0 || self.lend(make).is_some()
    }

    /// Bytes of all items.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.lock();
        (state.bytes + state.idle.capacity() * size_of::<Item<T>>()) as u64
    }
}

/// An item lent by a pool; goes back when dropped.
pub(crate) struct Lent<'a, T: Scratch> {
    pool: &'a Pool<T>,
    /// None only during drop.
    item: Option<Item<T>>,
}

impl<T: Scratch> Deref for Lent<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.item {
            Some(item) => &item.scratch,
            None => unreachable!("lent items are taken out by drop only"),
        }
    }
}

impl<T: Scratch> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.item {
            Some(item) => &mut item.scratch,
            None => unreachable!("lent items are taken out by drop only"),
        }
    }
}

impl<T: Scratch> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let Some(mut item) = self.item.take() else {
            return;
        };
        let mut state = self.pool.lock();
        state.bytes -= item.counted;
        if state.idle.len() < MAX_IDLE && state.idle.len() < state.idle.capacity() {
            item.counted = item.scratch.bytes();
            state.bytes += item.counted;
            state.idle.push(item);
            // To wake nobody costs a system call, too.
            let waited_for = state.waiting > 0;
            drop(state);
            if waited_for {
                self.pool.returned.notify_one();
            }
        } else {
            state.made -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ten;
    impl Scratch for Ten {
        fn bytes(&self) -> usize {
            10
        }
    }

    #[test]
    fn items_are_reused_and_counted() {
        let pool = Pool::new();
        assert!(pool.lend(|| None::<Box<Ten>>).is_none());
        let a = pool.lend(|| Some(Box::new(Ten)));
        let b = pool.lend(|| Some(Box::new(Ten)));
        assert_eq!(pool.lock().bytes, 20);
        drop((a, b));
        assert!(pool.lend(|| panic!("one is idle")).is_some());
        let state = pool.lock();
        assert_eq!((state.made, state.bytes), (2, 20));
    }

    #[test]
    fn without_memory_the_next_returned_item_is_lent() {
        let pool = Pool::new();
        let only = pool.lend(|| Some(Box::new(Ten)));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| pool.lend(|| None).is_some());
            drop(only);
            assert!(waiter.join().unwrap());
        });
    }
}
