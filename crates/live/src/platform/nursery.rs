//! Huge pages made ahead of need.
//!
//! Zeroing is almost the whole cost of a huge fault, and it can be done before. The nursery
//! has a small range of its own that belongs to no frame: a background task fills its blocks
//! with zeroed huge pages, and the mapping of a zero block moves one of them into the program.
//! The range is not registered anywhere (the source of a move need not be), so that a huge page
//! can also be collapsed there where a touch gives none.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use deckle_uffd::{Categories, Errno, Pagemap};

use super::caps::{Capabilities, Capability};
use super::kernel::{self, Advice, BLOCK, PAGE, Reservation};

/// Blocks of the range: those kept ready, and those in use by faults at one moment.
const SLOTS: usize = 32;
/// Fewest and most blocks kept ready.
const READY: (u32, u32) = (2, 8);

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
    /// How many blocks to keep ready; 0 until the first huge fault, and while it is off.
    target: AtomicU32,
    /// Blocks handed out since the last fill.
    recent: AtomicU32,
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
            recent: AtomicU32::new(0),
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
        self.recent.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.claim(FULL) {
            self.ready.fetch_sub(1, Ordering::Relaxed);
            self.pay_back(1);
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Some(self.nursling(slot));
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        if !self.off {
            let _ = self
                .target
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |t| {
                    Some((t + 1).clamp(READY.0, READY.1))
                });
        }
        let slot = self.claim(EMPTY)?;
        let nursling = self.nursling(slot);
        self.touch(slot).then_some(nursling)
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
    /// it made. Takes about 0.1 ms for each. For a background task; several may run at once.
    pub fn fill(&self, budget: u32, pagemap: &Pagemap) -> u32 {
        let mut made = 0;
        if self.recent.swap(0, Ordering::Relaxed) == 0 {
            // Nobody came since the last time: keep fewer.
            let _ = self
                .target
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |t| {
                    (t > READY.0).then(|| t - 1)
                });
        }
        while made < budget && self.wants() {
            if !self.pay() {
                break;
            }
            let Some(slot) = self.claim(EMPTY) else {
                self.pay_back(1);
                break;
            };
            let nursling = self.nursling(slot);
            if !self.touch(slot) || !self.is_huge(slot, pagemap) {
                // The system has no huge page to give now. The next miss tries again.
                self.target.store(0, Ordering::Relaxed);
                self.pay_back(1);
                drop(nursling);
                break;
            }
            core::mem::forget(nursling);
            self.state[slot].store(FULL, Ordering::Release);
            self.ready.fetch_add(1, Ordering::Relaxed);
            made += 1;
        }
        made
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
