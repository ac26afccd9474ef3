//! Which process is killed at the limit.
//!
//! `points.rs` names one. If the supervisor does not know that process, or it does not die of
//! SIGKILL (in a frozen cgroup, in a device's uninterruptible sleep), the best one of the others
//! is taken: they must not wait for ever.

use std::time::{Duration, Instant};

use deckle_group::LineId;

/// How long a process has to die, or to say hello.
const PATIENCE: Duration = Duration::from_secs(1);

/// The processes that are being killed.
#[derive(Default)]
pub struct Victims {
    /// The last one, and since when.
    dying: Option<(LineId, Instant)>,
    /// A process that was named and is not known, and since when.
    unknown: Option<(LineId, Instant)>,
    /// Those that have not died.
    stuck: Vec<LineId>,
}

impl Victims {
    /// Whether the process of `line` is the last one that was killed.
    pub fn is_dying(&self, line: LineId) -> bool {
        self.dying.is_some_and(|(last, _)| last == line)
    }

    /// The process of `line` was sent SIGKILL.
    pub fn killed(&mut self, line: LineId, now: Instant) {
        self.dying = Some((line, now));
    }

    /// The process to kill: `named`, or where that cannot be, what `choose` says of those for which
    /// its argument does, which are `known` and can die. `None`: another has time still to die,
    /// or to say hello.
    pub fn next(
        &mut self,
        named: LineId,
        known: &[LineId],
        now: Instant,
        choose: impl FnOnce(&dyn Fn(LineId) -> bool) -> Option<LineId>,
    ) -> Option<LineId> {
        self.stuck.retain(|line| known.contains(line));
        if let Some((line, since)) = self.dying
            && known.contains(&line)
            && !self.stuck.contains(&line)
        {
            if now < since + PATIENCE {
                return None;
            }
            self.stuck.push(line);
        }
        if known.contains(&named) && !self.stuck.contains(&named) {
            return Some(named);
        }
        if !known.contains(&named) {
            let last = self.unknown.filter(|(line, _)| *line == named);
            let (_, since) = *self.unknown.insert(last.unwrap_or((named, now)));
            if now < since + PATIENCE {
                return None;
            }
        }
        choose(&|line| known.contains(&line) && !self.stuck.contains(&line))
    }
}

#[cfg(test)]
#[path = "../../tests/unit/victim.rs"]
mod tests;
