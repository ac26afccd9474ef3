//! The zone: frames of one span, which of them are free, and who gives them out.
//!
//! Counting, true whenever nobody is inside of a call:
//! `free_pages + cached_pages + captured_pages + allocated_pages = frames of the span`.

use super::buddy::Held;
use super::error::{NoFrame, ORDERS};
use super::meta::{CAPTURE_LISTS, FrameMeta};
use super::scarce::mobility::{Mobility, Pageblocks, TYPES};
use super::scarce::pcp::{PerCpu, Sizes};
use super::scarce::watermark::Marks;
use super::{FrameLookup, FrameTable};
use crate::atomic::{AtomicU32, AtomicU64};
use crate::machine::{LockClass, Machine};
use crate::platform::FrameSpan;
use crate::sync::Lock;
use crate::units::{MAX_ORDER, Pfn, order_pages};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// What a zone has besides its free lists. All off is a sparse zone: one that is much larger
/// than what it will ever hold, so that nothing in it is scarce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneConfig {
    /// CPUs that use it; needed for `pcp` and `capture`.
    pub cpus: usize,
    /// Per-CPU lists in front of the free lists.
    pub pcp: bool,
    /// Pageblocks of one mobility.
    pub mobility: bool,
    /// Page capture: one list for each CPU.
    pub capture: bool,
    /// Number of the memory node, 0..64.
    pub node: u8,
}

impl ZoneConfig {
    /// Everything on: for frames that are real memory, where contiguity is scarce.
    pub const fn contiguous(cpus: usize) -> ZoneConfig {
        ZoneConfig {
            cpus,
            pcp: true,
            mobility: true,
            capture: true,
            node: 0,
        }
    }
    /// On memory node `node`.
    pub const fn on_node(self, node: u8) -> ZoneConfig {
        ZoneConfig { node, ..self }
    }
}

/// Pages given out and taken back since the zone exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneEvents {
    /// Pages of folios given out.
    pub pgalloc: u64,
    /// Pages of folios taken back.
    pub pgfree: u64,
}

/// Apart from what others read all the time: a change would take the line from all CPUs.
#[repr(align(128))]
pub(super) struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// What changes with each block that comes or goes, under the lock.
pub(super) struct Counts {
    /// First free block of each type and order, `u32::MAX` for none.
    pub heads: [[AtomicU32; ORDERS]; TYPES],
    /// Blocks on each list; read by anybody.
    pub blocks: [[AtomicU64; ORDERS]; TYPES],
    /// Pages on all lists; read by anybody.
    pub listed: AtomicU64,
    /// First frame that was never part of a block.
    pub bump: AtomicU64,
    /// Pages given out and taken back, where there are no per-CPU lists.
    pub events: [AtomicU64; 2],
    /// Pages on capture lists.
    pub captured: AtomicU64,
}

/// Frames of one span and which of them are free.
pub struct Zone {
    name: &'static str,
    node: u8,
    pub(super) table: FrameTable,
    pub(super) lock: Apart<Lock<Held>>,
    pub(super) counts: Apart<Counts>,
    pub(super) end: u64,
    pub(super) pageblocks: Pageblocks,
    pub(super) pcp: Vec<PerCpu>,
    pub(super) sizes: Sizes,
    pub(super) marks: Marks,
    /// Capture lists in use: while there is one, frames that are freed pass the per-CPU lists
    /// by.
    pub(super) capturing: AtomicU32,
    /// Frames marked bad.
    pub(super) bad: AtomicU64,
}

impl Zone {
    /// A sparse zone of the frames of `span`, all free. Costs the same for any size.
    pub fn new(span: FrameSpan) -> Zone {
        Zone::with(span, ZoneConfig::default())
    }

    /// A zone of the frames of `span`, all free. Where there is no memory for a part (of the
    /// types, or of the per-CPU lists), the zone does without it.
    pub fn with(span: FrameSpan, config: ZoneConfig) -> Zone {
        let table = FrameTable::new(span);
        let span = table.span();
        let cpus = config.cpus.min(CAPTURE_LISTS);
        let mut pcp = Vec::new();
        if config.pcp && pcp.try_reserve_exact(cpus).is_ok() {
            pcp.resize_with(cpus, PerCpu::new);
        }
        let mobility = config.mobility.then(|| Pageblocks::new(span));
        let held = Held::new(if config.capture { cpus } else { 0 });
        Zone {
            name: "zone",
            node: config.node,
            table,
            lock: Apart(Lock::new(LockClass::Zone, span.first.0 as u64, held)),
            counts: Apart(Counts {
                heads: [const { [const { AtomicU32::new(u32::MAX) }; ORDERS] }; TYPES],
                blocks: [const { [const { AtomicU64::new(0) }; ORDERS] }; TYPES],
                listed: AtomicU64::new(0),
                bump: AtomicU64::new(span.first.0 as u64),
                events: [const { AtomicU64::new(0) }; 2],
                captured: AtomicU64::new(0),
            }),
            end: span.first.0 as u64 + span.frames as u64,
            pageblocks: mobility.unwrap_or(Pageblocks::none()),
            pcp,
            sizes: Sizes::of(span.frames, cpus),
            marks: Marks::new(),
            capturing: AtomicU32::new(0),
            bad: AtomicU64::new(0),
        }
    }

