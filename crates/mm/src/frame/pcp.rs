//! Per-CPU lists in front of the free lists, for order 0, the orders up to 4, and that of
//! huge pages.
//!
//! A list is a stack of frame numbers: what was freed last is given out first, warm. Its lock
//! is tried and never waited for: who finds it taken goes to the free lists (only draining
//! waits, and nothing waits inside). An empty list is filled with a batch, a full one gives
//! its oldest batch back. The zone's lock is held only to move blocks: a batch leaves the zone
//! as a few blocks that are cut into frames outside of the lock, and comes back as the runs
//! that its frames form.

use super::Frames;
use super::meta::Kind;
use super::mobility::{Mobility, TYPES};
use super::zone::Zone;
use crate::machine::{Machine, Site};
use crate::units::{BLOCK_ORDER, Pfn, order_pages};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Frames of order 0 that a list can hold, for each type.
const SMALL: usize = 128;
/// Most frames of one batch.
const BATCH: usize = SMALL / 2;
/// Blocks of a larger order that a list can hold, for each type.
const LARGE: usize = 8;
/// Orders with lists of the second size: those that cost little, one more, and huge pages.
const LARGE_ORDERS: usize = 5;

/// Which of the larger lists serves an order.
fn large(order: u8) -> Option<usize> {
    match order {
        1..=4 => Some(order as usize - 1),
        BLOCK_ORDER => Some(LARGE_ORDERS - 1),
        _ => None,
    }
}

/// How much the lists hold in this zone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Frames that move at once; half of what a list may hold. 0: no list.
    batch: usize,
    large: [u32; LARGE_ORDERS],
}

impl Sizes {
    /// At most a 128th of the zone on the lists of order 0 of one type, and as much on those
    /// of each larger order.
    pub(super) fn of(frames: u32, cpus: usize) -> Sizes {
        let share = frames as usize / cpus.max(1) / 128;
        let mut large = [0; LARGE_ORDERS];
        for (i, n) in large.iter_mut().enumerate() {
            let order = [1, 2, 3, 4, BLOCK_ORDER][i];
            *n = (share >> order).min(LARGE) as u32;
        }
        Sizes {
            batch: (share / 2).min(BATCH),
            large,
        }
    }
}

/// A stack of frame numbers; changed under the CPU's lock.
struct Stack<const N: usize> {
    len: AtomicU32,
    at: [AtomicU32; N],
}

impl<const N: usize> Stack<N> {
    const fn new() -> Stack<N> {
        Stack {
            len: AtomicU32::new(0),
            at: [const { AtomicU32::new(u32::MAX) }; N],
        }
    }
    fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }
    fn pop(&self) -> Option<Pfn> {
        let n = self.len().checked_sub(1)?;
        let pfn = self.at.get(n)?.load(Relaxed);
        self.len.store(n as u32, Relaxed);
        Some(Pfn(pfn))
    }
    fn push(&self, pfn: Pfn) -> bool {
        let n = self.len();
        let Some(at) = self.at.get(n) else {
            return false;
        };
        at.store(pfn.0, Relaxed);
        self.len.store(n as u32 + 1, Relaxed);
        true
    }
    /// Takes the oldest ones out, as many as `out` can hold; how many.
    fn take_oldest(&self, out: &mut [Pfn]) -> usize {
        let (len, n) = (self.len(), out.len().min(self.len()));
        for (slot, at) in out.iter_mut().zip(&self.at[..n]) {
            *slot = Pfn(at.load(Relaxed));
        }
        for i in n..len {
            self.at[i - n].store(self.at[i].load(Relaxed), Relaxed);
        }
        self.len.store((len - n) as u32, Relaxed);
        n
    }
}

/// What one CPU keeps.
#[repr(align(128))]
pub(super) struct PerCpu {
    taken: AtomicBool,
    pages: AtomicU64,
    /// Pages given out and taken back through the lists; changed under `taken`.
    events: [AtomicU64; 2],
    small: [Stack<SMALL>; TYPES],
    large: [[Stack<LARGE>; TYPES]; LARGE_ORDERS],
    /// Pages given out and taken back past the lists; changed under the zone's lock.
    slow_events: [AtomicU64; 2],
}

/// The right to change a CPU's lists.
struct Inside<'a>(&'a PerCpu);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl PerCpu {
    pub(super) fn new() -> PerCpu {
        PerCpu {
            taken: AtomicBool::new(false),
            pages: AtomicU64::new(0),
            events: [const { AtomicU64::new(0) }; 2],
            small: [const { Stack::new() }; TYPES],
            large: [const { [const { Stack::new() }; TYPES] }; LARGE_ORDERS],
            slow_events: [const { AtomicU64::new(0) }; 2],
        }
    }
    /// Pages on the lists.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }
    /// Pages given out and taken back on this CPU.
    pub(super) fn events(&self) -> [u64; 2] {
        [0, 1].map(|i| self.events[i].load(Relaxed) + self.slow_events[i].load(Relaxed))
    }
    pub(super) fn slow_events(&self) -> &[AtomicU64; 2] {
        &self.slow_events
    }

