//! The files for swapped pages, one for each process: what all of them take of the disk.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::attach::Group;
use crate::line::LineId;

/// That there are files, and how they are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapFile {
    /// Most bytes that all take together; `u64::MAX`: what the disk has.
    pub bytes: u64,
    /// Compressed RAM may be so many per cent of a process's memory before it goes on to a file.
    pub ram_percent: u32,
}

impl Group {
    /// Says that there are files, before any process joins.
    pub fn set_swap_file(&self, file: SwapFile) {
        self.page.file_percent.store(file.ram_percent, Relaxed);
        self.page.file_bytes.store(file.bytes, Relaxed);
    }

    /// What was said; `None`: there are none.
    pub fn swap_file(&self) -> Option<SwapFile> {
        let bytes = self.page.file_bytes.load(Relaxed);
        (bytes != 0).then(|| SwapFile {
            bytes,
            ram_percent: self.page.file_percent.load(Relaxed).min(100),
        })
    }

    /// Charges the process of `line` with `bytes` of its file; false: all may not have so much.
    pub fn charge_file(&self, line: LineId, bytes: u64) -> bool {
        let most = self.page.file_bytes.load(Relaxed);
        let Some(line) = self.line(line) else {
            return false;
        };
        // Of two at once that are too much together both may be refused, never neither.
        line.filed.fetch_add(bytes, SeqCst);
        let fits = most == u64::MAX || self.file_bytes() <= most;
        if !fits {
            line.filed.fetch_sub(bytes, SeqCst);
        }
        fits
    }

    /// Gives so much of it back.
    pub fn uncharge_file(&self, line: LineId, bytes: u64) {
        if let Some(line) = self.line(line) {
            let less = |now: u64| Some(now.saturating_sub(bytes));
            let _ = line.filed.fetch_update(SeqCst, SeqCst, less);
        }
    }

    /// Others have the file of the process of `line`, the oldest of them by its fork of this
    /// number; `None`: nobody has. For `deckle run`, before who gets it does.
    pub fn note_file_holders(&self, line: LineId, oldest: Option<u64>) {
        if let Some(line) = self.line(line) {
            line.file_holders.store(oldest.unwrap_or(0), SeqCst);
        }
    }

    /// What was noted.
    pub fn file_holders(&self, line: LineId) -> Option<u64> {
        let oldest = self.line(line)?.file_holders.load(SeqCst);
        (oldest != 0).then_some(oldest)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        let each = self.lines().iter().map(|line| line.filed.load(SeqCst));
        each.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
#[path = "../tests/unit/file.rs"]
mod tests;
