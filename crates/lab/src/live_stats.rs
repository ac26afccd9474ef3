//! What the lab reads from the file that `deckle run --stats` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::LabError;
use crate::host;

/// JSON pointers of the figures: counters have the kernel's names.
const ZERO_PAGES: &str = "/counters/swpout_zero";
const STORED_PAGES: &str = "/counters/pswpout";
const STORED_BYTES: &str = "/peak/stored_bytes";
const MEMORY_BYTES: &str = "/peak/memory_bytes";
const READ_PAGES: &str = "/counters/pswpin";
const MAJOR_FAULTS: &str = "/counters/pgmajfault";
const SPLITS: &str = "/counters/thp_split_page";
const UNDERUSED_SPLITS: &str = "/counters/thp_underused_split_page";
const RETOUCHES: &str = "/counters/thp_underused_retouch";

/// Figures of one live run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveStats {
    /// Zero-filled pages dropped when swapped out.
    pub zero_pages: u64,
    /// Pages written to the store.
    pub stored_pages: u64,
    /// The most RAM that the store used, in bytes.
    pub stored_bytes: u64,
    /// The most memory that was charged at one time, in bytes: with the store and the manager's
    /// own, and above the limit where a charge was forced.
    pub memory_bytes: u64,
    /// Pages read back from the store.
    pub read_pages: u64,
    /// Faults that had to wait for that.
    pub major_faults: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Huge pages split because they were underused.
    pub underused_splits: u64,
    /// Pages dropped by the shrinker that were written again soon after.
    pub retouches: u64,
}

impl LiveStats {
    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read, is no JSON, or lacks a figure.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        Self::parse(&host::read(path)?)
    }

    /// Parses the file's text.
    ///
    /// # Errors
    /// If it is no JSON or lacks a figure.
    pub fn parse(text: &str) -> Result<Self, LabError> {
        let json: Value =
            serde_json::from_str(text).map_err(|e| LabError::Stats(format!("not JSON: {e}")))?;
        let number = |at: &str| {
            json.pointer(at)
                .and_then(Value::as_u64)
                .ok_or_else(|| LabError::Stats(format!("no number at {at}")))
        };
        Ok(Self {
            zero_pages: number(ZERO_PAGES)?,
            stored_pages: number(STORED_PAGES)?,
            stored_bytes: number(STORED_BYTES)?,
            memory_bytes: number(MEMORY_BYTES)?,
            read_pages: number(READ_PAGES)?,
            major_faults: number(MAJOR_FAULTS)?,
            splits: number(SPLITS)?,
            underused_splits: number(UNDERUSED_SPLITS)?,
            retouches: number(RETOUCHES)?,
        })
    }
}

/// Where a live run writes its statistics; removed when dropped.
pub(crate) struct StatsFile(PathBuf);

impl StatsFile {
    /// A path of its own for each; nothing is there yet.
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("deckle-lab-stats-{}-{n}.json", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for StatsFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r149_live_figures_come_from_the_statistics_file() {
        let text = r#"{"schema":1,"peak":{"resident_bytes":9,"stored_bytes":3,"memory_bytes":8},
            "counters":{"swpout_zero":511,"pswpout":1,"pswpin":6,"pgmajfault":4,
            "thp_split_page":7,
            "thp_underused_split_page":5,"swpin_zero":9,"thp_underused_retouch":2}}"#;
        let stats = LiveStats::parse(text).unwrap();
        assert_eq!(
            (stats.zero_pages, stats.stored_pages, stats.stored_bytes),
            (511, 1, 3)
        );
        assert_eq!(
            (stats.memory_bytes, stats.read_pages, stats.major_faults),
            (8, 6, 4)
        );
        assert_eq!(
            (stats.splits, stats.underused_splits, stats.retouches),
            (7, 5, 2)
        );
        let error = LiveStats::parse(&text.replace("pswpout", "other")).unwrap_err();
        assert!(error.to_string().contains("/counters/pswpout"), "{error}");
    }
}
