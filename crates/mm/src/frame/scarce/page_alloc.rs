//! An allocation from start to end: the fast path over the zones, direct reclaim with capture,
//! and the reason if it fails.

use super::capture::Capture;
use super::request::{AllocFlags, Cpuset, Request};
use super::watermark::Mark;
use super::why::{Account, Reason, WhyFailed};
use super::zonelist::Zonelist;
use crate::frame::zone::Zone;
use crate::machine::{Machine, Site, Work};
use crate::units::{MAX_ORDER, Pfn, order_pages};
use alloc::boxed::Box;

/// Pages that a round of reclaim frees (SWAP_CLUSTER_MAX of Linux).
const CLUSTER: u64 = 32;
/// Orders up to this one are tried again and again while reclaim gets somewhere.
const COSTLY: u8 = 3;
/// Passes of reclaim for them (MAX_RECLAIM_RETRIES of Linux).
const PASSES: u32 = 16;
/// Times that an allocation about to fail gives way to others who hold captured pages. A list
/// lives for a round of reclaim, so that this ends much earlier.
const GIVE_WAY: u32 = 1000;

/// On whose behalf memory is reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReclaimFor {
    /// Somebody waits for it: the only one that captures (R11).
    Direct,
    /// Nobody waits (kswapd).
    Background,
    /// A zone is below its mark, and the mode says to reclaim from it before the next one.
    Zone,
}

/// What one round of reclaim is for.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'z> {
    /// The zone.
    pub zone: &'z Zone,
    /// Its place in the list of zones.
    pub index: usize,
    /// The order of the block that is wanted.
    pub order: u8,
    /// Pages to free in this round.
    pub pages: u64,
    /// Number of the round in this pass, from 0.
    pub round: u32,
    /// On whose behalf.
    pub purpose: ReclaimFor,
}

