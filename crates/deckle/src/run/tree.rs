//! The processes of the tree, from /proc.

use std::collections::HashMap;
use std::fs;

use deckle_group::Group;
use deckle_group::sys::proc_stat;

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

/// Every descendant of this process.
fn descendants() -> Vec<u32> {
    let mut by_parent: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in all_pids() {
        if let Ok(s) = proc_stat(pid) {
            by_parent.entry(s.parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![std::process::id()];
    while let Some(parent) = next.pop() {
        let children = by_parent.remove(&parent).unwrap_or_default();
        found.extend(&children);
        next.extend(children);
    }
    found
}

/// Anonymous pages of the tree that the limit does not hold: stacks, .bss, shared anonymous
/// memory, and all of programs without management. Measured, not counted: resident anonymous
/// and shared memory as the kernel sees it, less what is managed.
pub fn unmanaged_anon_pages(group: &Group) -> u64 {
    let lines: Vec<_> = group.processes().collect();
    let services: Vec<u32> = lines.iter().map(|p| p.service).collect();
    let mut sum = 0u64;
    for pid in descendants() {
        // A service has its program's memory: counted there.
        if services.contains(&pid) {
            continue;
        }
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            line.and_then(|v| v.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        let anon = (kib("RssAnon:") + kib("RssShmem:")) / 4;
        let managed = lines.iter().find(|p| p.pid == pid);
        let managed = managed.map_or(0, |p| p.gauges.resident + p.gauges.stored_pages);
        sum += anon.saturating_sub(managed);
    }
    sum
}
