//! A pager served by threads of the process: for programs that use the library.

use std::sync::Arc;
use std::thread::JoinHandle;

use deckle_mm::{Charge, MapError, Stats, Store, TunableError, Tunables};

use super::{Pager, PagerError, Region};

/// A pager and the threads that serve it; they end when the last handle and the last
/// [`Region`] are gone.
pub struct Service<C: Charge + 'static, S: Store + 'static> {
    threads: Arc<Threads<C, S>>,
}

pub(super) struct Threads<C: Charge + 'static, S: Store + 'static> {
    pub(super) pager: Arc<Pager<C, S>>,
    handles: Vec<JoinHandle<()>>,
}

impl<C: Charge + 'static, S: Store + 'static> Clone for Service<C, S> {
    fn clone(&self) -> Self {
        Service {
            threads: self.threads.clone(),
        }
    }
}

/// One of the pager's loops, and its number.
type Loop<C, S> = fn(&Pager<C, S>, usize);

/// Ends the process if a loop panics: without it, threads would wait for ever.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("deckle: a thread that serves memory has panicked; aborted");
            std::process::abort();
        }
    }
}

impl<C: Charge + 'static, S: Store + 'static> Service<C, S> {
    /// Starts the loops: as many handlers as there should be, a worker for each CPU up to 2, one
    /// thread for background work and one that fills the nursery.
    ///
    /// # Errors
    /// [`PagerError::Thread`].
    pub fn start(pager: Pager<C, S>) -> Result<Service<C, S>, PagerError> {
        use deckle_mm::Machine;
        let pager = Arc::new(pager);
        let several = pager.mm().machine().nr_cpus().min(2);
        let mut plan: Vec<(&str, Loop<C, S>, usize)> = Vec::new();
        for number in 0..Pager::<C, S>::handlers() {
            plan.push(("deckle-fault", Pager::handler_loop, number));
        }
        for number in 0..several {
            plan.push(("deckle-work", Pager::worker_loop, number));
        }
        plan.push(("deckle-kswapd", |pager, _| pager.background_loop(), 0));
        plan.push(("deckle-fill", |pager, _| pager.filler_loop(), 0));
        let mut threads = Threads {
            pager: pager.clone(),
            handles: Vec::new(),
        };
        for (name, body, number) in plan {
            let pager = pager.clone();
            let handle = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    let _abort = Abort;
                    body(&pager, number);
                })
                .map_err(PagerError::Thread)?;
            threads.handles.push(handle);
        }
        Ok(Service {
            threads: Arc::new(threads),
        })
    }

    /// The pager, and through it all that the manager can do to what is mapped.
    ///
    /// # Safety
    /// While there is a [`Region`], nothing of it is unmapped, moved, discarded or replaced, and no
    /// right to it taken away: a slice of it is a plain reference to memory.
    pub unsafe fn pager(&self) -> &Pager<C, S> {
        &self.threads.pager
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        self.threads.pager.mm().stats()
    }

    /// Reclaims about so many pages; returns how many were freed.
    pub fn reclaim(&self, pages: u64) -> u64 {
        self.threads.pager.mm().reclaim(pages)
    }

    /// Sets the knobs; see [`Pager::set_tunables`].
    ///
    /// # Errors
    /// One is out of range, and nothing has changed.
    pub fn set_tunables(&self, t: Tunables) -> Result<(), TunableError> {
        self.threads.pager.set_tunables(t)
    }

    /// Maps `bytes` of managed memory, readable and writable, holding zeros.
    ///
    /// # Errors
    /// No room, or the size is zero.
    pub fn map(&self, bytes: usize) -> Result<Region<C, S>, MapError> {
        Region::new(self.threads.clone(), bytes)
    }
}

impl<C: Charge + 'static, S: Store + 'static> Drop for Threads<C, S> {
    fn drop(&mut self) {
        self.pager.stop();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}
