//! Why an allocation failed: what is free, what stands in the way of the blocks that came
//! closest, what reclaim has freed, and who took it.

use super::mobility::Mobility;
use super::request::{AllocFlags, Request};
use super::watermark::Mark;
use super::zonelist::Zonelist;
use crate::frame::FrameLookup;
use crate::frame::error::ORDERS;
use crate::frame::meta::{Flags, FrameMeta, Head};
use crate::frame::zone::Zone;
use crate::units::{Pfn, order_pages};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering::Acquire;

/// Candidate blocks that a report names.
const CANDIDATES: usize = 8;

/// At which step the allocation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There is no such order.
    Order,
    /// Node mask and cpuset permit no zone.
    NoZone,
    /// The free lists had none, and the request may not reclaim.
    MayNotReclaim,
    /// Reclaim did not bring it.
    Reclaimed,
}

/// A block of the wanted order and what stands in its way. Pages, which sum up to the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// First frame.
    pub pfn: Pfn,
    /// Free, on the free lists or never used.
    pub free: u32,
    /// On per-CPU or capture lists.
    pub held: u32,
    /// In use, but can be moved or reclaimed.
    pub movable: u32,
    /// In use, and cannot be moved.
    pub unmovable: u32,
    /// In use, pinned or locked in memory.
    pub pinned: u32,
}

impl Candidate {
    /// Pages that nothing can be done about.
    pub fn stuck(&self) -> u32 {
        self.unmovable + self.pinned
    }
    /// Pages in use.
    pub fn in_use(&self) -> u32 {
        self.movable + self.stuck()
    }
}

/// One zone at the time of the failure. Pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZoneReport {
    /// Name of the zone.
    pub name: &'static str,
    /// Whether node mask and cpuset permit it; if not, nothing else was looked at.
    pub permitted: bool,
    /// Free blocks of each order.
    pub free_by_order: [u64; ORDERS],
    /// Free pages.
    pub free: u64,
    /// The mark that was tested last; 0 for a request without watermarks.
    pub mark: u64,
    /// There is a block large enough, and the watermark forbids to take it.
    pub below_watermark: bool,
    /// Pages on per-CPU lists.
    pub cached: u64,
    /// Pages on capture lists.
    pub captured: u64,
    /// The blocks that came closest, the closest first: least that nothing can be done
    /// about, then least in use.
    pub candidates: Vec<Candidate>,
    /// Pages that each CPU was given meanwhile, this one included; CPUs without any left out.
    pub taken_by: Vec<(usize, u64)>,
}

/// Why there was no block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WhyFailed {
    /// The order asked for.
    pub order: u8,
    /// Where it ended.
    pub reason: Reason,
    /// Rounds of direct reclaim.
    pub rounds: u32,
    /// Pages that they freed.
    pub freed: u64,
    /// The zones; empty for a request with [`AllocFlags::NOWARN`].
    pub zones: Vec<ZoneReport>,
}

/// What happened during an allocation.
pub(in crate::frame) struct Account {
    pub freed: u64,
    rounds: u32,
    /// For each zone, pages given out by each CPU before.
    before: Vec<Vec<u64>>,
}

impl Account {
    pub(in crate::frame) fn begin(list: &Zonelist<'_>, request: &Request) -> Account {
        let quiet = request.flags.has(AllocFlags::NOWARN);
        let zones = if quiet { &[] } else { list.zones };
        Account {
            freed: 0,
            rounds: 0,
            before: zones.iter().map(given_out).collect(),
        }
    }
    pub(in crate::frame) fn round(&mut self, freed: u64) {
        self.rounds += 1;
        self.freed += freed;
    }
}

fn given_out(zone: &Zone) -> Vec<u64> {
    zone.pcp.iter().map(|cpu| cpu.events()[0]).collect()
}

impl WhyFailed {
    /// Why a request that may not reclaim would fail now; `None`: a zone has a block for it.
    pub fn now(list: &Zonelist<'_>, request: &Request) -> Option<Box<WhyFailed>> {
        let has = |(_, zone): (_, &Zone)| zone.has_block(request.order);
        let reason = Reason::MayNotReclaim;
        let find = || WhyFailed::find(list, request, reason, &Account::begin(list, request));
        (!list.permitted(*request).any(has)).then(find)
    }

    #[cold]
    pub(in crate::frame) fn find(
        list: &Zonelist<'_>,
        request: &Request,
        reason: Reason,
        account: &Account,
    ) -> Box<WhyFailed> {
        let quiet = request.flags.has(AllocFlags::NOWARN);
        let zones = if quiet { &[] } else { list.zones };
        let report = |(i, zone)| {
            let before = account.before.get(i).map_or(&[][..], Vec::as_slice);
            ZoneReport::of(zone, request, before)
        };
        Box::new(WhyFailed {
            order: request.order,
            reason,
            rounds: account.rounds,
            freed: account.freed,
            zones: zones.iter().enumerate().map(report).collect(),
        })
    }
}

