//! Physical memory: the bytes, and what the machine knows of each frame.
//!
//! Invariant: a frame with `maps > 0` is mapped and not at rest; `writers <= maps`.

use deckle_mm::{PAGE_SIZE, Pfn};

/// The byte that fills a frame whose content was given back.
pub const POISON: u8 = 0xa5;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameState {
    /// No bytes: free, or owned and not filled yet.
    Nothing,
    /// Bytes that no translation reaches.
    Resting,
    /// Bytes that at least one translation reaches.
    Mapped,
}

/// The machine's record of a frame.
#[derive(Clone, Copy, Default)]
pub(crate) struct Frame {
    /// Bytes at rest.
    pub resting: bool,
    /// Translations to the frame.
    pub maps: u32,
    /// Those of them that permit writing.
    pub writers: u32,
    /// Unflushed changes of translations to the frame.
    pub stale: u32,
    /// Those of them that took the right to write away.
    pub stale_writers: u32,
}

impl Frame {
    pub fn state(&self) -> FrameState {
        match (self.maps, self.resting) {
            (0, false) => FrameState::Nothing,
            (0, true) => FrameState::Resting,
            _ => FrameState::Mapped,
        }
    }
}

pub(crate) struct Frames {
    first: u32,
    meta: Vec<Frame>,
    bytes: Vec<u8>,
}

impl Frames {
    pub fn new(first: u32, frames: u32) -> Frames {
        Frames {
            first,
            meta: vec![Frame::default(); frames as usize],
            // Zeroed memory costs nothing until touched. A frame that was never filled reads
            // as poison through `content`, not as these zeros.
            bytes: vec![0; frames as usize * PAGE_SIZE],
        }
    }
    pub fn len(&self) -> u32 {
        self.meta.len() as u32
    }
    fn index(&self, pfn: Pfn) -> Option<usize> {
        let i = pfn.0.checked_sub(self.first)? as usize;
        (i < self.meta.len()).then_some(i)
    }
    /// Whether `pages` frames from `pfn` on exist.
    pub fn has(&self, pfn: Pfn, pages: u32) -> bool {
        pfn.0 >= self.first && (pfn.0 - self.first) as u64 + pages as u64 <= self.len() as u64
    }
    /// Panics if the frame does not exist; callers have checked with `has`.
    pub fn get(&mut self, pfn: Pfn) -> &mut Frame {
        let i = self.index(pfn).expect("frame inside the zone");
        &mut self.meta[i]
    }
    pub fn look(&self, pfn: Pfn) -> Option<&Frame> {
        self.index(pfn).map(|i| &self.meta[i])
    }
    pub fn all(&self) -> impl Iterator<Item = (Pfn, &Frame)> {
        let first = self.first;
        (self.meta.iter().enumerate()).map(move |(i, f)| (Pfn(first + i as u32), f))
    }
    pub fn page(&self, pfn: Pfn) -> &[u8] {
        let i = self.index(pfn).expect("frame inside the zone") * PAGE_SIZE;
        &self.bytes[i..i + PAGE_SIZE]
    }
    pub fn page_mut(&mut self, pfn: Pfn) -> &mut [u8] {
        let i = self.index(pfn).expect("frame inside the zone") * PAGE_SIZE;
        &mut self.bytes[i..i + PAGE_SIZE]
    }
    /// The bytes of the frame, or poison where it holds none.
    pub fn content(&self, pfn: Pfn) -> &[u8] {
        match self.look(pfn) {
            Some(f) if f.state() != FrameState::Nothing => self.page(pfn),
            _ => &[POISON; PAGE_SIZE],
        }
    }
    pub fn copy_page(&mut self, dst: Pfn, src: Pfn) {
        let d = self.index(dst).expect("frame inside the zone") * PAGE_SIZE;
        let s = self.index(src).expect("frame inside the zone") * PAGE_SIZE;
        self.bytes.copy_within(s..s + PAGE_SIZE, d);
    }
    /// The frame holds nothing from now on.
    pub fn empty(&mut self, pfn: Pfn) {
        self.get(pfn).resting = false;
        self.page_mut(pfn).fill(POISON);
    }
}
