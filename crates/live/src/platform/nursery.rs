//! Huge pages made ahead of need.
//!
//! Zeroing is almost the whole cost of a huge fault, and it can be done before. The nursery
//! has a small range of its own that belongs to no frame: a background task fills its blocks
//! with zeroed huge pages, and the mapping of a zero block moves one of them into the program.
//! How many are kept ready follows demand: none while huge faults are rare, since one that has
//! to wait for its page now and then is cheaper than memory that lies idle; more while they
//! come in quick succession.
//!
//! The range is not registered anywhere (the source of a move need not be), so that a huge page
//! can also be collapsed there where a touch gives none.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use deckle_uffd::{Categories, Errno, Pagemap};

use super::LivePlatform;
use super::caps::{Capabilities, Capability};
use super::kernel::{self, Advice, BLOCK, PAGE, Reservation};

/// Blocks of the range: those kept ready, and those in use by faults at one moment.
const SLOTS: usize = 32;
/// Fewest and most blocks kept ready.
const READY: (u32, u32) = (2, 8);
/// Huge faults come in quick succession when they are no farther apart than this: some twenty
/// times what it takes to make a huge page.
const QUICK: Duration = Duration::from_millis(5);
/// After so long without one the blocks that are ready are given back.
pub const IDLE: Duration = Duration::from_millis(20);

const EMPTY: u8 = 0;
const TAKEN: u8 = 1;
const FULL: u8 = 2;

/// Who pays for the pages that are ready but not used yet.
pub trait Account: Send + Sync {
    /// Charges pages, or refuses.
    fn try_charge(&self, pages: u64) -> bool;
    /// Returns pages.
    fn uncharge(&self, pages: u64);
}

/// The nursery.
pub struct Nursery {
    range: Reservation,
    state: [AtomicU8; SLOTS],
    ready: AtomicU32,
    /// How many blocks to keep ready; 0 while it is off or huge faults are rare.
    target: AtomicU32,
    /// Huge faults in quick succession.
    quick: AtomicU32,
    /// When the last one was, in nanoseconds of the monotonic clock.
    last: AtomicU64,
    off: bool,
    by_fault: bool,
    by_collapse: bool,
    account: Option<Box<dyn Account>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// A block of the nursery, held by one fault. Dropping it empties the block.
pub struct Nursling<'a> {
    nursery: &'a Nursery,
    slot: usize,
    moved: bool,
}

fn advise(range: &Reservation) -> Result<(), Errno> {
    // SAFETY: no advice here drops bytes; the mapping is ours and new.
    unsafe {
        kernel::madvise(range.base(), range.len(), Advice::DontFork)?;
        kernel::madvise(range.base(), range.len(), Advice::DontDump)?;
        let _ = kernel::madvise(range.base(), range.len(), Advice::Huge);
    }
    Ok(())
}