/// Whoever can free pages of a zone.
pub trait Reclaim {
    /// One round: frees about `goal.pages` pages of `goal.zone` with [`Zone::free`] or
    /// [`Zone::free_bulk`]; returns how many. 0: there is nothing to be had. Called with no
    /// lock held.
    fn round(&mut self, goal: &Goal<'_>) -> u64;

    /// Where the task may have memory by now: who waited for reclaim may have been moved to
    /// another cpuset meanwhile.
    fn cpuset(&self, request: &Request) -> Cpuset {
        request.cpuset
    }

    /// Whether moving pages may form a block of the goal's order.
    fn begin_compaction(&mut self, _goal: &Goal<'_>) -> bool {
        false
    }

    /// A step of compaction: moves pages so that the block becomes free. False: there is
    /// nothing more to be had. Called with no lock held.
    fn compact(&mut self, _goal: &Goal<'_>) -> bool {
        false
    }

    /// The compaction is over, with or without the block; what it holds goes back.
    fn end_compaction(&mut self, _goal: &Goal<'_>, _success: bool) {}
}

/// A block that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocated {
    /// Its first frame: the head of a folio with one reference, no flags and no owner.
    pub pfn: Pfn,
    /// The place of its zone in the list.
    pub zone: usize,
    /// It came from the capture list of this allocation, not from the free lists.
    pub captured: bool,
}

impl Request {
    /// Pages that one pass of direct reclaim frees of a zone.
    pub(in crate::frame) fn reclaim_target(&self) -> u64 {
        match self.reclaim_pages {
            0 => (2 * order_pages(self.order.min(MAX_ORDER)) as u64).max(CLUSTER),
            n => n,
        }
    }
}

/// Allocates a block from one of the zones.
///
/// Without a reclaimer, or the flag for it, the free lists are all there is. With both: passes
/// of reclaim over each permitted zone, in rounds of about 32 pages. After each round the
/// capture list is looked at, if the order is one that captures, then the free lists. Errors:
/// why there is no block. No lock may be held.
pub fn alloc_pages<M: Machine>(
    m: &M,
    list: &Zonelist<'_>,
    request: &Request,
    mut reclaim: Option<&mut (dyn Reclaim + '_)>,
) -> Result<Allocated, Box<WhyFailed>> {
    let fast = from_lists(m, list, request, request.mark(), reclaim.as_deref_mut());
    match fast {
        Some(found) => Ok(found),
        None => slow(m, list, request, reclaim),
    }
}

/// Another look at the free lists, those of the CPUs given back before or not.
type Again<'a> = dyn Fn(&Request, bool) -> Option<Allocated> + 'a;

/// What is asked for after a wait.
fn by_now(reclaim: &(dyn Reclaim + '_), request: &Request) -> Request {
    let cpuset = reclaim.cpuset(request);
    Request { cpuset, ..*request }
}

/// A block from the free lists of the first zone that permits it and whose watermark does.
fn from_lists<M: Machine>(
    m: &M,
    list: &Zonelist<'_>,
    request: &Request,
    mark: Option<Mark>,
    mut reclaim: Option<&mut (dyn Reclaim + '_)>,
) -> Option<Allocated> {
    for (index, zone) in list.permitted(*request) {
        if !list.permitted_by_watermark(index, zone, request, mark, reclaim.as_deref_mut()) {
            continue;
        }
        if let Some(pfn) = zone.rmqueue(m, request.order, request.mobility) {
            return Some(Allocated {
                pfn,
                zone: index,
                captured: false,
            });
        }
    }
    None
}

#[cold]
fn slow<M: Machine>(
    m: &M,
    list: &Zonelist<'_>,
    request: &Request,
    reclaim: Option<&mut (dyn Reclaim + '_)>,
) -> Result<Allocated, Box<WhyFailed>> {
    let fail = |reason, account: &Account| Err(WhyFailed::find(list, request, reason, account));
    let mut account = Account::begin(list, request);
    if request.order > MAX_ORDER {
        return fail(Reason::Order, &account);
    }
    if list.permitted(*request).next().is_none() {
        return fail(Reason::NoZone, &account);
    }
    if request.flags.has(AllocFlags::KSWAPD) {
        m.kick(Work::Reclaim);
    }
    let mark = request.mark().map(|_| Mark::Min);
    let again = |request: &Request, drain: bool| {
        if drain {
            list.permitted(*request).for_each(|(_, zone)| {
                zone.drain(m);
            });
        }
        from_lists(m, list, request, mark, None)
    };
    if let Some(found) = again(request, false).or_else(|| again(request, true)) {
        return Ok(found);
    }
    let Some(reclaim) = reclaim.filter(|_| request.flags.has(AllocFlags::DIRECT_RECLAIM)) else {
        return fail(Reason::MayNotReclaim, &account);
    };
    // What is free already only lies in the wrong places: no page has to go for it.
    if request.order > COSTLY
        && let Some(found) = compacted(m, list, request, reclaim, &again)
    {
        return Ok(found);
    }
    let patient = request.order <= COSTLY || request.flags.has(AllocFlags::RETRY_MAYFAIL);
    let passes = if patient && !request.flags.has(AllocFlags::NORETRY) {
        PASSES
    } else {
        1
    };
    for _ in 0..passes {
        let before = account.freed;
        for (index, zone) in list.permitted(*request) {
            if let Some(found) = pass(m, index, zone, request, reclaim, &mut account, &again) {
                return Ok(found);
            }
        }
        if account.freed == before {
            break;
        }
    }
    if request.order > 0
        && let Some(found) = compacted(m, list, request, reclaim, &again)
    {
        return Ok(found);
    }
    let request = &by_now(reclaim, request);
    match give_way(m, list, request, &again).or_else(|| again(request, true)) {
        Some(found) => Ok(found),
        None => fail(Reason::Reclaimed, &account),
    }
}

/// Pages that others hold captured are as good as free in a moment: nobody fails because of them
/// who would not have failed without capture (R30).
fn give_way<M: Machine>(
    m: &M,
    list: &Zonelist<'_>,
    request: &Request,
    again: &Again<'_>,
) -> Option<Allocated> {
    let captured = |(_, zone): (_, &Zone)| zone.captured_pages() > 0;
    (0..GIVE_WAY)
        .take_while(|_| list.permitted(*request).any(captured))
        .find_map(|_| {
            m.preempt(Site::ReclaimRound);
            again(request, false)
        })
}

/// After a round: the block that was wanted, from the capture list or the free lists.
fn look<M: Machine>(
    m: &M,
    index: usize,
    zone: &Zone,
    request: &Request,
    capture: &mut Option<Capture<'_, M>>,
    again: &Again<'_>,
) -> Option<Allocated> {
    if request.order > COSTLY {
        // Before the list is looked at: what lies on the per-CPU lists next to a captured
        // block joins it now, or is lost with the block when the rest is given back.
        zone.drain(m);
    }
    let permit = |zone: &Zone| {
        // The block is outside of the counters already: the test is for a page (R22). Where it may
        // come from may have changed since reclaim began.
        let mark = request.mark().map(|_| Mark::Min);
        request.permits(zone.node()) && mark.is_none_or(|mark| zone.watermark_ok(0, mark))
    };
    if let Some(capture) = capture
        && let Some(pfn) = capture.consult(request.mobility, permit)
    {
        return Some(Allocated {
            pfn,
            zone: index,
            captured: true,
        });
    }
    again(request, false)
}

/// Direct compaction of the zones in turn.
fn compacted<M: Machine>(
    m: &M,
    list: &Zonelist<'_>,
    request: &Request,
    reclaim: &mut (dyn Reclaim + '_),
    again: &Again<'_>,
) -> Option<Allocated> {
    list.permitted(*request)
        .find_map(|(index, zone)| compact_zone(m, index, zone, request, reclaim, again))
}

/// Direct compaction of a zone: block by block, until one is found or there are no more.
fn compact_zone<M: Machine>(
    m: &M,
    index: usize,
    zone: &Zone,
    request: &Request,
    reclaim: &mut (dyn Reclaim + '_),
    again: &Again<'_>,
) -> Option<Allocated> {
    let mut goal = Goal {
        zone,
        index,
        order: request.order,
        pages: order_pages(request.order) as u64,
        round: 0,
        purpose: ReclaimFor::Direct,
    };
    if !reclaim.begin_compaction(&goal) {
        return None;
    }
    let mut capture = zone.begin_capture(m, request.order);
    let found = loop {
        let more = reclaim.compact(&goal);
        m.preempt(Site::ReclaimRound);
        let request = &by_now(reclaim, request);
        let found = look(m, index, zone, request, &mut capture, again);
        if found.is_some() || !more {
            break found;
        }
        goal.round += 1;
    };
    drop(capture);
    reclaim.end_compaction(&goal, found.is_some());
    found
}

/// One pass of direct reclaim over a zone.
fn pass<M: Machine>(
    m: &M,
    index: usize,
    zone: &Zone,
    request: &Request,
    reclaim: &mut (dyn Reclaim + '_),
    account: &mut Account,
    again: &Again<'_>,
) -> Option<Allocated> {
    let target = request.reclaim_target();
    let mut capture = zone.begin_capture(m, request.order);
    let mut freed = 0;
    let mut round = 0;
    while freed < target {
        let goal = Goal {
            zone,
            index,
            order: request.order,
            pages: CLUSTER.min(target - freed),
            round,
            purpose: ReclaimFor::Direct,
        };
        let got = reclaim.round(&goal);
        account.round(got);
        m.preempt(Site::ReclaimRound);
        let request = &by_now(reclaim, request);
        if let Some(found) = look(m, index, zone, request, &mut capture, again) {
            return Some(found);
        }
        if got == 0 {
            break;
        }
        freed += got;
        round += 1;
    }
    None
}