    fn enter(&self) -> Option<Inside<'_>> {
        let won = self
            .taken
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_ok();
        won.then_some(Inside(self))
    }

    /// Waits for whoever is inside, which is never long: nothing waits there.
    fn enter_waiting<M: Machine>(&self, m: &M) -> Inside<'_> {
        loop {
            match self.enter() {
                Some(inside) => return inside,
                None => m.preempt(Site::Pcp),
            }
            core::hint::spin_loop();
        }
    }

    fn pop(&self, order: u8, t: usize) -> Option<Pfn> {
        match large(order) {
            None => self.small[t].pop(),
            Some(k) => self.large[k][t].pop(),
        }
    }
}

impl Inside<'_> {
    /// The pages on the lists changed by so many; given out and taken back so many.
    fn count(&self, pages: i64, allocated: u64, freed: u64) {
        let cpu = self.0;
        let now = cpu.pages.load(Relaxed).wrapping_add_signed(pages);
        cpu.pages.store(now, Relaxed);
        for (word, n) in cpu.events.iter().zip([allocated, freed]) {
            word.store(word.load(Relaxed) + n, Relaxed);
        }
    }
}

/// Blocks on their way between a list and the zone.
struct Batch {
    at: [(Pfn, u8); BATCH],
    len: usize,
}

impl Batch {
    const fn new() -> Batch {
        Batch {
            at: [(Pfn(0), 0); BATCH],
            len: 0,
        }
    }
    fn push(&mut self, pfn: Pfn, order: u8) {
        self.at[self.len] = (pfn, order);
        self.len += 1;
    }
    fn blocks(&self) -> &[(Pfn, u8)] {
        &self.at[..self.len]
    }
}

impl Zone {
    /// Whether lists are kept for an order.
    fn pcp_serves(&self, order: u8) -> bool {
        match large(order) {
            Some(k) => self.sizes.large[k] > 0,
            None => order == 0 && self.sizes.batch > 0,
        }
    }

    /// A block from this CPU's list, filled first if it is empty; `None` if the list is
    /// taken, or stays empty.
    #[inline]
    pub(super) fn pcp_alloc<M: Machine>(&self, m: &M, order: u8, t: Mobility) -> Option<Pfn> {
        let cpu = self.pcp.get(m.this_cpu())?;
        if !self.pcp_serves(order) {
            return None;
        }
        m.preempt(Site::Pcp);
        let inside = cpu.enter()?;
        let Some(pfn) = cpu.pop(order, t as usize) else {
            drop(inside);
            return (order == 0).then(|| self.refill(m, cpu, t)).flatten();
        };
        let pages = order_pages(order);
        inside.count(-(pages as i64), pages as u64, 0);
        Some(pfn)
    }

    /// Takes a batch from the zone, keeps one frame for the caller and puts the others on the
    /// list, the lowest on top.
    #[cold]
    fn refill<M: Machine>(&self, m: &M, cpu: &PerCpu, t: Mobility) -> Option<Pfn> {
        let mut batch = Batch::new();
        let mut left = self.sizes.batch as u32;
        {
            let mut held = self.lock.lock(m);
            while left > 0 {
                let Some((pfn, order)) = self.take_some(&mut held, left, t) else {
                    break;
                };
                batch.push(pfn, order);
                left -= order_pages(order);
            }
        }
        let mut frames = [Pfn(0); BATCH];
        let mut n = 0;
        for &(pfn, order) in batch.blocks() {
            for i in 0..order_pages(order) {
                let frame = pfn.add(i);
                if let Some(meta) = self.table.get(frame) {
                    meta.set_kind(Kind::Cached, 0);
                }
                frames[n] = frame;
                n += 1;
            }
        }
        let (&first, rest) = frames[..n].split_first()?;
        let mut kept = rest.len();
        m.preempt(Site::Pcp);
        let inside = cpu.enter_waiting(m);
        // Somebody else on this CPU may have filled the list meanwhile.
        while kept > 0 && cpu.small[t as usize].push(rest[kept - 1]) {
            kept -= 1;
        }
        inside.count((rest.len() - kept) as i64, 1, 0);
        drop(inside);
        if kept > 0 {
            self.give_runs(m, &rest[..kept]);
        }
        Some(first)
    }

