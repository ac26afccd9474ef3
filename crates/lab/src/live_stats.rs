//! What the lab reads from the file that `deckle run --stats` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;

use crate::LabError;
use crate::host;

/// Figures of one live run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct LiveStats {
    /// What was counted.
    pub counters: Counters,
    /// The most that there was at one time.
    pub peak: Peak,
}

/// Counters, by the kernel's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Counters {
    /// Zero-filled pages dropped when swapped out.
    pub swpout_zero: u64,
    /// Pages written to the store.
    pub pswpout: u64,
    /// Pages read back from the store.
    pub pswpin: u64,
    /// Huge pages split.
    pub thp_split_page: u64,
    /// Huge pages split because they were underused.
    pub thp_underused_split_page: u64,
    /// Pages dropped by the shrinker that were written again soon after.
    pub thp_underused_retouch: u64,
}

/// The most at one time, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Peak {
    /// RAM that the store used.
    pub stored_bytes: u64,
    /// Memory that was charged: with the store and the manager's own, and above the limit where a
    /// charge was forced.
    pub memory_bytes: u64,
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
        serde_json::from_str(text).map_err(|e| LabError::Stats(e.to_string()))
    }
}

/// A file of a run: its settings, or its statistics. Removed when dropped.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    /// A path of its own for each; nothing is there yet.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("deckle-lab-{}-{n}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
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
        let (c, peak) = (stats.counters, stats.peak);
        assert_eq!((c.swpout_zero, c.pswpout, c.pswpin), (511, 1, 6));
        assert_eq!((peak.stored_bytes, peak.memory_bytes), (3, 8));
        let splits = (c.thp_split_page, c.thp_underused_split_page);
        assert_eq!((splits, c.thp_underused_retouch), ((7, 5), 2));
        let error = LiveStats::parse(&text.replace("pswpout", "other")).unwrap_err();
        assert!(error.to_string().contains("pswpout"), "{error}");
    }
}
