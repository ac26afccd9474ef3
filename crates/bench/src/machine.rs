//! The machine under the core here: threads of this process that know their number.

use deckle_mm::{Machine, Site, Work};
use std::cell::Cell;
use std::sync::atomic::AtomicU32;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Says which CPU the calling thread is.
pub fn set_cpu(cpu: usize) {
    CPU.set(cpu);
}

/// Which CPU the calling thread is.
pub fn this_cpu() -> usize {
    CPU.get()
}

/// Threads as CPUs. A wait is a yield: with at most as many threads as CPUs it is short.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// CPUs of the machine.
    pub nr: usize,
}

impl Machine for Threads {
    #[inline]
    fn this_cpu(&self) -> usize {
        CPU.get()
    }
    #[inline]
    fn nr_cpus(&self) -> usize {
        self.nr
    }
    fn park(&self, _word: &AtomicU32, _expected: u32) {
        std::thread::yield_now();
    }
    #[inline]
    fn unpark(&self, _word: &AtomicU32, _count: u32) {}
    fn kick(&self, _work: Work) {}
    #[inline]
    fn preempt(&self, _site: Site) {}
}
