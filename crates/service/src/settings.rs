//! Limits and knobs that were changed while the program runs (`deckle set`).

use crate::account::DONATION;
use crate::end;
use crate::process::Process;
use core::time::Duration;
use deckle_mm::{Machine, Tunables, Work};

/// Most pages that are reclaimed at once: a fork may want to begin.
const MOST: u64 = 4 * DONATION;
/// So many looks others have the first turn.
const TURN: u32 = 5;
/// Who has nothing to give looks so often, with such pauses, whether others get on.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

impl Process {
    /// Follows what has been changed since the last look, if anything. Who starts has it all.
    pub fn follow_settings(&self, followed: &mut Option<u32>) {
        let group = self.account.group();
        if group.is_lowered() {
            // By its own task: also who was forked meanwhile, or whose parent is not there any more
            // to give what both share.
            let _ = group.ask_below_max(self.account.line());
        }
        let changes = group.changes();
        if followed.replace(changes) == Some(changes) {
            return;
        }
        let mm = self.pager.mm();
        let before = mm.tunables();
        // What a page holds that nobody of us wrote is left alone.
        if let Ok(now) = group.knobs() {
            let now = Tunables {
                profile: before.profile,
                ..now
            };
            if now != before {
                let _ = self.pager.set_tunables(now);
            }
        }
        if group.usage() > group.limits().high {
            mm.machine().kick(Work::Reclaim);
        }
    }

    /// Brings usage below the limit after that was lowered: those that have most reclaim, as many
    /// as it takes, and somebody is killed where nobody gets on any more. Not all of them a little:
    /// stores grow by whole segments. Waits for nobody's answer: who asks may be asked meanwhile,
    /// and would wait for itself.
    pub fn come_below_max(&self) {
        let group = self.account.group();
        if group.usage() > group.limits().max {
            // What is left to the kernel could not be reclaimed.
            self.take_left();
        }
        let (mut least, mut idle) = (u64::MAX, 0);
        loop {
            let inside = self.pager.gate().enter();
            let (usage, max) = (group.usage(), group.limits().max);
            if usage <= max || !group.is_current(self.account.line()) {
                break;
            }
            // Where those with more have nothing to give, the others begin.
            let first = idle > TURN || self.have_more() < 2 * (usage - max);
            let gave = first && self.give(usage - max) > 0;
            if gave {
                self.publish();
            }
            // What was given may have gone to somebody else: usage tells. What is shared is given
            // up at no gain until nothing is: then its owner can give it.
            let shared: u64 = group.processes().map(|p| p.shared).sum();
            let now = group.usage() + shared;
            idle = if now < least { 0 } else { idle + 1 };
            least = least.min(now);
            if gave && idle == 0 {
                continue;
            }
            if idle == LOOKS / 4 {
                // Who was forked since does not know of it, and may share what nobody can give.
                let me = self.account.line();
                for other in group.processes().filter(|p| p.line != me) {
                    let _ = group.ask_below_max(other.line);
                }
            }
            if idle > LOOKS {
                let (usage, max) = (usage * 4, max * 4);
                let what = format!("memory: usage {usage}kB, limit {max}kB, which was lowered");
                end::lowered(self, &what);
                (least, idle) = (u64::MAX, 0);
            }
            drop(inside);
            end::sleep(PAUSE);
        }
        self.publish();
    }

    /// Pages in memory of those processes that have more than this one, as they told last.
    fn have_more(&self) -> u64 {
        let (group, me) = (self.account.group(), self.account.line());
        let has = |p: &deckle_group::Process| {
            let pages = p.gauges.resident.saturating_add(p.gauges.inactive);
            (pages, p.pid)
        };
        let mine = group.processes().find(|p| p.line == me).map(|p| has(&p));
        let more = group
            .processes()
            .map(|p| has(&p))
            .filter(|of| Some(*of) > mine);
        more.fold(0, |sum, (pages, _)| sum.saturating_add(pages))
    }

    /// Reclaims about `pages`, but not little, first what costs least; how many it was.
    fn give(&self, pages: u64) -> u64 {
        let mm = self.pager.mm();
        let pages = pages.clamp(DONATION, MOST);
        self.account.stop_lending(mm);
        match mm.reclaim_gently(pages) {
            0 => {}
            freed => return freed,
        }
        match mm.reclaim_hard(pages) {
            0 => self.account.give_up_shared(mm, pages),
            freed => freed,
        }
    }
}
