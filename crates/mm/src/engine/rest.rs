//! Bytes at rest in frames: nobody can write them, since nothing is mapped, or all of it protected.

use crate::engine::Engine;
use crate::env::Env;
use crate::platform::{Platform, PlatformError};
use crate::units::{BLOCK_PAGES, FrameRun, PageMask, Pfn};

impl<E: Env> Engine<E> {
    /// Disposes of what rests in frames.
    pub(crate) fn release(&self, frames: FrameRun) {
        self.memory().release(frames);
    }

    /// The same for pages of a folio, by index.
    pub(crate) fn release_pages(&self, head: Pfn, pages: &PageMask) {
        for (start, len) in pages.runs(BLOCK_PAGES) {
            self.release(FrameRun::new(head.add(start), len));
        }
    }

    /// Which of the pages of a folio, by index, hold only zeros.
    pub(crate) fn zeros_among(&self, head: Pfn, pages: &PageMask) -> PageMask {
        let mut zero = PageMask::EMPTY;
        for (start, len) in pages.runs(BLOCK_PAGES) {
            let run = FrameRun::new(head.add(start), len);
            let found = self.memory().scan_zero(run);
            found.pages().for_each(|k| zero.set(start + k));
        }
        zero
    }

    /// Whether a frame holds only zeros.
    pub(crate) fn is_zero(&self, pfn: Pfn) -> bool {
        self.memory().scan_zero(FrameRun::new(pfn, 1)).get(0)
    }

    /// Reads frames.
    pub(crate) fn with_bytes(&self, frames: FrameRun, read: &mut dyn FnMut(&[u8])) {
        self.memory().with_bytes(frames, read);
    }

    /// Copies frames to others that hold nothing; on an error these may hold something.
    pub(crate) fn copy_frames(&self, to: FrameRun, from: Pfn) -> Result<(), PlatformError> {
        self.memory().copy(to, from).map(drop)
    }

    /// Copies frames from here and there to a folio of a block's size; zeros where there is none.
    /// On an error nothing is left in it.
    pub(crate) fn gather(&self, to: Pfn, from: &[Option<Pfn>]) -> Result<(), PlatformError> {
        let done = self.memory().gather(to, from);
        if done.is_err() {
            self.release(FrameRun::new(to, from.len() as u32));
        }
        done
    }
}
