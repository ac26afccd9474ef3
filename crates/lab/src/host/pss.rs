//! Anonymous memory of a process tree without a cgroup: the sum of Pss_Anon, in which a page that
//! several processes map counts once. (RssAnon would not do: it drops when a part of a huge page is
//! unmapped although the memory stays.)

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use deckle_sys::process::same_memory;

use super::read;
use crate::LabError;

/// Sum of Pss_Anon over `root` and all its descendants, in bytes. Tasks that share one address
/// space count once. A process that ends meanwhile counts nothing.
///
/// # Errors
/// If /proc cannot be read.
pub fn anon_of_tree(root: u32) -> Result<u64, LabError> {
    of_tree(root, "Pss_Anon")
}

/// The same of AnonHugePages: what huge mappings of anonymous memory cover.
///
/// # Errors
/// If /proc cannot be read.
pub fn huge_of_tree(root: u32) -> Result<u64, LabError> {
    of_tree(root, "AnonHugePages")
}

fn of_tree(root: u32, field: &str) -> Result<u64, LabError> {
    let mut counted: Vec<u32> = Vec::new();
    let mut bytes = 0;
    for pid in tree(root)? {
        if counted.iter().any(|other| same_memory(*other, pid)) {
            continue;
        }
        let path = format!("/proc/{pid}/smaps_rollup");
        if let Ok(kib) = super::field(Path::new(&path), field) {
            bytes += kib << 10;
            counted.push(pid);
        }
    }
    Ok(bytes)
}

/// `root` and all its descendants.
///
/// # Errors
/// If /proc cannot be read.
pub fn tree(root: u32) -> Result<Vec<u32>, LabError> {
    let proc = Path::new("/proc");
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = fs::read_dir(proc).map_err(|e| LabError::file("reading", proc, e))?;
    for pid in entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
    {
        // The name in the second field may hold anything; the last ')' ends it.
        let stat = read(&proc.join(format!("{pid}/stat"))).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|p| p.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    Ok(all)
}
