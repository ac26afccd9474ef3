//! Which process had best be killed when memory is out: the one whose end frees most, with its
//! `oom_score_adj` reckoned as the kernel does in a memory cgroup.

use deckle_group::{Group, LineId, Process};

/// Pages for which a process is killed rather than one that pays for what the growing process
/// shares: killing that one frees little, and charges its children anew.
const WORTH: u64 = 256;
/// Its owner wants it never to be killed.
const NEVER: i64 = -1000;

/// A process that could be killed.
struct Candidate {
    process: Process,
    /// Pages that its end frees.
    weight: u64,
    adj: i64,
    /// Pays for what the growing process shares.
    lends: bool,
}

impl Candidate {
    /// `max`: the group's limit in pages, of which `oom_score_adj` is so many thousandths.
    fn points(&self, max: u64) -> i64 {
        let max = i64::try_from(max).unwrap_or(0).min(1 << 40);
        (self.weight as i64).saturating_add(self.adj * max / 1000)
    }
}

/// The process to kill among those that `pid_of` has a pid for, in this process's namespace (0:
/// none here); what a nested `deckle run` has reserved comes last. `grower`: the process that asks
/// for memory.
pub fn choose(
    group: &Group,
    grower: Option<LineId>,
    pid_of: impl Fn(LineId) -> Option<u32>,
) -> Option<Process> {
    let lenders: Vec<LineId> = std::iter::successors(grower, |&line| group.sponsor_of(line))
        .skip(1)
        .take(64)
        .collect();
    let candidates = group.processes().filter_map(|process| {
        let pid = pid_of(process.line)?;
        Some(Candidate {
            weight: group.weight(&process),
            adj: oom_score_adj(pid),
            lends: lenders.contains(&process.line),
            process,
        })
    });
    pick(candidates.collect(), grower, group.limits().max)
}

fn pick(candidates: Vec<Candidate>, grower: Option<LineId>, max: u64) -> Option<Process> {
    let others = |c: &Candidate| !c.lends && c.adj != NEVER && c.weight >= WORTH;
    let spares = candidates.iter().any(others);
    let may = |c: &&Candidate| c.adj != NEVER && !(spares && c.lends && c.adj <= 0);
    let key = |c: &&Candidate| (c.process.service != 0, c.points(max), c.weight);
    let chosen = candidates.iter().filter(may).max_by_key(key);
    // If none may be killed the process that grows ends: it would wait for ever.
    let grows = || candidates.iter().find(|c| Some(c.process.line) == grower);
    chosen.or_else(grows).map(|c| c.process)
}

/// 0 if it cannot be read.
fn oom_score_adj(pid: u32) -> i64 {
    let text = match pid {
        0 => return 0,
        pid => std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")),
    };
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: u32, weight: u64, adj: i64, lends: bool) -> Candidate {
        let process = Process {
            pid,
            service: u32::from(pid != 3),
            ..Process::default()
        };
        Candidate {
            process,
            weight,
            adj,
            lends,
        }
    }

    fn picked<const N: usize>(of: [(u32, u64, i64, bool); N]) -> Option<u32> {
        let all = of.map(|(pid, weight, adj, lends)| candidate(pid, weight, adj, lends));
        pick(Vec::from(all), None, 16_384).map(|p| p.pid)
    }

    #[test]
    fn the_process_whose_end_frees_most_is_killed_and_oom_score_adj_is_honoured() {
        assert_eq!(picked([(1, 5000, 0, false), (2, 6000, 0, false)]), Some(2));
        // 500 thousandths of 16,384 pages are more than the difference.
        assert_eq!(picked([(1, 500, 500, false), (2, 6000, 0, false)]), Some(1));
        assert_eq!(
            picked([(1, 5000, 0, false), (2, 6000, -500, false)]),
            Some(1)
        );
        assert_eq!(
            picked([(1, 300, 0, false), (2, 6000, -1000, false)]),
            Some(1)
        );
        assert_eq!(picked([(2, 6000, -1000, false)]), None);
        // A reservation, which has no service.
        assert_eq!(picked([(1, 300, 0, false), (3, 6000, 0, false)]), Some(1));
        // The owner of what the growing process shares, unless nothing else gives anything.
        assert_eq!(picked([(1, 300, 0, false), (2, 6000, 0, true)]), Some(1));
        assert_eq!(picked([(1, 200, 0, false), (2, 6000, 0, true)]), Some(2));
        assert_eq!(picked([(1, 300, 0, false), (2, 6000, 1, true)]), Some(2));
    }
}
