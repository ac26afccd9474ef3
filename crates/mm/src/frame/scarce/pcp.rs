//! Per-CPU lists in front of the free lists, for order 0, the orders up to 4, and that of
//! huge pages.
//!
//! A list is a stack of frame numbers: what was freed last is given out first, warm. Its lock
//! is tried and never waited for: who finds it taken goes to the free lists (only draining
//! waits, and nothing waits inside). An empty list is filled with a batch, a full one gives
//! its oldest batch back. The zone's lock is held only to move blocks: a batch leaves the zone
//! as a few blocks that are cut into frames outside of the lock, and comes back as the runs
//! that its frames form.

use super::mobility::{Mobility, TYPES};
use crate::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::frame::FrameLookup;
use crate::frame::meta::Kind;
use crate::frame::zone::Zone;
use crate::machine::{Machine, Site};
use crate::units::{BLOCK_ORDER, MAX_ORDER, Pfn, order_pages};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Frames of order 0 that a list can hold, for each type.
const SMALL: usize = 128;
/// Most blocks of one batch.
const BATCH: usize = SMALL / 2;
/// Blocks of a larger order that a list can hold, for each type.
const LARGE: usize = 32;
/// The larger orders with lists: those that cost little, one more, and huge pages.
const LARGE_ORDERS: [u8; 5] = [1, 2, 3, 4, BLOCK_ORDER];

/// Which of the larger lists serves an order.
#[inline]
fn large(order: u8) -> Option<usize> {
    match order {
        1..=4 => Some(order as usize - 1),
        BLOCK_ORDER => Some(LARGE_ORDERS.len() - 1),
        _ => None,
    }
}

/// How much a list holds, and how much of it moves at once.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Blocks that a list may hold; 0: no list.
    limit: usize,
    /// Blocks that fill an empty list, and that leave a full one. 0: the list is filled by
    /// what is freed, and a full one stays full.
    batch: usize,
}

/// How much the lists hold in this zone.
#[derive(Clone, Copy, Debug)]
pub(in crate::frame) struct Sizes {
    small: Size,
    large: [Size; LARGE_ORDERS.len()],
}

impl Sizes {
    /// At most a 128th of the zone on the lists of one order and type, all CPUs together.
    /// Huge pages are not taken ahead of need: one lock for each costs no more than a batch.
    pub(in crate::frame) fn of(frames: u32, cpus: usize) -> Sizes {
        let share = frames as usize / cpus.max(1) / 128;
        let halves = |limit: usize| Size {
            limit,
            batch: limit.div_ceil(2),
        };
        let large = LARGE_ORDERS.map(|order| {
            let size = halves((share >> order).min(LARGE));
            let batch = if order == BLOCK_ORDER { 0 } else { size.batch };
            Size { batch, ..size }
        });
        Sizes {
            small: halves(share.min(SMALL)),
            large,
        }
    }

