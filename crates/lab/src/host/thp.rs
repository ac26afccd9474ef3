//! The host's settings of transparent huge pages.

use std::path::{Path, PathBuf};

use super::Guard;
use crate::LabError;

const DIR: &str = "/sys/kernel/mm/transparent_hugepage";
/// Highest value of max_ptes_none: no limit to empty slots.
pub const MAX_PTES_NONE: u32 = 511;

/// Settings of one kernel row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thp {
    /// `khugepaged/max_ptes_none`, also the threshold of the shrinker.
    pub max_ptes_none: u32,
    /// `shrink_underused`.
    pub shrink_underused: bool,
}

impl Thp {
    /// Sets `enabled` to always, `defrag` to madvise (its default) and the two values, until the
    /// guard goes.
    ///
    /// # Errors
    /// A kernel without huge pages or without the shrinker (before 6.12), or a refused value.
    pub fn set(self, guard: &mut Guard) -> Result<(), LabError> {
        let dir = Path::new(DIR);
        if !dir.join("shrink_underused").exists() {
            return Err(LabError::Host {
                what: "this kernel has no shrinker for underused huge pages".into(),
                remedy: "use Linux 6.12 or later with CONFIG_TRANSPARENT_HUGEPAGE, or leave the \
                         kernel side out with --on"
                    .into(),
            });
        }
        guard.set(&dir.join("enabled"), "always")?;
        guard.set(&dir.join("defrag"), "madvise")?;
        guard.set(
            &dir.join("khugepaged/max_ptes_none"),
            &self.max_ptes_none.to_string(),
        )?;
        guard.set(
            &dir.join("shrink_underused"),
            if self.shrink_underused { "1" } else { "0" },
        )
    }
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
