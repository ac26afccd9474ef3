//! Faults that a handler may not serve itself, on their way to a worker.
//!
//! A fixed ring: pushing never allocates. A full ring is no loss, since a fault that is woken
//! unserved is simply taken again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deckle_mm::Vpn;

const ROOM: usize = 1024;

/// A fault to be served: the page, and whether it is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The page.
    pub page: Vpn,
    /// A write, or a read.
    pub write: bool,
    /// The page was not there; else it was write-protected.
    pub missing: bool,
}

/// What became of a fault that was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It is in the ring; `true`: for as many as are there nobody waits.
    New(bool),
    /// It was there already.
    There,
    /// The ring is full.
    Full,
}

struct Inner {
    faults: VecDeque<Fault>,
    /// Faults that wait for their time.
    later: Vec<(Instant, Fault)>,
    /// Those of `faults` whose time has come.
    late: Vec<Fault>,
    /// Workers that wait.
    waiting: usize,
    closed: bool,
}

/// What came of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// There is a fault, which another may take first.
    Fault,
    /// Nothing came in that time.
    Idle,
    /// There will be none any more.
    Closed,
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
                later: Vec::with_capacity(ROOM),
                late: Vec::with_capacity(ROOM),
                waiting: 0,
                closed: false,
            }),
            more: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What the lock guards is whole between any two statements.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a fault.
    pub fn push(&self, fault: Fault) -> Pushed {
        let mut inner = self.lock();
        let later = inner.later.iter().any(|(_, f)| *f == fault);
        if later || inner.faults.contains(&fault) {
            return Pushed::There;
        }
        if inner.faults.len() + inner.later.len() >= ROOM {
            return Pushed::Full;
        }
        inner.faults.push_back(fault);
        let few = inner.faults.len() > inner.waiting;
        drop(inner);
        self.more.notify_one();
        Pushed::New(few)
    }

    /// Whether there are faults that can be served now.
    pub fn has_now(&self) -> bool {
        !self.lock().faults.is_empty()
    }

    /// Whether there are faults, of now or of later.
    pub fn has_some(&self) -> bool {
        let inner = self.lock();
        !(inner.faults.is_empty() && inner.later.is_empty())
    }

    /// Takes a fault that was just popped back, for so long.
    pub fn postpone(&self, fault: Fault, time: Duration) {
        self.lock().later.push((Instant::now() + time, fault));
        // Somebody who sleeps without end has to look at the clock now.
        self.more.notify_one();
    }

    /// Waits until there is a fault, for `idle` at most if there is none of later either.
    pub fn wait(&self, idle: Option<Duration>) -> Waited {
        let end = idle.map(|idle| Instant::now() + idle);
        let mut inner = self.lock();
        loop {
            inner.call_late();
            if inner.closed {
                return Waited::Closed;
            }
            if !inner.faults.is_empty() {
                return Waited::Fault;
            }
            let next = inner.later.iter().map(|(at, _)| *at).min();
            if next.is_none() && end.is_some_and(|end| end <= Instant::now()) {
                return Waited::Idle;
            }
            inner.waiting += 1;
            inner = match next.or(end) {
                None => self.more.wait(inner),
                Some(at) => {
                    let time = at.saturating_duration_since(Instant::now());
                    let woken = self.more.wait_timeout(inner, time);
                    woken.map(|(inner, _)| inner).map_err(|e| {
                        let (inner, _) = e.into_inner();
                        PoisonError::new(inner)
                    })
                }
            }
            .unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
    }

    /// Takes the oldest fault, if there is one, and whether it was postponed before.
    pub fn pop(&self) -> Option<(Fault, bool)> {
        let mut inner = self.lock();
        let fault = inner.faults.pop_front()?;
        let late = inner.late.iter().position(|f| *f == fault);
        late.map(|at| inner.late.swap_remove(at));
        Some((fault, late.is_some()))
    }

    /// Sends all workers home.
    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }
}

impl Inner {
    /// Faults whose time has come are served next.
    fn call_late(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, fault) = self.later.swap_remove(at);
            self.faults.push_back(fault);
            self.late.push(fault);
        }
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
            missing: true,
        };
        for n in 0..ROOM as u64 {
            assert_eq!(queue.push(fault(n)), Pushed::New(true));
        }
        assert_eq!(queue.push(fault(5)), Pushed::There);
        assert_eq!(queue.push(fault(ROOM as u64)), Pushed::Full);
        for n in 0..ROOM as u64 {
            assert_eq!(queue.wait(None), Waited::Fault);
            assert_eq!(queue.pop(), Some((fault(n), false)));
        }
        assert_eq!(queue.pop(), None);
        // One that is postponed comes back, once, and is known by it.
        queue.postpone(fault(3), Duration::from_millis(1));
        assert_eq!((queue.push(fault(3)), queue.pop()), (Pushed::There, None));
        assert_eq!(queue.wait(None), Waited::Fault);
        assert_eq!(queue.pop(), Some((fault(3), true)));
        assert_eq!(queue.push(fault(3)), Pushed::New(true));
        assert_eq!(queue.pop(), Some((fault(3), false)));
        assert_eq!(queue.wait(Some(Duration::from_millis(1))), Waited::Idle);
        queue.close();
        assert_eq!(queue.wait(None), Waited::Closed);
    }
}