    #[inline]
    fn get(&self, order: u8) -> Option<&Size> {
        let size = match large(order) {
            Some(k) => &self.large[k],
            None if order == 0 => &self.small,
            None => return None,
        };
        (size.limit > 0).then_some(size)
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
    #[inline]
    fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }
    #[inline]
    fn pop(&self) -> Option<Pfn> {
        let n = self.len().checked_sub(1)?;
        let pfn = self.at.get(n)?.load(Relaxed);
        self.len.store(n as u32, Relaxed);
        Some(Pfn(pfn))
    }
    #[inline]
    fn push(&self, pfn: Pfn, limit: usize) -> bool {
        let n = self.len();
        let Some(at) = self.at.get(n).filter(|_| n < limit) else {
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
pub(in crate::frame) struct PerCpu {
    taken: AtomicBool,
    /// Pages given out and taken back through the lists; changed under `taken`.
    events: [AtomicU64; 2],
    small: [Stack<SMALL>; TYPES],
    large: [[Stack<LARGE>; TYPES]; LARGE_ORDERS.len()],
    /// Pages given out and taken back past the lists; changed under the zone's lock.
    slow_events: [AtomicU64; 2],
}

/// The right to change a CPU's lists.
struct Inside<'a>(&'a PerCpu);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl PerCpu {
    pub(in crate::frame) fn new() -> PerCpu {
        PerCpu {
            taken: AtomicBool::new(false),
            events: [const { AtomicU64::new(0) }; 2],
            small: [const { Stack::new() }; TYPES],
            large: [const { [const { Stack::new() }; TYPES] }; LARGE_ORDERS.len()],
            slow_events: [const { AtomicU64::new(0) }; 2],
        }
    }
    /// Pages on the lists.
    pub(in crate::frame) fn pages(&self) -> u64 {
        let small: usize = self.small.iter().map(Stack::len).sum();
        let large = LARGE_ORDERS.iter().zip(&self.large).map(|(order, lists)| {
            let blocks: usize = lists.iter().map(Stack::len).sum();
            blocks << order
        });
        (small + large.sum::<usize>()) as u64
    }
    /// Pages given out and taken back on this CPU.
    pub(in crate::frame) fn events(&self) -> [u64; 2] {
        [0, 1].map(|i| self.events[i].load(Relaxed) + self.slow_events[i].load(Relaxed))
    }
    pub(in crate::frame) fn slow_events(&self) -> &[AtomicU64; 2] {
        &self.slow_events
    }

    #[inline]
    fn enter(&self) -> Option<Inside<'_>> {
        let won = self
            .taken
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_ok();
        // Not `then_some`: who lost would make an `Inside` too, and dropping it sets others free.
        won.then(|| Inside(self))
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

    /// Blocks on a list; only a hint without the right to change it.
    #[inline]
    fn len(&self, order: u8, t: usize) -> usize {
        match large(order) {
            None => self.small[t].len(),
            Some(k) => self.large[k][t].len(),
        }
    }
    #[inline]
    fn pop(&self, order: u8, t: usize) -> Option<Pfn> {
        match large(order) {
            None => self.small[t].pop(),
            Some(k) => self.large[k][t].pop(),
        }
    }
    /// Adds a block if the list holds fewer than `limit`.
    #[inline]
    fn push(&self, order: u8, t: usize, pfn: Pfn, limit: usize) -> bool {
        match large(order) {
            None => self.small[t].push(pfn, limit),
            Some(k) => self.large[k][t].push(pfn, limit),
        }
    }
    fn take_oldest(&self, order: u8, t: usize, out: &mut [Pfn]) -> usize {
        match large(order) {
            None => self.small[t].take_oldest(out),
            Some(k) => self.large[k][t].take_oldest(out),
        }
    }
}

impl Inside<'_> {
    /// Counts a block given out.
    #[inline]
    fn given(&self, order: u8) {
        self.count(0, order);
    }
    /// Counts a block taken back.
    #[inline]
    fn taken(&self, order: u8) {
        self.count(1, order);
    }
    #[inline]
    fn count(&self, event: usize, order: u8) {
        let word = &self.0.events[event];
        word.store(word.load(Relaxed) + order_pages(order) as u64, Relaxed);
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
    /// A block from this CPU's list, filled first if it is empty; `None` if the list is
    /// taken, or stays empty.
    #[inline]
    pub(in crate::frame) fn pcp_alloc<M: Machine>(
        &self,
        m: &M,
        order: u8,
        t: Mobility,
    ) -> Option<Pfn> {
        let cpu = self.pcp.get(m.this_cpu())?;
        let size = self.sizes.get(order)?;
        m.preempt(Site::Pcp);
        if size.batch == 0 && cpu.len(order, t as usize) == 0 {
            return None;
        }
        let inside = cpu.enter()?;
        let Some(pfn) = cpu.pop(order, t as usize) else {
            drop(inside);
            return self.refill(m, cpu, size, order, t);
        };
        inside.given(order);
        Some(pfn)
    }

    /// Takes a batch of blocks of `order` from the zone, keeps one for the caller and puts the
    /// others on the list, the lowest on top.
    #[cold]
    fn refill<M: Machine>(
        &self,
        m: &M,
        cpu: &PerCpu,
        size: &Size,
        order: u8,
        t: Mobility,
    ) -> Option<Pfn> {
        let mut taken = Batch::new();
        let mut left = size.batch as u32;
        {
            let mut held = self.lock.lock(m);
            while left > 0 {
                let Some((pfn, is)) = self.take_some(&mut held, order, left, t) else {
                    break;
                };
                taken.push(pfn, is);
                left -= order_pages(is - order);
            }
        }
        let mut blocks = [Pfn(0); BATCH];
        let mut n = 0;
        for &(pfn, is) in taken.blocks() {
            for i in 0..order_pages(is - order) {
                let at = pfn.add(i << order);
                if let Some(meta) = self.table.get(at) {
                    meta.set_kind(Kind::Cached, order);
                }
                blocks[n] = at;
                n += 1;
            }
        }
        let (&first, rest) = blocks[..n].split_first()?;
        let mut kept = rest.len();
        m.preempt(Site::Pcp);
        let inside = cpu.enter_waiting(m);
        // Somebody else on this CPU may have filled the list meanwhile.
        while kept > 0 && cpu.push(order, t as usize, rest[kept - 1], size.limit) {
            kept -= 1;
        }
        inside.given(order);
        drop(inside);
        if kept > 0 {
            self.give_runs(m, order, &rest[..kept]);
        }
        Some(first)
    }

    /// Puts a claimed block on this CPU's list; false if it must go to the zone. While
    /// somebody captures, all blocks go there, so that they can join.
    #[inline]
    pub(in crate::frame) fn pcp_free<M: Machine>(&self, m: &M, pfn: Pfn, order: u8) -> bool {
        let Some(cpu) = self.pcp.get(m.this_cpu()) else {
            return false;
        };
        let Some(size) = self.sizes.get(order) else {
            return false;
        };
        if self.capturing.load(Acquire) > 0 {
            return false;
        }
        m.preempt(Site::Pcp);
        let t = self.pageblocks.of(pfn) as usize;
        if size.batch == 0 && cpu.len(order, t) >= size.limit {
            return false;
        }
        let Some(inside) = cpu.enter() else {
            return false;
        };
        if cpu.push(order, t, pfn, size.limit) {
            inside.taken(order);
            return true;
        }
        if size.batch == 0 {
            return false;
        }
        self.overflow(m, inside, size, (pfn, order), t);
        true
    }

    /// Makes room on a full list and puts the block on it.
    #[cold]
    fn overflow<M: Machine>(
        &self,
        m: &M,
        inside: Inside<'_>,
        size: &Size,
        (pfn, order): (Pfn, u8),
        t: usize,
    ) {
        let mut blocks = [Pfn(0); BATCH];
        let n = inside.0.take_oldest(order, t, &mut blocks[..size.batch]);
        let kept = inside.0.push(order, t, pfn, size.limit);
        debug_assert!(kept, "a list of {size:?} is full after draining");
        inside.taken(order);
        drop(inside);
        self.give_runs(m, order, &blocks[..n]);
    }

    /// Gives blocks of `order` back to the zone. Those that follow each other, upwards or
    /// downwards, go back as the largest blocks that they form.
    fn give_runs<M: Machine>(&self, m: &M, order: u8, blocks: &[Pfn]) {
        let mut merged = Batch::new();
        let unit = order_pages(order);
        let follows = |i: usize, k: usize, step: u32| {
            let next = blocks[i].0.wrapping_add(step.wrapping_mul(k as u32));
            blocks.get(i + k).is_some_and(|p| p.0 == next)
        };
        let mut i = 0;
        while i < blocks.len() {
            let (mut up, mut down) = (1, 1);
            while follows(i, up, unit) {
                up += 1;
            }
            while up == 1 && follows(i, down, unit.wrapping_neg()) {
                down += 1;
            }
            let n = up.max(down);
            let mut at = if down > 1 {
                blocks[i + n - 1]
            } else {
                blocks[i]
            };
            let mut left = n as u32;
            while left > 0 {
                // The order of the whole is at most that of 64 blocks of order 4, or one more
                // than that of a huge page.
                let place = (at.0 >> order).trailing_zeros();
                let fit = (left.ilog2().min(place) as u8).min(MAX_ORDER - order);
                self.join(at, order, fit);
                merged.push(at, order + fit);
                at = at.add(unit << fit);
                left -= order_pages(fit);
            }
            i += n;
        }
        let mut held = self.lock.lock(m);
        for &(pfn, order) in merged.blocks() {
            self.give(&mut held, pfn, order);
        }
    }

    /// Makes one block of 2^fit blocks of `order` that the allocator owns one by one.
    fn join(&self, pfn: Pfn, order: u8, fit: u8) {
        for i in 1..order_pages(fit) {
            if let Some(meta) = self.table.get(pfn.add(i << order)) {
                meta.set_kind(Kind::Tail, 0);
            }
        }
        if let Some(meta) = self.table.get(pfn) {
            meta.set_kind(Kind::Cached, order + fit);
        }
    }

    /// Empties the lists of all CPUs into the zone; returns the pages. What is on its way to
    /// or from a list at that moment stays.
    pub fn drain<M: Machine>(&self, m: &M) -> u64 {
        let mut drained = 0;
        for cpu in self.pcp.iter().filter(|cpu| cpu.pages() > 0) {
            for order in [0].into_iter().chain(LARGE_ORDERS) {
                for t in 0..TYPES {
                    drained += self.drain_list(m, cpu, order, t) << order;
                }
            }
        }
        drained
    }

    fn drain_list<M: Machine>(&self, m: &M, cpu: &PerCpu, order: u8, t: usize) -> u64 {
        let mut drained = 0;
        loop {
            let mut blocks = [Pfn(0); BATCH];
            let inside = cpu.enter_waiting(m);
            let n = cpu.take_oldest(order, t, &mut blocks);
            drop(inside);
            if n == 0 {
                return drained;
            }
            drained += n as u64;
            self.give_runs(m, order, &blocks[..n]);
        }
    }
}
