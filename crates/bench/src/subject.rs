//! What is measured: allocators of frames behind one face.

use crate::machine::{Threads, this_cpu};
use buddy_system_allocator::LockedFrameAllocator;
use deckle_mm::Pfn;
use deckle_mm::frame::{Zone, ZoneConfig};
use deckle_mm::platform::FrameSpan;
use std::hint::black_box;
use std::time::Instant;

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

    /// Nanoseconds to find the head of the folio that a frame belongs to: of `n` frames of
    /// folios of `order`, one after the other or at random.
    pub fn time_head_of(&self, order: u8, n: usize, random: bool) -> f64 {
        let folios: Vec<u32> = (0..n >> order).map_while(|_| self.get(order)).collect();
        let all = folios.len() << order;
        let mut frames: Vec<Pfn> = (0..all)
            .map(|i| Pfn(folios[i >> order] + (i & ((1 << order) - 1)) as u32))
            .collect();
        if random {
            // By a fixed stride that has no common factor with the length: scattered enough.
            let stride = (all / 3 * 2 + 1..).find(|s| gcd(*s, all) == 1).unwrap_or(1);
            frames = (0..all).map(|i| frames[i * stride % all]).collect();
        }
        let start = Instant::now();
        let sum = (frames.iter()).fold(0u64, |sum, p| sum + u64::from(self.zone.head_of(*p).0));
        let time = start.elapsed();
        black_box(sum);
        folios.iter().for_each(|f| self.put(*f, order));
        self.settle();
        time.as_secs_f64() * 1e9 / all as f64
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
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

/// A zone for each CPU: how fast two threads are on this machine when they share nothing.
pub struct Own(Vec<Deckle>);

impl Own {
    /// `cpus` zones, each of `frames` frames.
    pub fn new(frames: u32, cpus: usize) -> Own {
        Own((0..cpus).map(|_| Deckle::new(frames, cpus)).collect())
    }
}

impl Subject for Own {
    fn name(&self) -> &'static str {
        "deckle, a zone for each CPU"
    }
    fn get(&self, order: u8) -> Option<u32> {
        self.0[this_cpu()].get(order)
    }
    fn put(&self, frame: u32, order: u8) {
        self.0[this_cpu()].put(frame, order);
    }
    fn settle(&self) {
        self.0.iter().for_each(Subject::settle);
    }
}

/// `buddy_system_allocator`, behind its own spin lock. Its largest order is its default: with
/// a smaller one it loses two blocks of the top order that meet.
pub struct BuddySystem(LockedFrameAllocator<33>);

impl BuddySystem {
    /// An allocator of `frames` frames.
    pub fn new(frames: u32) -> BuddySystem {
        let all = LockedFrameAllocator::new();
        // From frame 0 on it would begin with small blocks, which it does not merge.
        let first = (frames as usize).next_power_of_two();
        all.lock().add_frame(first, first + frames as usize);
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