    /// Puts a claimed block on this CPU's list; false if it must go to the zone. While
    /// somebody captures, all blocks go there, so that they can join.
    #[inline]
    pub(super) fn pcp_free<M: Machine>(&self, m: &M, pfn: Pfn, order: u8) -> bool {
        let Some(cpu) = self.pcp.get(m.this_cpu()) else {
            return false;
        };
        if self.capturing.load(Acquire) > 0 || !self.pcp_serves(order) {
            return false;
        }
        m.preempt(Site::Pcp);
        let Some(inside) = cpu.enter() else {
            return false;
        };
        let t = self.pageblocks.of(pfn) as usize;
        let pages = order_pages(order);
        if let Some(k) = large(order) {
            let list = &cpu.large[k][t];
            let room = list.len() < self.sizes.large[k] as usize && list.push(pfn);
            if room {
                inside.count(pages as i64, 0, pages as u64);
            }
            return room;
        }
        let (list, batch) = (&cpu.small[t], self.sizes.batch);
        if list.len() < 2 * batch && list.push(pfn) {
            inside.count(1, 0, 1);
            return true;
        }
        let mut frames = [Pfn(0); BATCH];
        let n = list.take_oldest(&mut frames[..batch]);
        list.push(pfn);
        inside.count(1 - n as i64, 0, 1);
        drop(inside);
        self.give_runs(m, &frames[..n]);
        true
    }

    /// Gives frames of order 0 back to the zone. Frames that follow each other, upwards or
    /// downwards, go back as the largest blocks that they form.
    fn give_runs<M: Machine>(&self, m: &M, frames: &[Pfn]) {
        let mut blocks = Batch::new();
        let mut i = 0;
        while i < frames.len() {
            let (mut up, mut down) = (1, 1);
            while frames
                .get(i + up)
                .is_some_and(|p| p.0 == frames[i].0.wrapping_add(up as u32))
            {
                up += 1;
            }
            while up == 1
                && frames
                    .get(i + down)
                    .is_some_and(|p| p.0 == frames[i].0.wrapping_sub(down as u32))
            {
                down += 1;
            }
            let n = up.max(down);
            let mut at = if down > 1 {
                frames[i + n - 1]
            } else {
                frames[i]
            };
            let end = at.0 as u64 + n as u64;
            while (at.0 as u64) < end {
                let fit = (end - at.0 as u64).ilog2().min(at.0.trailing_zeros()) as u8;
                self.join(at, fit);
                blocks.push(at, fit);
                at = at.add(order_pages(fit));
            }
            i += n;
        }
        let mut held = self.lock.lock(m);
        for &(pfn, order) in blocks.blocks() {
            self.give(&mut held, pfn, order);
        }
    }

    /// Makes one block of frames that the allocator owns one by one.
    fn join(&self, pfn: Pfn, order: u8) {
        for i in 1..order_pages(order) {
            if let Some(meta) = self.table.get(pfn.add(i)) {
                meta.set_kind(Kind::Tail, 0);
            }
        }
        if let Some(meta) = self.table.get(pfn) {
            meta.set_kind(Kind::Cached, order);
        }
    }

    /// Empties the lists of all CPUs into the zone; returns the pages. What is on its way to
    /// or from a list at that moment stays.
    pub fn drain<M: Machine>(&self, m: &M) -> u64 {
        let mut drained = 0;
        for cpu in &self.pcp {
            drained += self.drain_cpu(m, cpu);
        }
        drained
    }

    fn drain_cpu<M: Machine>(&self, m: &M, cpu: &PerCpu) -> u64 {
        let mut drained = 0;
        for t in 0..TYPES {
            loop {
                let mut frames = [Pfn(0); BATCH];
                let inside = cpu.enter_waiting(m);
                let n = cpu.small[t].take_oldest(&mut frames);
                inside.count(-(n as i64), 0, 0);
                drop(inside);
                if n == 0 {
                    break;
                }
                drained += n as u64;
                self.give_runs(m, &frames[..n]);
            }
            for order in [1, 2, 3, 4, BLOCK_ORDER] {
                while let Some(pfn) = self.pop_remote(m, cpu, order, t) {
                    drained += order_pages(order) as u64;
                    self.give(&mut self.lock.lock(m), pfn, order);
                }
            }
        }
        drained
    }

    fn pop_remote<M: Machine>(&self, m: &M, cpu: &PerCpu, order: u8, t: usize) -> Option<Pfn> {
        let inside = cpu.enter_waiting(m);
        let pfn = cpu.pop(order, t)?;
        inside.count(-(order_pages(order) as i64), 0, 0);
        Some(pfn)
    }
}
