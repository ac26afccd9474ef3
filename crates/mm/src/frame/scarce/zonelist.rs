//! The zones that a request may be served from, in order of preference.

use super::page_alloc::{Goal, Reclaim, ReclaimFor};
use super::request::{AllocFlags, Request};
use super::watermark::Mark;
use crate::frame::zone::Zone;

/// Zones in order of preference.
#[derive(Clone, Copy, Debug)]
pub struct Zonelist<'z> {
    /// The zones.
    pub zones: &'z [Zone],
    /// Zone-reclaim mode: a zone below its watermark is reclaimed from before the next one is
    /// tried (R6).
    pub zone_reclaim: bool,
}

impl<'z> Zonelist<'z> {
    /// A list without zone-reclaim mode.
    pub const fn new(zones: &'z [Zone]) -> Zonelist<'z> {
        Zonelist {
            zones,
            zone_reclaim: false,
        }
    }

    /// The zones that the request's node mask and cpuset permit, and their places (R4, R24).
    pub fn permitted(self, request: Request) -> impl Iterator<Item = (usize, &'z Zone)> {
        let permits = move |zone: &Zone| request.permits(zone.node());
        (self.zones.iter().enumerate()).filter(move |(_, zone)| permits(zone))
    }

    /// Whether a zone's watermark permits a block of the request's order, reclaiming from the
    /// zone first if it does not and the mode says so (R5, R6). No lock may be held.
    pub(in crate::frame) fn permitted_by_watermark(
        &self,
        index: usize,
        zone: &Zone,
        request: &Request,
        mark: Option<Mark>,
        reclaim: Option<&mut (dyn Reclaim + '_)>,
    ) -> bool {
        let Some(mark) = mark else { return true };
        if zone.watermark_ok(request.order, mark) {
            return true;
        }
        let Some(reclaim) = reclaim else { return false };
        if !self.zone_reclaim || !request.flags.has(AllocFlags::DIRECT_RECLAIM) {
            return false;
        }
        let goal = Goal {
            zone,
            index,
            order: request.order,
            pages: request.reclaim_target(),
            round: 0,
            purpose: ReclaimFor::Zone,
        };
        reclaim.round(&goal) > 0 && zone.watermark_ok(request.order, mark)
    }
}
