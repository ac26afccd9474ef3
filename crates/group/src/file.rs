//! The files for swapped pages, one for each process: what all of them take of the disk.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::time::Duration;

use crate::attach::Group;
use crate::line::LineId;

/// That there are files, and how they are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapFile {
    /// Most bytes that all take together; `u64::MAX`: what the disk has.
    pub bytes: u64,
    /// Compressed RAM may be so many per cent of a process's memory before it goes on to a file.
    pub ram_percent: u32,
    /// What is written is encrypted, by a key for each file that nobody keeps.
    pub encrypt: bool,
    /// Most bytes a second that all write together; 0: no limit.
    pub wbps: u64,
}

/// More than this nobody waits for the others' writes: a clock of another time namespace is not
/// believed.
const LONGEST: Duration = Duration::from_secs(10);

fn wait_until(nanos: u64, now: Duration) -> Duration {
    let wait = Duration::from_nanos(nanos).saturating_sub(now);
    if wait > LONGEST { Duration::ZERO } else { wait }
}

impl Group {
    /// Says that there are files, before any process joins.
    pub fn set_swap_file(&self, file: SwapFile) {
        self.page.file_percent.store(file.ram_percent, Relaxed);
        self.page
            .file_encrypt
            .store(u32::from(file.encrypt), Relaxed);
        self.page.file_wbps.store(file.wbps, Relaxed);
        self.page.file_bytes.store(file.bytes, Relaxed);
    }

    /// What was said; `None`: there are none.
    pub fn swap_file(&self) -> Option<SwapFile> {
        let bytes = self.page.file_bytes.load(Relaxed);
        (bytes != 0).then(|| SwapFile {
            bytes,
            ram_percent: self.page.file_percent.load(Relaxed).min(100),
            encrypt: self.page.file_encrypt.load(Relaxed) != 0,
            wbps: self.page.file_wbps.load(Relaxed),
        })
    }

    /// How long nothing may be written to any file, by the limit of bytes a second; `now` is a
    /// clock that all processes have.
    pub fn write_wait(&self, now: Duration) -> Duration {
        wait_until(self.page.file_until.load(Relaxed), now)
    }

    /// So many bytes are written at `now`: as long as they take by the limit nothing more is.
    pub fn note_writing(&self, bytes: u64, now: Duration) {
        let wbps = self.page.file_wbps.load(Relaxed);
        let takes = u128::from(bytes) * 1_000_000_000;
        let Some(takes) = takes.checked_div(wbps.into()) else {
            return;
        };
        let from = |until: u64| {
            let from = now + wait_until(until, now);
            u64::try_from(from.as_nanos() + takes).ok()
        };
        // Of several at once each takes its time.
        let _ = self.page.file_until.fetch_update(SeqCst, Relaxed, from);
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

    /// Whether there are files, which may take `bytes` more.
    pub fn has_file_room(&self, bytes: u64) -> bool {
        match self.page.file_bytes.load(Relaxed) {
            u64::MAX => true,
            most => most > 0 && self.file_bytes().saturating_add(bytes) <= most,
        }
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
