//! Direct compaction and reclaim for the frames of a huge page, with page capture.
//!
//! Only where frame numbers are memory: on live memory a block of them is never what is
//! short. And only for who asked for huge pages by advice and may wait (the kernel's
//! `defrag` set to `madvise`, its default): everybody else takes smaller folios.

use crate::charge::Charge;
use crate::compact::Compaction;
use crate::engine::folio::AllocError;
use crate::engine::pressure::Who;
use crate::engine::step::FaultMode;
use crate::env::Env;
use crate::frame::{
    AllocFlags, CapturePolicy, CaptureStats, Cpuset, Goal, NodeMask, Reclaim, Request, Zonelist,
    alloc_pages,
};
use crate::machine::OnMachine;
use crate::mm::Mm;
use crate::stat::Item;
use crate::table::vma::{ThpAdvice, Vma};
use crate::units::{BLOCK_ORDER, Pfn, SpaceId, Vpn, order_pages};

/// Where a huge page that somebody waits for may come from (R4, R6, R24).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Nodes that the program's memory policy allows.
    pub nodes: NodeMask,
    /// Its cpuset. Pages of programs honour it strictly.
    pub cpuset: Cpuset,
    /// `zone_reclaim_mode`: a zone below its mark is reclaimed from before anything else is tried.
    pub zone_reclaim: bool,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement {
            nodes: NodeMask::ALL,
            cpuset: Cpuset::ALL,
            zone_reclaim: false,
        }
    }
}

/// The manager as what frees pages of a zone.
struct Rounds<'a, E: Env> {
    mm: &'a Mm<E>,
    compaction: Option<Compaction>,
}

impl<E: Env> Reclaim for Rounds<'_, E> {
    fn round(&mut self, goal: &Goal<'_>) -> u64 {
        let freed = self.mm.reclaim_round(goal.pages, Who::Direct);
        self.mm.count_captures();
        freed
    }

    fn cpuset(&self, _: &Request) -> Cpuset {
        self.mm.placement().cpuset
    }

    fn begin_compaction(&mut self, goal: &Goal<'_>) -> bool {
        self.compaction = self.mm.compact_begin(goal.zone, goal.order);
        self.compaction.is_some()
    }

    fn compact(&mut self, goal: &Goal<'_>) -> bool {
        let scanners = self.compaction.as_mut();
        let more = scanners.is_some_and(|c| self.mm.compact_block(goal.zone, c));
        self.mm.count_captures();
        more
    }

    fn end_compaction(&mut self, goal: &Goal<'_>, success: bool) {
        if let Some(mut c) = self.compaction.take() {
            self.mm.compact_end(goal.zone, &mut c);
            self.mm.compact_outcome(goal.order, success);
        }
    }
}

/// What a fault wants a huge page for.
pub struct Want<'a> {
    /// Where it lies.
    pub vma: &'a Vma,
    /// Whether the fault may wait.
    pub mode: FaultMode,
    /// Its space and first page.
    pub owner: (SpaceId, Vpn),
}

impl Want<'_> {
    /// Whether it is worth a wait: asked for by advice, and by who may.
    fn may_wait(&self) -> bool {
        self.vma.advice == ThpAdvice::Huge && self.mode == FaultMode::MayWait
    }
}

impl<E: Env> Mm<E> {
    /// A second try at a folio that was refused: reclaims for it, if it is a huge page that
    /// lacked frames and the fault may wait for it. No lock is held.
    pub(crate) fn reclaim_for_huge(
        &self,
        failed: AllocError,
        want: Want<'_>,
    ) -> Result<Pfn, AllocError> {
        let AllocError::NoFrame { order } = failed else {
            return Err(failed);
        };
        if order < BLOCK_ORDER || !want.may_wait() {
            return Err(failed);
        }
        let pages = order_pages(order) as u64;
        self.charge()
            .try_charge(pages)
            .map_err(AllocError::Charge)?;
        self.stats().add(Item::Allocstall, 1);
        let zones = core::slice::from_ref(self.zone_for(order));
        let placement = self.placement();
        let request = Request {
            nodes: placement.nodes,
            cpuset: placement.cpuset,
            ..Request::new(order).with_flags(AllocFlags::HUGE)
        };
        let list = Zonelist {
            zones,
            zone_reclaim: placement.zone_reclaim,
        };
        let mut rounds = Rounds {
            mm: self,
            compaction: None,
        };
        let got = alloc_pages(self.machine(), &list, &request, Some(&mut rounds));
        self.count_captures();
        match got {
            Ok(got) => {
                self.meta(got.pfn).set_refs(1);
                self.meta(got.pfn).set_owner(want.owner.0, want.owner.1);
                self.count_folio(order);
                Ok(got.pfn)
            }
            Err(_) => {
                self.charge().uncharge(pages);
                Err(failed)
            }
        }
    }

    /// Brings the counters of page capture up to date.
    fn count_captures(&self) {
        let done = self.capture_stats();
        let pages = done.own + done.absorbed + done.joined;
        self.stats().set(Item::CaptureBegin, done.begun);
        self.stats().set(Item::CaptureSuccess, done.successes);
        self.stats().set(Item::CapturePages, pages);
        self.stats().set(Item::NrCaptured, done.now);
    }

    /// Where huge pages that are waited for may come from.
    pub fn placement(&self) -> Placement {
        *self.placement.lock(self.machine())
    }

    /// Sets it, for whoever waits now, too.
    pub fn set_placement(&self, placement: Placement) {
        *self.placement.lock(self.machine()) = placement;
    }

    /// Sets how page capture works in the zone that serves huge pages.
    pub fn set_capture(&self, policy: CapturePolicy) {
        let zone = self.zone_for(BLOCK_ORDER);
        zone.set_capture(self.machine(), policy);
    }

    /// What page capture has done in the zone that serves huge pages (R28).
    pub fn capture_stats(&self) -> CaptureStats {
        self.zone_for(BLOCK_ORDER).capture_stats(self.machine())
    }
}