impl Nursery {
    /// `off`: nothing is made ahead of need (small limit); blocks are still made on demand.
    ///
    /// # Errors
    /// No room in the address space.
    pub fn new(
        caps: Capabilities,
        off: bool,
        account: Option<Box<dyn Account>>,
    ) -> Result<Nursery, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let range = Reservation::new(SLOTS * BLOCK, prot)?;
        advise(&range)?;
        Ok(Nursery {
            range,
            state: [const { AtomicU8::new(EMPTY) }; SLOTS],
            ready: AtomicU32::new(0),
            target: AtomicU32::new(0),
            quick: AtomicU32::new(0),
            last: AtomicU64::new(0),
            off,
            by_fault: caps.has(Capability::HugeByFault),
            by_collapse: caps.has(Capability::HugeByCollapse),
            account,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// Makes the empty range anew in a child of fork, which has not inherited it. In the
    /// parent the nursery was drained before.
    ///
    /// # Errors
    /// Something else is there.
    pub fn reserve_after_fork(&self) -> Result<(), Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // One may have been in the making, which is the parent's.
        for state in &self.state {
            state.store(EMPTY, Ordering::Relaxed);
        }
        self.range.again(prot)?;
        advise(&self.range)
    }

    /// Address and bytes of its range.
    pub fn range(&self) -> (usize, usize) {
        (self.range.base(), self.range.len())
    }

    fn addr(&self, slot: usize) -> usize {
        self.range.base() + slot * BLOCK
    }

    fn claim(&self, from: u8) -> Option<usize> {
        self.state.iter().position(|s| {
            s.load(Ordering::Relaxed) == from
                && s.compare_exchange(from, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// A zeroed huge page: a ready one, else one made now. `None` if the system gives none.
    pub(super) fn take(&self) -> Option<Nursling<'_>> {
        if !self.by_fault && !self.by_collapse {
            return None;
        }
        self.count();
        if let Some(slot) = self.claim(FULL) {
            self.ready.fetch_sub(1, Ordering::Relaxed);
            self.pay_back(1);
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Some(self.nursling(slot));
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let slot = self.claim(EMPTY)?;
        let nursling = self.nursling(slot);
        self.touch(slot).then_some(nursling)
    }

    /// Counts a huge fault.
    fn count(&self) {
        let now = kernel::monotonic_ns();
        let since = now.saturating_sub(self.last.swap(now, Ordering::Relaxed));
        let quick = match u128::from(since) <= QUICK.as_nanos() {
            true => self.quick.fetch_add(1, Ordering::Relaxed) + 1,
            false => {
                self.quick.store(0, Ordering::Relaxed);
                0
            }
        };
        let target = match quick {
            _ if self.off => 0,
            0 | 1 => 0,
            n => n.clamp(READY.0, READY.1),
        };
        self.target.store(target, Ordering::Relaxed);
    }

    /// Whether blocks are ready that nobody has asked for in a while.
    pub fn is_idle(&self) -> bool {
        let since = kernel::monotonic_ns().saturating_sub(self.last.load(Ordering::Relaxed));
        self.ready.load(Ordering::Relaxed) > 0 && u128::from(since) > IDLE.as_nanos()
    }

    fn nursling(&self, slot: usize) -> Nursling<'_> {
        Nursling {
            nursery: self,
            slot,
            moved: false,
        }
    }

    /// Makes the block of a slot present. The result may still be small pages; the move tells.
    fn touch(&self, slot: usize) -> bool {
        let addr = self.addr(slot);
        // SAFETY: a block of our own mapping, readable and writable, held by the caller.
        unsafe { (addr as *mut u8).write_volatile(0) };
        if self.by_fault {
            return true;
        }
        // SAFETY: collapsing changes no byte.
        unsafe { kernel::madvise(addr, BLOCK, Advice::Collapse) }.is_ok()
    }

    /// Whether [`fill`](Self::fill) has something to do.
    pub fn wants(&self) -> bool {
        self.ready.load(Ordering::Relaxed) < self.target.load(Ordering::Relaxed)
    }

    /// Makes up to `budget` blocks ready, as far as they are wanted and paid for; says how many
    /// it made. Takes about 0.1 ms for each. Several may run at once.
    pub fn fill(&self, budget: u32, pagemap: &Pagemap) -> u32 {
        let made = |filling: Filling<'_>| {
            let done = filling.make(pagemap);
            filling.finish(done);
            done
        };
        (0..budget)
            .take_while(|_| self.begin().is_some_and(made))
            .count() as u32
    }

    /// Begins to make a block ready: pays for it. `None`: none is wanted or paid for.
    pub fn begin(&self) -> Option<Filling<'_>> {
        if !self.wants() || !self.pay() {
            return None;
        }
        let Some(slot) = self.claim(EMPTY) else {
            self.pay_back(1);
            return None;
        };
        Some(Filling(self.nursling(slot)))
    }

    fn is_huge(&self, slot: usize, pagemap: &Pagemap) -> bool {
        let (start, all) = (self.addr(slot), Categories::PRESENT | Categories::HUGE);
        pagemap.count(start, start + BLOCK, all, Categories::empty()) == Ok(BLOCK)
    }

    fn pay(&self) -> bool {
        let account = self.account.as_ref();
        account.is_none_or(|a| a.try_charge((BLOCK / PAGE) as u64))
    }

    fn pay_back(&self, blocks: u32) {
        if let Some(account) = &self.account {
            account.uncharge(u64::from(blocks) * (BLOCK / PAGE) as u64);
        }
    }

    /// Gives all ready blocks back, under pressure or at the end; says how many pages. None are
    /// made again before the next huge fault finds none.
    pub fn drain(&self) -> u64 {
        self.target.store(0, Ordering::Relaxed);
        self.quick.store(0, Ordering::Relaxed);
        let mut pages = 0;
        while let Some(slot) = self.claim(FULL) {
            self.ready.fetch_sub(1, Ordering::Relaxed);
            drop(self.nursling(slot));
            self.pay_back(1);
            pages += (BLOCK / PAGE) as u64;
        }
        pages
    }

    /// Pages that are ready now.
    pub fn ready_pages(&self) -> u64 {
        u64::from(self.ready.load(Ordering::Relaxed)) * (BLOCK / PAGE) as u64
    }

    /// Huge faults served from ready blocks, and those that had to make one.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (
            self.hits.load(Ordering::Relaxed),
            self.misses.load(Ordering::Relaxed),
        )
    }
}

/// A block that is being made ready.
pub struct Filling<'a>(Nursling<'a>);

impl Filling<'_> {
    /// Makes it: a zeroed huge page; false if the system gives none. This takes the time.
    pub fn make(&self, pagemap: &Pagemap) -> bool {
        let Nursling { nursery, slot, .. } = &self.0;
        nursery.touch(*slot) && nursery.is_huge(*slot, pagemap)
    }

    /// Puts it among those that are ready if it was `made`, else gives it back.
    pub fn finish(self, made: bool) {
        let Nursling { nursery, slot, .. } = self.0;
        if made {
            core::mem::forget(self.0);
            nursery.ready.fetch_add(1, Ordering::Relaxed);
            nursery.state[slot].store(FULL, Ordering::Release);
        } else {
            // The system has no huge page to give now.
            nursery.target.store(0, Ordering::Relaxed);
            nursery.pay_back(1);
        }
    }
}

impl Nursling<'_> {
    /// Address of the block.
    pub(super) fn addr(&self) -> usize {
        self.nursery.addr(self.slot)
    }

    /// The whole block has been moved away: nothing is left to empty.
    pub(super) fn gone(mut self) {
        self.moved = true;
    }
}

impl Drop for Nursling<'_> {
    fn drop(&mut self) {
        if !self.moved {
            // SAFETY: zeros that nobody needs, in a block that this value holds alone.
            let _ = unsafe { kernel::drop_pages(self.addr(), BLOCK) };
        }
        self.nursery.state[self.slot].store(EMPTY, Ordering::Release);
    }
}
impl LivePlatform {
    /// Makes huge pages ahead of need; see [`Nursery::fill`].
    pub fn fill_nursery(&self, budget: u32) -> u32 {
        self.nursery.fill(budget, &self.pagemap)
    }
}
