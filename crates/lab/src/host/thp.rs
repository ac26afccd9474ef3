//! The host's settings of transparent huge pages.

use std::path::{Path, PathBuf};

use super::{Guard, guard, lacks, read};
use crate::LabError;

const DIR: &str = "/sys/kernel/mm/transparent_hugepage";
/// Highest value of max_ptes_none: no limit to empty slots.
pub const MAX_PTES_NONE: u32 = 511;

/// The setting `enabled` as it is now; none on a kernel without huge pages.
pub fn enabled() -> Option<String> {
    let text = read(&Path::new(DIR).join("enabled")).ok()?;
    Some(guard::current(&text))
}

/// Settings of one kernel row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thp {
    /// `khugepaged/max_ptes_none`, also the threshold of the shrinker.
    pub max_ptes_none: u32,
    /// `shrink_underused`.
    pub shrink_underused: bool,
}

impl Thp {
    /// Sets `enabled`, `defrag` to madvise (its default) and the two values, until the guard goes.
    ///
    /// # Errors
    /// A kernel without huge pages or without the shrinker (before 6.12), or a refused value.
    pub fn set(self, guard: &mut Guard, enabled: &str) -> Result<(), LabError> {
        let dir = Path::new(DIR);
        if !dir.join("shrink_underused").exists() {
            return lacks(
                "this kernel has no shrinker for underused huge pages",
                "use Linux 6.12 or later with CONFIG_TRANSPARENT_HUGEPAGE",
            );
        }
        let none = self.max_ptes_none.to_string();
        let shrink = if self.shrink_underused { "1" } else { "0" };
        let values = [enabled, "madvise", &none, shrink];
        (files().iter().zip(values)).try_for_each(|(file, value)| guard.set(file, value))
    }
}

/// Which sizes of anonymous folios the kernel's faults may take: `enabled` of all sizes, and
/// `hugepages-<size>kB/enabled` of some; every other size is `never`.
///
/// # Errors
/// A kernel without sizes below the PMD's (before 6.8), or a refused value.
pub fn set_sizes(guard: &mut Guard, enabled: &str, sizes: &[(u32, &str)]) -> Result<(), LabError> {
    let dir = Path::new(DIR);
    if !dir.join("hugepages-64kB").exists() {
        return lacks(
            "this kernel has no anonymous folios of 64 KiB",
            "use Linux 6.8 or later with CONFIG_TRANSPARENT_HUGEPAGE",
        );
    }
    let entries = std::fs::read_dir(dir).map_err(|e| LabError::file("reading", dir, e))?;
    for entry in entries {
        let path = entry.map_err(|e| LabError::file("reading", dir, e))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let kib = name
            .strip_prefix("hugepages-")
            .and_then(|n| n.strip_suffix("kB"));
        // Some sizes are there for shared memory only.
        if let Some(kib) = kib.and_then(|kib| kib.parse::<u32>().ok())
            && path.join("enabled").exists()
        {
            let wanted = sizes.iter().find(|(size, _)| *size == kib);
            guard.set(
                &path.join("enabled"),
                wanted.map_or("never", |(_, mode)| mode),
            )?;
        }
    }
    guard.set(&dir.join("defrag"), "madvise")?;
    guard.set(&dir.join("enabled"), enabled)
}

/// Lets khugepaged rest, so that what is huge was decided by faults and calls: woken by a first
/// program it looks at one page, and then not again for weeks.
///
/// # Errors
/// A kernel without huge pages, or a refused value.
pub fn khugepaged_rests(guard: &mut Guard) -> Result<(), LabError> {
    let dir = Path::new(DIR).join("khugepaged");
    guard.set(&dir.join("pages_to_scan"), "1")?;
    guard.set(&dir.join("scan_sleep_millisecs"), "4000000000")
}

/// The files that [`Thp::set`] changes.
pub fn files() -> [PathBuf; 4] {
    [
        "enabled",
        "defrag",
        "khugepaged/max_ptes_none",
        "shrink_underused",
    ]
    .map(|name| Path::new(DIR).join(name))
}