    /// The same zone with a name for reports.
    pub fn named(self, name: &'static str) -> Zone {
        Zone { name, ..self }
    }
    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// The memory node.
    pub fn node(&self) -> u8 {
        self.node
    }
    /// The frames of the zone.
    pub fn span(&self) -> FrameSpan {
        self.table.span()
    }
    /// Whether a frame belongs to the zone.
    pub fn contains(&self, pfn: Pfn) -> bool {
        (self.span().first.0 as u64..self.end).contains(&(pfn.0 as u64))
    }
    /// Bytes of memory used for metadata.
    pub fn metadata_bytes(&self) -> u64 {
        self.table.bytes()
    }

    // ---- allocation ----

    /// Allocates a movable folio of `order`: head with one reference, no flags, no owner.
    /// Ignores watermarks and reclaims nothing.
    #[inline]
    pub fn alloc<M: Machine>(&self, m: &M, order: u8) -> Result<Pfn, NoFrame> {
        self.alloc_as(m, order, Mobility::Movable)
    }

    /// As [`Zone::alloc`], of a mobility. Empties the per-CPU lists before it fails.
    #[inline]
    pub fn alloc_as<M: Machine>(
        &self,
        m: &M,
        order: u8,
        mobility: Mobility,
    ) -> Result<Pfn, NoFrame> {
        match self.rmqueue(m, order, mobility) {
            Some(pfn) => Ok(pfn),
            None => self.drain_and_alloc(m, order, mobility),
        }
    }

    #[cold]
    fn drain_and_alloc<M: Machine>(
        &self,
        m: &M,
        order: u8,
        mobility: Mobility,
    ) -> Result<Pfn, NoFrame> {
        if self.drain(m) > 0
            && let Some(pfn) = self.rmqueue(m, order, mobility)
        {
            return Ok(pfn);
        }
        Err(NoFrame {
            order,
            free: self.free_by_order(),
        })
    }

    /// Allocates movable folios of order 0 into `out`; returns how many there were. Takes
    /// the lock once, and again only if there were too few outside of the per-CPU lists.
    pub fn alloc_bulk<M: Machine>(&self, m: &M, out: &mut [Pfn]) -> usize {
        let mut n = self.take_bulk(m, out);
        if n < out.len() && self.drain(m) > 0 {
            n += self.take_bulk(m, &mut out[n..]);
        }
        for &pfn in &out[..n] {
            self.prepare(pfn, 0, Mobility::Movable);
        }
        n
    }

    fn take_bulk<M: Machine>(&self, m: &M, out: &mut [Pfn]) -> usize {
        let mut held = self.lock.lock(m);
        let mut n = 0;
        while n < out.len() {
            let Some(pfn) = self.take(&mut held, 0, Mobility::Movable) else {
                break;
            };
            out[n] = pfn;
            n += 1;
        }
        self.count(m.this_cpu(), n as u64, 0);
        n
    }

    /// A folio from the per-CPU or the free lists, as they are.
    #[inline]
    pub(super) fn rmqueue<M: Machine>(&self, m: &M, order: u8, mobility: Mobility) -> Option<Pfn> {
        let pfn = match self.pcp_alloc(m, order, self.kept(mobility)) {
            Some(pfn) => pfn,
            None => self.take_locked(m, order, self.kept(mobility))?,
        };
        self.prepare(pfn, order, mobility);
        Some(pfn)
    }

    /// A block from the free lists.
    fn take_locked<M: Machine>(&self, m: &M, order: u8, mobility: Mobility) -> Option<Pfn> {
        let mut held = self.lock.lock(m);
        let pfn = self.take(&mut held, order, mobility)?;
        self.count(m.this_cpu(), order_pages(order) as u64, 0);
        Some(pfn)
    }

