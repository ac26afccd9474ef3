//! Limits and knobs that were changed while the program runs (`deckle set`).

use crate::end;
use crate::process::Process;
use core::time::Duration;
use deckle_mm::{Item, Machine, Tunables, Work};

/// Least and most pages that are reclaimed at once.
const LEAST: u64 = 32;
const PART: u64 = 1024;
/// Who has nothing to give looks so often, with such pauses, whether others get on.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

impl Process {
    /// Follows what has been changed since the last look, if anything. Who starts has it all.
    pub fn follow_settings(&self, followed: &mut Option<u32>) {
        let group = self.account.group();
        let changes = group.changes();
        if *followed == Some(changes) {
            return;
        }
        let first = followed.replace(changes).is_none();
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
        let (usage, limits) = (group.usage(), group.limits());
        if usage > limits.high {
            mm.machine().kick(Work::Reclaim);
        }
        if usage > limits.max && !first {
            let _ = group.ask_below_max(self.account.line());
        }
    }

    /// Brings usage below the limit after that was lowered: reclaims this process's part of what is
    /// too much, as all do at the same time, and has somebody killed where nobody gets on any more.
    /// Asks nobody: who asks may be asked meanwhile, and would wait for itself.
    pub fn come_below_max(&self) {
        let group = self.account.group();
        let (mut least, mut idle) = (u64::MAX, 0);
        loop {
            let inside = self.pager.gate().enter();
            let (usage, max) = (group.usage(), group.limits().max);
            if usage <= max || !group.is_current(self.account.line()) {
                break;
            }
            if self.give(self.part(usage, max)) > 0 {
                idle = 0;
                continue;
            }
            // The others may have more.
            idle = if usage < least { 0 } else { idle + 1 };
            least = least.min(usage);
            if idle > LOOKS {
                let (usage, max) = (usage * 4, max * 4);
                let what = format!("memory: usage {usage}kB, limit {max}kB, which was lowered");
                end::lowered(self, &what);
                idle = 0;
            }
            drop(inside);
            end::sleep(PAUSE);
        }
        self.publish();
    }

    /// Its part of what is too much, some of it at a time: a fork may want to begin.
    fn part(&self, usage: u64, max: u64) -> u64 {
        let stats = self.pager.mm().stats();
        let own = [Item::NrAnon, Item::NrInactive, Item::NrOpen].map(|item| stats.get(item));
        let own = own.iter().sum::<u64>().min(usage);
        let part = u128::from(usage - max) * u128::from(own) / u128::from(usage.max(1));
        u64::try_from(part).unwrap_or(PART).clamp(LEAST, PART)
    }

    /// Reclaims about `pages`, first what costs least; how many it was.
    fn give(&self, pages: u64) -> u64 {
        let mm = self.pager.mm();
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
