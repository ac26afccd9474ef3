//! The array of frame metadata, filled 512 frames at a time.
//!
//! Unsafe code: chunks are published through atomic pointers, so that a look-up takes no
//! lock, and the array of pointers comes zeroed from the allocator, so that a sparse zone of
//! tens of millions of frames costs address space only.
#![allow(unsafe_code)]

use super::{FrameLookup, Kind, meta::FrameMeta};
use crate::platform::FrameSpan;
use crate::units::Pfn;
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

const CHUNK: usize = 512;
type Chunk = [FrameMeta; CHUNK];

/// Metadata of the frames of one span.
pub struct FrameTable {
    first: u32,
    frames: u32,
    /// `chunks` pointers, each null or a chunk that lives as long as the table.
    slots: NonNull<AtomicPtr<Chunk>>,
    chunks: usize,
    filled: AtomicU64,
}

// SAFETY: the pointer leads to an array of atomics that belongs to the table alone, and the
// chunks behind hold atomics only; both are freed by `drop`, which has the table to itself.
unsafe impl Send for FrameTable {}
// SAFETY: as above; all that happens through a shared reference is atomic.
unsafe impl Sync for FrameTable {}

impl FrameTable {
    /// A table for `span`, nothing filled. Without memory for the array of pointers (8 bytes
    /// for each 512 frames) the table covers no frame.
    pub fn new(span: FrameSpan) -> FrameTable {
        // Frame numbers end below `u32::MAX`, which means "no frame" in links.
        let frames = span.frames.min(u32::MAX - span.first.0);
        let mut table = FrameTable {
            first: span.first.0,
            frames,
            slots: NonNull::dangling(),
            chunks: 0,
            filled: AtomicU64::new(0),
        };
        if frames == 0 {
            return table;
        }
        let chunks = (frames as usize).div_ceil(CHUNK);
        let zeroed = Layout::array::<AtomicPtr<Chunk>>(chunks)
            .ok()
            .and_then(|layout| {
                // SAFETY: the layout has a size above zero, since `chunks` is.
                NonNull::new(unsafe { alloc_zeroed(layout) })
            });
        match zeroed {
            Some(p) => (table.slots, table.chunks) = (p.cast(), chunks),
            None => table.frames = 0,
        }
        table
    }

    /// The frames covered.
    pub fn span(&self) -> FrameSpan {
        FrameSpan {
            first: Pfn(self.first),
            frames: self.frames,
        }
    }

    /// Index of `pfn` in the span.
    #[inline]
    fn index(&self, pfn: Pfn) -> Option<usize> {
        let i = pfn.0.checked_sub(self.first)?;
        (i < self.frames).then_some(i as usize)
    }

    #[inline]
    fn slots(&self) -> &[AtomicPtr<Chunk>] {
        // SAFETY: `slots` leads to `chunks` pointers that `new` allocated zeroed (a null
        // pointer is all zeros, and `AtomicPtr` has the layout of a pointer), or dangles with
        // `chunks` 0; they live until `drop`.
        unsafe { core::slice::from_raw_parts(self.slots.as_ptr(), self.chunks) }
    }

    /// Metadata of a frame whose chunk is filled, whether the zone ever reached it or not.
    #[inline]
    pub(super) fn at(&self, pfn: Pfn) -> Option<&FrameMeta> {
        let i = self.index(pfn)?;
        let chunk = self.slots().get(i / CHUNK)?.load(Acquire);
        // SAFETY: a pointer in a slot is null or leads to a chunk that was published whole
        // and is freed by `drop` only.
        unsafe { chunk.as_ref() }?.get(i % CHUNK)
    }

    /// Metadata of a frame, filling its chunk first if need be. `None` outside the span, and
    /// if there is no memory for the chunk.
    pub(super) fn touch(&self, pfn: Pfn) -> Option<&FrameMeta> {
        if let Some(meta) = self.at(pfn) {
            return Some(meta);
        }
        let i = self.index(pfn)?;
        let chunk = self.fill(self.slots().get(i / CHUNK)?)?;
        // SAFETY: as in `at`.
        unsafe { &*chunk }.get(i % CHUNK)
    }

    #[cold]
    fn fill(&self, slot: &AtomicPtr<Chunk>) -> Option<*mut Chunk> {
        let layout = Layout::new::<Chunk>();
        // SAFETY: a chunk has a size above zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast::<FrameMeta>();
        for k in 0..CHUNK {
            // SAFETY: `raw` was allocated for a chunk: `CHUNK` metas, aligned for them.
            unsafe { raw.add(k).write(FrameMeta::new()) };
        }
        let new = raw.cast::<Chunk>().as_ptr();
        match slot.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => {
                self.filled.fetch_add(1, Relaxed);
                Some(new)
            }
            Err(other) => {
                // SAFETY: allocated above with this layout and never published.
                unsafe { dealloc(raw.as_ptr().cast(), layout) };
                Some(other)
            }
        }
    }

    /// Bytes of memory used for metadata, the pointers in use included.
    pub fn bytes(&self) -> u64 {
        self.filled.load(Relaxed) * (size_of::<Chunk>() + size_of::<AtomicPtr<Chunk>>()) as u64
    }
}

impl FrameLookup for FrameTable {
    #[inline]
    fn get(&self, pfn: Pfn) -> Option<&FrameMeta> {
        let meta = self.at(pfn)?;
        (meta.kind() != Kind::Untouched).then_some(meta)
    }
}

impl Drop for FrameTable {
    fn drop(&mut self) {
        for slot in self.slots() {
            let chunk = slot.load(Relaxed);
            if !chunk.is_null() {
                // SAFETY: chunks come from the global allocator with the layout that `Box`
                // uses for them; nobody else can reach this one any more.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
        if let (true, Ok(layout)) = (
            self.chunks > 0,
            Layout::array::<AtomicPtr<Chunk>>(self.chunks),
        ) {
            // SAFETY: allocated by `new` with this layout.
            unsafe { dealloc(self.slots.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mobility;
    use super::*;

    #[test]
    fn a_sparse_table_costs_only_what_is_touched() {
        let span = FrameSpan {
            first: Pfn(1024),
            frames: 24 << 20,
        };
        let table = FrameTable::new(span);
        assert_eq!(table.bytes(), 0);
        assert!(table.get(Pfn(1024)).is_none());
        let far = Pfn(1024 + (24 << 20) - 1);
        let meta = table.touch(far).unwrap();
        assert!(table.get(far).is_none(), "touched, but part of nothing");
        meta.set_folio_head(0, Mobility::Movable);
        assert!(ptr::eq(table.get(far).unwrap(), meta));
        assert!(table.bytes() > 16 << 10 && table.bytes() < 17 << 10);
        for outside in [Pfn(0), Pfn(1023), far.add(1), Pfn(u32::MAX)] {
            assert!(table.touch(outside).is_none());
            assert!(table.get(outside).is_none());
        }
    }

    #[test]
    fn spans_without_frames_and_at_the_end_of_numbers_are_harmless() {
        for (first, frames) in [(0, 0), (u32::MAX, 10), (u32::MAX - 5, u32::MAX)] {
            let table = FrameTable::new(FrameSpan {
                first: Pfn(first),
                frames,
            });
            assert!(table.touch(Pfn(u32::MAX)).is_none());
            assert_eq!(
                table.touch(Pfn(first)).is_some(),
                frames > 0 && first < u32::MAX
            );
        }
    }
}
