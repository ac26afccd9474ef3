//! The processes of the tree, from /proc.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use deckle_group::proc::proc_stat;
use deckle_group::{Group, LineId};
use deckle_sys::clock::{self, Clock};
use deckle_sys::process::{same_memory, session_of};

use crate::procfs;

fn all_pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
}

/// Direct children of this process that have not ended.
pub fn children() -> Vec<u32> {
    let me = std::process::id();
    all_pids()
        .filter(|pid| proc_stat(*pid).is_ok_and(|s| s.parent == me && s.state != b'Z'))
        .collect()
}

/// A process, as it was seen.
#[derive(Clone, Copy)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Start time: with the pid it names a process for good.
    pub start: u64,
    /// Some thread of it has not ended.
    pub alive: bool,
}

/// Every descendant of this process, parents before their children.
pub fn descendants() -> Vec<Process> {
    let mut by_parent: HashMap<u32, Vec<Process>> = HashMap::new();
    for pid in all_pids() {
        if let Ok(s) = proc_stat(pid) {
            by_parent.entry(s.parent).or_default().push(Process {
                pid,
                parent: s.parent,
                start: s.start,
                alive: s.state != b'Z' || s.threads > 1,
            });
        }
    }
    let mut found = Vec::new();
    let mut next = vec![std::process::id()];
    while let Some(parent) = next.pop() {
        let children = by_parent.remove(&parent).unwrap_or_default();
        next.extend(children.iter().map(|p| p.pid));
        found.extend(children);
    }
    found
}

/// Anonymous pages of the tree that the limit does not hold: stacks, .bss, shared anonymous
/// memory, and all of programs without management. `known` are the pids of programs whose line
/// has another pid, of their own namespace, perhaps.
///
/// A sample. What would be a new peak is looked at twice: each look takes time, more where
/// there are few CPUs, and a process may start, fork or grow between two of its reads.
pub fn unmanaged_anon_pages(group: &Group, known: &[(u32, LineId)]) -> u64 {
    let first = look(group, known);
    if first <= group.peak_gauges().unmanaged_anon {
        return first;
    }
    first.min(look(group, known))
}

/// Of a managed process: RssAnon less what of it the limit holds, at its own charge or at that
/// of whom it shares it with since a fork, and its RssShmem. Both sides count memory that a fork
/// shares in full, so the difference is right where one of Pss_Anon would fall short. Of any
/// other process: Pss_Anon and Pss_Shmem. RssAnon may lag by a few dozen pages per CPU, and
/// memory that was charged but not used yet (a forced or a shared charge) hides as much that is
/// unmanaged.
fn look(group: &Group, known: &[(u32, LineId)]) -> u64 {
    let lines: Vec<_> = group.processes().collect();
    let services: HashSet<u32> = lines.iter().map(|p| p.service).collect();
    let here: HashMap<LineId, u32> = known.iter().map(|(pid, line)| (*line, *pid)).collect();
    let mut by_pid: HashMap<u32, &deckle_group::Process> = HashMap::new();
    let named = lines.iter().map(|p| (p.pid, p));
    let told = lines.iter().filter_map(|p| Some((*here.get(&p.line)?, p)));
    by_pid.extend(named.chain(told));
    let line_of = |pid: u32| by_pid.get(&pid).copied();
    // Which is shared memory, too, and what a sum over all lines touches.
    let page = group.used_bytes() as u64 / 1024;
    let mut sum = 0u64;
    // The trees of `deckle run` within this one: reserved here, and measured there.
    let mut inner = HashSet::new();
    for Process {
        pid, parent, start, ..
    } in descendants()
    {
        if inner.contains(&parent) || line_of(pid).is_some_and(|p| p.service == 0) {
            inner.insert(pid);
            continue;
        }
        // Counted where the memory belongs: a service has its program's, a child of vfork its
        // parent's.
        let service = services.contains(&pid) || is_service_task(pid);
        if service || same_memory(pid, parent) {
            continue;
        }
        sum += match line_of(pid) {
            Some(before) => {
                let rss = Amounts::of(pid, "status");
                let shared = match rss.kib("RssShmem:").saturating_sub(page) {
                    // Worth the price of a look at every page: who shares it, and with whom.
                    much if much > 1024 => Amounts::of(pid, "smaps_rollup").kib("Pss_Shmem:"),
                    little => little,
                };
                // It may have grown since, or be gone. One that has just joined (a forked
                // child with all its parent's memory) has not charged all of it yet.
                let held = match group.process(before.line) {
                    Some(after) if after.settled => before.held().max(after.held()),
                    _ => u64::MAX,
                };
                (rss.kib("RssAnon:") / 4).saturating_sub(held) + shared / 4
            }
            // A fork that has not announced itself yet: its memory is still its parent's. One that
            // never will has its own.
            None if line_of(parent).is_some()
                && same_program(pid, parent)
                && age(start) < YOUNG =>
            {
                0
            }
            None => {
                let pss = Amounts::of(pid, "smaps_rollup");
                // It may be managed since a moment, and have grown within the limit.
                match group.processes().any(|p| p.pid == pid) {
                    true => 0,
                    false => (pss.kib("Pss_Anon:") + pss.kib("Pss_Shmem:")) / 4,
                }
            }
        };
    }
    sum
}

/// How long a forked child may take to announce itself.
const YOUNG: Duration = Duration::from_secs(2);

/// Time since a process's start, which is in clock ticks since boot.
pub fn age(start: u64) -> Duration {
    let started = start as f64 / super::leaving::ticks_per_second();
    let now = Duration::from_nanos(clock::nanos(Clock::Boot)).as_secs_f64();
    Duration::from_secs_f64((now - started).clamp(0.0, 1e9))
}

/// A file of `/proc/PID` with amounts in kB; empty if it cannot be read.
struct Amounts(String);

impl Amounts {
    fn of(pid: u32, file: &str) -> Amounts {
        Amounts(fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default())
    }

    fn kib(&self, name: &str) -> u64 {
        procfs::kib(&self.0, name)
    }
}

/// Whether two processes execute one file.
fn same_program(a: u32, b: u32) -> bool {
    let exe = |pid| fs::read_link(format!("/proc/{pid}/exe")).ok();
    exe(a).is_some() && exe(a) == exe(b)
}

/// Name of a service.
const TASK_NAME: &str = "deckle";

/// Whether `pid` is a service: by its name and its own session, and not another `deckle run`,
/// which has the name too. For those that have not sent, or will never send, a message.
pub fn is_service_task(pid: u32) -> bool {
    procfs::comm(pid) == TASK_NAME
        && session_of(pid) == pid
        && !same_program(pid, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_ones_own_and_not_the_parents() {
        let me = std::process::id();
        assert!(same_memory(me, me));
        assert!(!same_memory(me, std::os::unix::process::parent_id()));
        assert!(!is_service_task(me));
        assert!(Amounts::of(me, "status").kib("RssAnon:") > 0);
    }
}