    /// The type whose lists serve a mobility.
    #[inline]
    fn kept(&self, mobility: Mobility) -> Mobility {
        if self.pageblocks.kept() {
            mobility
        } else {
            Mobility::Movable
        }
    }

    /// Makes a folio of a block that the allocator owns: the one way out of it, for captured
    /// blocks too (R25).
    #[inline]
    pub(super) fn prepare(&self, pfn: Pfn, order: u8, mobility: Mobility) {
        if let Some(meta) = self.table.at(pfn) {
            meta.set_folio_head(order, mobility);
        }
    }

    // ---- counters ----

    /// Free pages, never used ones included; what lies on per-CPU and capture lists is not.
    pub fn free_pages(&self) -> u64 {
        let bump = self.counts.bump.load(Acquire);
        self.counts.listed.load(Relaxed) + self.end.saturating_sub(bump)
    }
    /// Pages on per-CPU lists.
    pub fn cached_pages(&self) -> u64 {
        self.pcp.iter().map(PerCpu::pages).sum()
    }
    /// Pages on capture lists (R28).
    pub fn captured_pages(&self) -> u64 {
        self.counts.captured.load(Relaxed)
    }
    /// Pages of allocated folios. Exact when nobody is inside of a call.
    pub fn allocated_pages(&self) -> u64 {
        let idle = self.free_pages() + self.cached_pages() + self.captured_pages();
        (self.span().frames as u64).saturating_sub(idle)
    }
    /// Pages given out and taken back until now.
    pub fn events(&self) -> ZoneEvents {
        let sum = |i: usize| {
            let cpus = self.pcp.iter().map(|cpu| cpu.events()[i]).sum::<u64>();
            cpus + self.counts.events[i].load(Relaxed)
        };
        ZoneEvents {
            pgalloc: sum(0),
            pgfree: sum(1),
        }
    }

    /// Counts pages given out and taken back by a CPU. Locked.
    pub(super) fn count(&self, cpu: usize, allocated: u64, freed: u64) {
        let words = self
            .pcp
            .get(cpu)
            .map_or(&self.counts.events, PerCpu::slow_events);
        for (word, n) in words.iter().zip([allocated, freed]) {
            word.store(word.load(Relaxed) + n, Relaxed);
        }
    }

    /// Free blocks of each order, never used ones included.
    pub fn free_by_order(&self) -> [u64; ORDERS] {
        let mut free = [0; ORDERS];
        for blocks in &self.counts.blocks {
            for (n, blocks) in free.iter_mut().zip(blocks) {
                *n += blocks.load(Relaxed);
            }
        }
        let mut at = self.counts.bump.load(Acquire);
        while let Some(order) = self.untouched(at) {
            let n = if order == MAX_ORDER {
                (self.end - at) >> MAX_ORDER
            } else {
                1
            };
            free[order as usize] += n;
            at += n << order;
        }
        free
    }

    /// Whether there is a free block of `order` or a larger one.
    pub(super) fn has_block(&self, order: u8) -> bool {
        let orders = order as usize..ORDERS;
        let listed =
            |b: &[AtomicU64; ORDERS]| b[orders.clone()].iter().any(|n| n.load(Relaxed) > 0);
        if self.counts.blocks.iter().any(listed) {
            return true;
        }
        let free = self.free_by_order();
        free[orders].iter().any(|n| *n > 0)
    }

    /// The type of the pageblock that a frame lies in.
    pub fn pageblock(&self, pfn: Pfn) -> Mobility {
        self.pageblocks.of(pfn)
    }

    /// The head of the block that a frame belongs to; the frame itself if it belongs to none.
    ///
    /// A block of order n starts at the frame with its lowest n bits cleared, and no head lies
    /// inside of a block: so the first head found going up is the right one if its block
    /// reaches the frame.
    pub fn head_of(&self, pfn: Pfn) -> Pfn {
        for order in 0..=MAX_ORDER {
            let at = Pfn(pfn.0 & !(order_pages(order) - 1));
            if let Some(head) = self.table.get(at).and_then(FrameMeta::head) {
                return if head.order() >= order { at } else { pfn };
            }
        }
        pfn
    }
}

impl FrameLookup for Zone {
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        self.table.get(pfn)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, span, free) = (self.name, self.span(), self.free_pages());
        write!(f, "Zone {name}: {free} of {} pages free, ", span.frames)?;
        write!(
            f,
            "from {}; by order {:?}",
            span.first,
            self.free_by_order()
        )
    }
}
