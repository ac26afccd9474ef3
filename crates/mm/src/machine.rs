//! What the manager needs of the computer besides memory: CPUs, waiting, and being run later.

use core::sync::atomic::AtomicU32;

/// Work that the manager wants done soon by somebody who may take time over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Usage passed `memory.high`: call `Mm::reclaim_background` (kswapd's part).
    Reclaim,
}

/// A place where the core lets another CPU go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// Before a lock is taken.
    Lock(LockClass),
    /// Before a per-CPU list is used, and while one waits for it.
    Pcp,
    /// After a batch of frames was released.
    Released,
    /// After a round of reclaim.
    ReclaimRound,
    /// Before a block is locked again that was worked on unlocked.
    Relock,
}

/// The classes of locks, in the order in which they may be taken: a CPU that holds a lock
/// may only take locks of a later class, or (blocks only) of the same class at a higher
/// address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockClass {
    /// Serialises mmap, munmap, mprotect, mremap and advice of one space. May be held over
    /// everything else, reclaim included; never taken by faults or by reclaim.
    MmapLock,
    /// The list of spaces: held only to look one up, or to create or end one.
    Spaces,
    /// A space's VMA tree: held only to read or edit it.
    VmaTree,
    /// A space's directory of blocks: held only to find or create a block.
    BlockDir,
    /// One block of a space.
    Block,
    /// The reverse map of folios that forks share, and the pins.
    Rmap,
    /// The active and inactive lists.
    Lru,
    /// The deferred split queue.
    SplitQueue,
    /// The swap slot map.
    SlotMap,
    /// The knobs.
    Tunables,
    /// The pool of buffers.
    Scratch,
    /// A zone's free lists.
    Zone,
}

/// Who runs on a machine: what only needs one takes this instead of the manager.
pub trait OnMachine {
    /// The machine.
    type M: Machine;
    /// The machine.
    fn machine(&self) -> &Self::M;
}

/// CPUs, waiting and background work.
///
/// All operations may be called with any lock held. `park` is called with none, except to wait
/// for a lock, with locks of earlier classes held.
pub trait Machine: Send + Sync {
    /// The CPU that executes the caller, below [`Machine::nr_cpus`]. A hint: the caller may
    /// be moved at any time.
    fn this_cpu(&self) -> usize;
    /// How many CPUs there are, at least 1; constant.
    fn nr_cpus(&self) -> usize;
    /// Waits until `word` may differ from `expected`. Returns at once if it differs already;
    /// may return early without reason. Who changes the word calls [`Machine::unpark`] after.
    fn park(&self, word: &AtomicU32, expected: u32);
    /// Wakes up to `count` callers that wait on `word`.
    fn unpark(&self, word: &AtomicU32, count: u32);
    /// Asks for `work` to be done soon in a background context. Never blocks; repeated
    /// requests for the same work may be merged.
    fn kick(&self, work: Work);
    /// A place where another CPU may run first. Live memory: nothing. The model's scheduler
    /// may switch here; a model checker's yield.
    fn preempt(&self, site: Site);
    /// The caller is about to unmap pages one by one (`true`), or has done so (`false`); no lock is
    /// held. On a real computer each of them interrupts every CPU that runs in that memory, which
    /// costs ten times the unmapping: so who serves it stands [aside](Machine::stand_aside)
    /// meanwhile, and what of the program waits for a fault does, too. Waits for another's end.
    fn quiet(&self, on: bool) {
        let _ = on;
    }
    /// Waits while somebody else unmaps pages. No lock is held.
    fn stand_aside(&self) {}
    /// The time, in microseconds from any start, or in steps where there is no time. Never goes
    /// back; 0 always: the machine has no clock.
    fn now(&self) -> u64 {
        0
    }
    /// How long the program has computed until now, all its threads together, as
    /// [`Machine::now`] counts; `None`: not known.
    fn busy(&self) -> Option<u64> {
        None
    }
    /// A lock of `class` was taken by this CPU (`at`: its address order within the class).
    /// For machines that check the lock order; else nothing.
    fn lock_taken(&self, class: LockClass, at: u64) {
        let _ = (class, at);
    }
    /// A lock of `class` was released by this CPU.
    fn lock_released(&self, class: LockClass, at: u64) {
        let _ = (class, at);
    }
}
