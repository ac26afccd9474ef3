//! Memory pressure, by the same rule on all sides.
//!
//! Whenever a program holds more than a mark, as much as is above it is requested; and before its
//! memory is looked at, all that can be had.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use deckle_group::{Answer, Group, Name};

use crate::host::{cgroup::Cgroup, pss};
use crate::size::PAGE;
use crate::{LabError, Side};

/// Longest wait for one answer of a manager.
const ANSWER: Duration = Duration::from_secs(2);
/// Least time between two requests.
const PAUSE: Duration = Duration::from_millis(20);
/// After a request that gave less than this, the next one comes when memory has grown by it.
const NOTABLE: u64 = 4 << 20;
/// Requests in a row when everything is wanted.
const ROUNDS: usize = 64;

/// Memory of a run, and the pressure on it.
pub(super) struct Pressure<'a> {
    side: Side,
    root: u32,
    cgroup: Option<&'a Cgroup>,
    high: Option<u64>,
    group: Option<Group>,
    last: Option<Instant>,
    /// No request below this: the last one gave nothing.
    floor: u64,
}

/// How memory is told.
pub(super) fn gauge(cgroup: Option<&Cgroup>) -> &'static str {
    match cgroup {
        Some(_) => "charged to the cgroup",
        None => "the sum of Pss_Anon",
    }
}

impl<'a> Pressure<'a> {
    /// Pressure on the tree below `root` whenever it holds more than `high` bytes.
    pub fn new(side: Side, root: u32, cgroup: Option<&'a Cgroup>, high: Option<u64>) -> Self {
        Self {
            side,
            root,
            cgroup,
            high,
            group: None,
            last: None,
            floor: 0,
        }
    }

    /// What is held now, in bytes: anonymous memory of the tree, with whatever manages it.
    pub fn held(&self) -> Result<u64, LabError> {
        match self.cgroup {
            Some(cgroup) => cgroup.held(),
            None => pss::anon_of_tree(self.root),
        }
    }

    /// Requests memory if there is reason to; returns what is held now.
    pub fn look(&mut self) -> Result<u64, LabError> {
        let held = self.held()?;
        let rested = self.last.is_none_or(|last| last.elapsed() >= PAUSE);
        let over = held.saturating_sub(self.high.unwrap_or(u64::MAX));
        if rested && over > 0 && held > self.floor {
            self.request(over)?;
            self.last = Some(Instant::now());
            let after = self.held()?;
            self.floor = match held.saturating_sub(after) < NOTABLE {
                true => after + NOTABLE,
                false => 0,
            };
        }
        Ok(held)
    }

    /// Requests memory until there is no more to be had: two requests in a row give nothing, as a
    /// manager may spare what is new once.
    pub fn settle(&mut self) -> Result<(), LabError> {
        let mut barren = 0;
        for _ in 0..ROUNDS {
            let before = self.held()?;
            self.request(before)?;
            barren = if self.held()? < before { 0 } else { barren + 1 };
            if barren == 2 {
                break;
            }
        }
        Ok(())
    }

    fn request(&mut self, bytes: u64) -> Result<(), LabError> {
        if self.side == Side::Kernel {
            return self.cgroup.map_or(Ok(()), |cgroup| cgroup.reclaim(bytes));
        }
        if self.group.is_none() {
            self.group = group_of(self.root)?;
        }
        // Before a program is started there is no group, and nobody to be asked.
        let Some(group) = &self.group else {
            return Ok(());
        };
        let mut left = bytes.div_ceil(PAGE as u64);
        for process in group.processes() {
            if let Some(ring) = group.ask(process.line, left.min(process.charged))
                && let Answer::Freed(pages) = group.wait_answer(ring, ANSWER)
            {
                left = left.saturating_sub(pages);
            }
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The group that the processes below `root` belong to, by the name in their environment.
fn group_of(root: u32) -> Result<Option<Group>, LabError> {
    for pid in pss::tree(root)? {
        let path = PathBuf::from(format!("/proc/{pid}/environ"));
        let environ = std::fs::read(&path).unwrap_or_default();
        let name = (environ.split(|b| *b == 0)).find_map(|v| v.strip_prefix(b"DECKLE_GROUP="));
        if let Some(name) = name {
            let attached = Name::new(name).and_then(Group::attach);
            return attached.map(Some).map_err(|e| LabError::Host {
                what: format!("the manager of the run cannot be asked for memory: {e}"),
                remedy: "leave the live side out with --on".into(),
            });
        }
    }
    Ok(None)
}