impl ZoneReport {
    fn of(zone: &Zone, request: &Request, before: &[u64]) -> ZoneReport {
        let marks = zone.watermarks();
        let permitted = request.permits(zone.node());
        let has = (request.order as usize) < ORDERS && zone.has_block(request.order);
        let marked = request.mark().is_some();
        let taken_by = (given_out(zone).iter().zip(before).enumerate())
            .map(|(cpu, (now, before))| (cpu, now - before))
            .filter(|(_, n)| *n > 0)
            .collect();
        ZoneReport {
            name: zone.name(),
            permitted,
            free_by_order: zone.free_by_order(),
            free: zone.free_pages(),
            mark: if marked { marks.min } else { 0 },
            below_watermark: has && marked && !zone.watermark_ok(request.order, Mark::Min),
            cached: zone.cached_pages(),
            captured: zone.captured_pages(),
            candidates: if permitted {
                zone.candidates(request.order, CANDIDATES)
            } else {
                Vec::new()
            },
            taken_by,
        }
    }
}

impl Zone {
    /// The blocks of `order` that come closest to being free, at most `most`, and what stands
    /// in their way. Takes no lock: while others are at work the picture is blurred.
    pub fn candidates(&self, order: u8, most: usize) -> Vec<Candidate> {
        let mut best: Vec<Candidate> = Vec::new();
        if order as usize >= ORDERS || most == 0 {
            return best;
        }
        let pages = order_pages(order) as u64;
        let bump = self.counts.bump.load(Acquire);
        let mut at = (self.span().first.0 as u64).next_multiple_of(pages);
        while at + pages <= self.end && at < bump {
            let new = self.candidate(Pfn(at as u32), order);
            let key = |c: &Candidate| (c.stuck(), c.in_use());
            let place = best.partition_point(|c| key(c) <= key(&new));
            if place < most {
                best.truncate(most - 1);
                best.insert(place, new);
            }
            at += pages;
        }
        best
    }

    fn candidate(&self, pfn: Pfn, order: u8) -> Candidate {
        let mut c = Candidate {
            pfn,
            free: 0,
            held: 0,
            movable: 0,
            unmovable: 0,
            pinned: 0,
        };
        let pages = order_pages(order);
        let mut i = 0;
        while i < pages {
            let at = pfn.add(i);
            let head = self.head_of(at);
            let meta = self.table.get(head);
            let (n, what) = match meta.and_then(FrameMeta::head) {
                Some(head_is) => {
                    let end = head.0 as u64 + order_pages(head_is.order()) as u64;
                    let n = end.saturating_sub(at.0 as u64).clamp(1, (pages - i) as u64);
                    (n as u32, Some(head_is))
                }
                None => (1, None),
            };
            let stuck = |f: Flags| meta.is_some_and(|m| m.flags().any(f));
            let count = match what {
                None | Some(Head::Free(_)) => &mut c.free,
                Some(Head::Cached(_) | Head::Captured(..)) => &mut c.held,
                Some(Head::Folio(_)) if stuck(Flags::PINNED | Flags::UNEVICTABLE) => &mut c.pinned,
                Some(Head::Folio(_))
                    if meta.map(FrameMeta::mobility) == Some(Mobility::Unmovable) =>
                {
                    &mut c.unmovable
                }
                Some(Head::Folio(_)) => &mut c.movable,
            };
            *count += n;
            i += n;
        }
        c
    }
}

impl fmt::Display for WhyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no block of order {}: ", self.order)?;
        f.write_str(match self.reason {
            Reason::Order => "there is no such order",
            Reason::NoZone => "node mask and cpuset permit no zone",
            Reason::MayNotReclaim => "the free lists have none, and it may not reclaim",
            Reason::Reclaimed => "reclaim did not bring one",
        })?;
        if self.rounds > 0 {
            let (rounds, freed) = (self.rounds, self.freed);
            write!(f, "; {rounds} rounds freed {freed} pages")?;
        }
        for zone in &self.zones {
            write!(f, "\n{zone}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ZoneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.permitted {
            return write!(f, "zone {}: not permitted", self.name);
        }
        let ZoneReport {
            name,
            free,
            mark,
            cached,
            captured,
            ..
        } = self;
        write!(
            f,
            "zone {name}: {free} pages free, mark {mark}, {cached} on per-CPU lists, "
        )?;
        write!(
            f,
            "{captured} captured; free blocks by order {:?}",
            self.free_by_order
        )?;
        if self.below_watermark {
            f.write_str("; a block is free, but the watermark forbids to take it")?;
        }
        for (cpu, pages) in &self.taken_by {
            write!(f, "\n  CPU {cpu} was given {pages} pages meanwhile")?;
        }
        for c in &self.candidates {
            write!(f, "\n  {}: {} free, {} held, ", c.pfn, c.free, c.held)?;
            let (movable, unmovable, pinned) = (c.movable, c.unmovable, c.pinned);
            write!(
                f,
                "in use {movable} movable, {unmovable} unmovable, {pinned} pinned"
            )?;
        }
        Ok(())
    }
}

impl core::error::Error for WhyFailed {}
