//! A store that fails on purpose, for tests of what uses a store.

pub mod disk;

use deckle_mm::{PAGE_SIZE, Slot, Store, StoreError, StoreStop};
use std::sync::{Mutex, PoisonError};

/// errno of a failing medium.
pub const EIO: i32 = 5;
/// errno of a full medium.
pub const ENOSPC: i32 = 28;

/// When pages fail, counted from the call that set it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Pages that go well first.
    pub after: u64,
    /// Pages that fail then.
    pub times: u64,
    /// With this.
    pub why: StoreStop,
}

#[derive(Default)]
struct Plans {
    put: Option<Plan>,
    get: Option<Plan>,
}

/// A store in front of `inner` that fails the pages a plan names and passes all others on.
/// The contract of [`Store`] holds: pages before the failing one are done.
pub struct Faulty<S: Store> {
    inner: S,
    plans: Mutex<Plans>,
}

impl<S: Store> Faulty<S> {
    /// A store without a plan: as good as `inner`.
    pub fn new(inner: S) -> Faulty<S> {
        Faulty {
            inner,
            plans: Mutex::default(),
        }
    }
    /// The store behind, for instance to flip bits in it.
    pub fn inner(&self) -> &S {
        &self.inner
    }
    /// Fails puts by this plan; `None` ends it.
    pub fn fail_put(&self, plan: Option<Plan>) {
        self.plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .put = plan;
    }
    /// Fails gets by this plan; `None` ends it.
    pub fn fail_get(&self, plan: Option<Plan>) {
        self.plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get = plan;
    }

    /// Takes `pages` of a plan: how many go well, and what happens then.
    fn take(
        &self,
        which: fn(&mut Plans) -> &mut Option<Plan>,
        pages: usize,
    ) -> (usize, Option<StoreStop>) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(plan) = which(&mut plans) else {
            return (pages, None);
        };
        if plan.times == 0 || plan.after >= pages as u64 {
            plan.after = plan.after.saturating_sub(pages as u64);
            return (pages, None);
        }
        let good = plan.after as usize;
        plan.after = 0;
        plan.times -= 1;
        (good, Some(plan.why))
    }
}

impl<S: Store> Store for Faulty<S> {
    fn accepts(&self) -> bool {
        self.inner.accepts()
    }
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        let (good, why) = self.take(|p| &mut p.put, pages.len() / PAGE_SIZE);
        match why {
            None => self.inner.put(first, pages),
            Some(why) => {
                self.inner.put(first, &pages[..good * PAGE_SIZE])?;
                Err(StoreError {
                    done: good as u32,
                    why,
                })
            }
        }
    }
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        let (good, why) = self.take(|p| &mut p.get, pages.len() / PAGE_SIZE);
        match why {
            None => self.inner.get(first, pages),
            Some(why) => {
                self.inner.get(first, &mut pages[..good * PAGE_SIZE])?;
                Err(StoreError {
                    done: good as u32,
                    why,
                })
            }
        }
    }
    fn free(&self, first: Slot, count: u32) {
        self.inner.free(first, count);
    }
    fn ram_bytes(&self) -> u64 {
        self.inner.ram_bytes()
    }
    fn is_shared(&self, slot: Slot) -> bool {
        self.inner.is_shared(slot)
    }
    fn compact(&self, budget: u64) -> u64 {
        self.inner.compact(budget)
    }
    fn stored_pages(&self) -> u64 {
        self.inner.stored_pages()
    }
}
