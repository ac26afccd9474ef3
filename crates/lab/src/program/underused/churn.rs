//! An allocator and a program that uses it.
//!
//! The allocator is a plain one of today's kind. It has several arenas (as for threads) with a
//! heap for each size class; a heap takes chunks of 2 MiB, cuts them into slots and hands out the
//! lowest chunk's most recent free slot. A chunk that holds nothing goes back to the system at
//! once. When the live set has shrunk, free runs of 64 KiB and more go back too.
//!
//! The program's live set grows to [`PEAK`] and shrinks to [`TROUGH`], twice. How often
//! a heap is used falls with its rank (Zipf): a few heaps fill chunk after chunk, where huge pages
//! pay; most use a small part of one, which is where they waste.

use std::collections::BTreeSet;

use super::{Memory, check};
use crate::content::Random;
use crate::size::{BLOCK, PAGE};

/// What is mapped.
pub const BYTES: usize = 512 << 20;
const ARENAS: usize = 8;
/// Size classes: 256 bytes to 64 KiB.
const SMALLEST: usize = 256;
const CLASSES: usize = 9;
const LARGEST: usize = SMALLEST << (CLASSES - 1);
/// Live bytes at the top and at the bottom of a wave.
const PEAK: usize = 48 << 20;
const TROUGH: usize = 6 << 20;
const WAVES: usize = 2;
/// Objects looked at for each one that comes or goes.
const LOOKS: usize = 4;
/// Pages of a free run that is worth giving back.
const RUN: usize = 16;

/// Waves of allocating, looking and freeing; `settle` is called at the bottom of the last but
/// one.
///
/// # Errors
/// Those of the memory and of `settle`, and a wrong byte.
pub fn run<M: Memory>(
    memory: &mut M,
    settle: &mut dyn FnMut(&mut M) -> Result<(), M::Error>,
) -> Result<(), M::Error> {
    let mut program = Churn::new();
    for wave in 1..=WAVES {
        program.go_to(memory, PEAK)?;
        program.go_to(memory, TROUGH)?;
        program.purge(memory)?;
        if wave == WAVES - 1 {
            settle(memory)?;
        }
    }
    program.check_all(memory)
}

struct Object {
    id: u64,
    heap: usize,
    chunk: usize,
    slot: usize,
}

#[derive(Default)]
struct Chunk {
    /// Free slots, the one to use next at the end.
    free: Vec<usize>,
    used: Vec<bool>,
    /// Pages written since they were zeros.
    dirty: Vec<bool>,
}

struct Churn {
    random: Random,
    /// Heap of each ticket; a heap has as many as it is used.
    tickets: Vec<usize>,
    /// Chunks with a free slot, for each heap.
    open: Vec<BTreeSet<usize>>,
    chunks: Vec<Chunk>,
    spare: BTreeSet<usize>,
    live: Vec<Object>,
    live_bytes: usize,
    next_id: u64,
    buffer: Vec<u8>,
}

const fn size_of_heap(heap: usize) -> usize {
    SMALLEST << (heap % CLASSES)
}

impl Churn {
    fn new() -> Self {
        let heaps = ARENAS * CLASSES;
        let mut random = Random(1);
        let mut rank: Vec<usize> = (1..=heaps).collect();
        for i in (1..heaps).rev() {
            rank.swap(i, random.below(i + 1));
        }
        // Bytes fall with the rank, so objects with rank and size.
        let tickets = (0..heaps)
            .flat_map(|h| vec![h; LARGEST * 16 / size_of_heap(h) / rank[h].min(64) + 1])
            .collect();
        Self {
            random,
            tickets,
            open: vec![BTreeSet::new(); heaps],
            chunks: (0..BYTES / BLOCK).map(|_| Chunk::default()).collect(),
            spare: (0..BYTES / BLOCK).collect(),
            live: Vec::new(),
            live_bytes: 0,
            next_id: 0,
            buffer: Vec::new(),
        }
    }

