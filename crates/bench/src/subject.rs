//! What is measured: allocators of frames behind one face.

use crate::machine::Threads;
use buddy_system_allocator::LockedFrameAllocator;
use deckle_mm::Pfn;
use deckle_mm::frame::{Zone, ZoneConfig};
use deckle_mm::platform::FrameSpan;

/// An allocator of blocks of 2^order frames, for several threads.
pub trait Subject: Sync {
    /// Name in the table.
    fn name(&self) -> &'static str;
    /// The first frame of a block; `None` if there is none.
    fn get(&self, order: u8) -> Option<u32>;
    /// Takes a block back that `get` gave out.
    fn put(&self, frame: u32, order: u8);
    /// Gives back what is kept for each CPU, so that all of memory can be had by anyone.
    fn settle(&self) {}
}

/// The core's zone.
pub struct Deckle {
    zone: Zone,
    machine: Threads,
}

impl Deckle {
    /// A zone of `frames` frames for `cpus` CPUs.
    pub fn new(frames: u32, cpus: usize) -> Deckle {
        let span = FrameSpan {
            first: Pfn(0),
            frames,
        };
        Deckle {
            zone: Zone::with(span, ZoneConfig::contiguous(cpus)),
            machine: Threads { nr: cpus },
        }
    }
}

impl Subject for Deckle {
    fn name(&self) -> &'static str {
        "deckle"
    }
    #[inline]
    fn get(&self, order: u8) -> Option<u32> {
        self.zone.alloc(&self.machine, order).ok().map(|p| p.0)
    }
    #[inline]
    fn put(&self, frame: u32, order: u8) {
        let freed = self.zone.free(&self.machine, Pfn(frame), order);
        assert!(freed.is_ok(), "{freed:?}");
    }
    fn settle(&self) {
        self.zone.drain(&self.machine);
    }
}

/// `buddy_system_allocator`, behind its own spin lock. Its largest order is its default: with
/// a smaller one it loses two blocks of the top order that meet.
pub struct BuddySystem(LockedFrameAllocator<33>);

impl BuddySystem {
    /// An allocator of `frames` frames.
    pub fn new(frames: u32) -> BuddySystem {
        let all = LockedFrameAllocator::new();
        all.lock().add_frame(0, frames as usize);
        BuddySystem(all)
    }
}

impl Subject for BuddySystem {
    fn name(&self) -> &'static str {
        "buddy_system_allocator"
    }
    #[inline]
    fn get(&self, order: u8) -> Option<u32> {
        self.0.lock().alloc(1 << order).map(|f| f as u32)
    }
    #[inline]
    fn put(&self, frame: u32, order: u8) {
        self.0.lock().dealloc(frame as usize, 1 << order);
    }
}
