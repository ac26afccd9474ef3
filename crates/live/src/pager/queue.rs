//! Faults that a handler may not serve itself, on their way to a worker.
//!
//! A fixed ring: pushing never allocates. A full ring is no loss, since a fault that is woken
//! unserved is simply taken again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use deckle_mm::Vpn;

const ROOM: usize = 1024;

/// A fault to be served: the page, and whether it is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The page.
    pub page: Vpn,
    /// A write, or a read.
    pub write: bool,
}

struct Inner {
    faults: VecDeque<Fault>,
    closed: bool,
}

/// The ring.
pub struct Queue {
    inner: Mutex<Inner>,
    more: Condvar,
}

impl Queue {
    /// An empty ring.
    pub fn new() -> Queue {
        Queue {
            inner: Mutex::new(Inner {
                faults: VecDeque::with_capacity(ROOM),
                closed: false,
            }),
            more: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What the lock guards is whole between any two statements.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a fault; false if the ring is full.
    pub fn push(&self, fault: Fault) -> bool {
        let mut inner = self.lock();
        if inner.faults.contains(&fault) {
            return true;
        }
        if inner.faults.len() == ROOM {
            return false;
        }
        inner.faults.push_back(fault);
        drop(inner);
        self.more.notify_one();
        true
    }

    /// Waits until there is a fault, which another may take first; false after
    /// [`close`](Self::close).
    pub fn wait(&self) -> bool {
        let mut inner = self.lock();
        while inner.faults.is_empty() && !inner.closed {
            inner = self
                .more
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        !inner.closed
    }

    /// Takes the oldest fault, if there is one.
    pub fn pop(&self) -> Option<Fault> {
        self.lock().faults.pop_front()
    }

    /// Calls `see` with each fault, which stays. Nothing is pushed meanwhile.
    pub fn each(&self, see: impl FnMut(&Fault)) {
        self.lock().faults.iter().for_each(see);
    }

    /// Sends all workers home.
    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_refuses_and_forgets_nothing() {
        let queue = Queue::new();
        let fault = |n| Fault {
            page: Vpn(n),
            write: n % 2 == 0,
        };
        for n in 0..ROOM as u64 {
            assert!(queue.push(fault(n)));
        }
        assert!(queue.push(fault(5)), "already there");
        assert!(!queue.push(fault(ROOM as u64)));
        for n in 0..ROOM as u64 {
            assert!(queue.wait());
            assert_eq!(queue.pop(), Some(fault(n)));
        }
        assert_eq!(queue.pop(), None);
        queue.close();
        assert!(!queue.wait());
    }
}