    /// Grows or shrinks to about `target` live bytes, three steps forward and one back.
    fn go_to<M: Memory>(&mut self, memory: &mut M, target: usize) -> Result<(), M::Error> {
        let grow = self.live_bytes < target;
        while (self.live_bytes < target) == grow {
            let forward = self.random.below(4) > 0;
            if (grow == forward || self.live.is_empty()) && self.live_bytes < PEAK {
                self.allocate(memory)?;
            } else {
                self.free(memory)?;
            }
            for _ in 0..LOOKS.min(self.live.len()) {
                let object = &self.live[self.random.below(self.live.len())];
                let at = address(object) + self.random.below(size_of_heap(object.heap) / 8) * 8;
                let mut word = [0; 8];
                memory.read(at, &mut word)?;
                if word != object.id.to_le_bytes() {
                    return Err(M::wrong(at, word[0], object.id as u8));
                }
            }
        }
        Ok(())
    }

    fn allocate<M: Memory>(&mut self, memory: &mut M) -> Result<(), M::Error> {
        let heap = self.tickets[self.random.below(self.tickets.len())];
        let size = size_of_heap(heap);
        let chunk = match self.open[heap].first() {
            Some(&chunk) => chunk,
            None => {
                // As the mapping is four times what is live, and more than all heaps need.
                let Some(chunk) = self.spare.pop_first() else {
                    return Ok(());
                };
                let slots = BLOCK / size;
                self.chunks[chunk] = Chunk {
                    free: (0..slots).rev().collect(),
                    used: vec![false; slots],
                    dirty: vec![false; BLOCK / PAGE],
                };
                self.open[heap].insert(chunk);
                chunk
            }
        };
        let c = &mut self.chunks[chunk];
        let Some(slot) = c.free.pop() else {
            return Ok(());
        };
        if c.free.is_empty() {
            self.open[heap].remove(&chunk);
        }
        c.used[slot] = true;
        let bytes = slot * size..(slot + 1) * size;
        c.dirty[bytes.start / PAGE..bytes.end.div_ceil(PAGE)].fill(true);
        self.next_id += 1;
        let object = Object {
            id: self.next_id,
            heap,
            chunk,
            slot,
        };
        fill(&mut self.buffer, &object);
        memory.write(address(&object), &self.buffer)?;
        self.live.push(object);
        self.live_bytes += size;
        Ok(())
    }

    fn free<M: Memory>(&mut self, memory: &mut M) -> Result<(), M::Error> {
        let n = self.random.below(self.live.len());
        let object = self.live.swap_remove(n);
        self.live_bytes -= size_of_heap(object.heap);
        let c = &mut self.chunks[object.chunk];
        c.used[object.slot] = false;
        c.free.push(object.slot);
        self.open[object.heap].insert(object.chunk);
        if c.free.len() == c.used.len() {
            *c = Chunk::default();
            self.open[object.heap].remove(&object.chunk);
            self.spare.insert(object.chunk);
            memory.give_back(object.chunk * BLOCK, BLOCK)?;
        }
        Ok(())
    }

    /// Gives back free runs of written pages.
    fn purge<M: Memory>(&mut self, memory: &mut M) -> Result<(), M::Error> {
        for (n, c) in self.chunks.iter_mut().enumerate() {
            let slots = c.used.len();
            let free = |page: usize| {
                let bytes = page * PAGE..(page + 1) * PAGE;
                let slot = |byte: usize| byte * slots / BLOCK;
                !c.used[slot(bytes.start)..=slot(bytes.end - 1)].contains(&true)
            };
            let mut page = 0;
            while page < c.dirty.len() {
                let idle = |p: &usize| c.dirty[*p] && free(*p);
                let end = (page..c.dirty.len()).find(|p| !idle(p));
                let end = end.unwrap_or(c.dirty.len());
                if end - page >= RUN {
                    memory.give_back(n * BLOCK + page * PAGE, (end - page) * PAGE)?;
                    c.dirty[page..end].fill(false);
                }
                page = end + 1;
            }
        }
        Ok(())
    }

    fn check_all<M: Memory>(&mut self, memory: &mut M) -> Result<(), M::Error> {
        for object in &self.live {
            fill(&mut self.buffer, object);
            check(memory, address(object), &self.buffer)?;
        }
        Ok(())
    }
}

const fn address(object: &Object) -> usize {
    object.chunk * BLOCK + object.slot * size_of_heap(object.heap)
}

/// What an object holds: its number, over and over.
fn fill(buffer: &mut Vec<u8>, object: &Object) {
    buffer.resize(size_of_heap(object.heap), 0);
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&object.id.to_le_bytes());
    }
}
