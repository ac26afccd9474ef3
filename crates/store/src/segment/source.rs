//! Memory for segments.

use deckle_sys::Memory;

/// Where segments come from.
pub trait Segments: Send + Sync {
    /// Gives `bytes` (a multiple of 4096) of memory with any content; `None` when there is
    /// none. Called with a lock of the store held: it must not use the store.
    fn map(&self, bytes: usize) -> Option<Memory>;
    /// Takes a segment's memory back that came from [`map`](Self::map).
    fn unmap(&self, memory: Memory) {
        drop(memory);
    }
    /// Told when pages are encoded and are about to be kept, by whose task. Called with no lock.
    fn encoded(&self) {}
    /// Told of each segment to which nothing will be appended any more: of its bytes those of freed
    /// objects become zeros, and no others change, until `unmap` or, where it was emptied, until
    /// it is used anew.
    fn sealed(&self, _memory: &Memory) {}
}

/// Segments from the global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

impl Segments for Heap {
    fn map(&self, bytes: usize) -> Option<Memory> {
        Memory::heap(bytes)
    }
}
