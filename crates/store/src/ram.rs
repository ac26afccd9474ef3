//! The store in RAM.

mod lent;

use crate::codec::{Algorithm, Reader, Writer};
use crate::config::{Config, Counts};
use crate::encode::{Page, fill_same, same_sum};
use crate::packed::Packed;
use crate::pool::Pool;
use crate::segment::{Header, Heap, Segments};
use crate::shard::{Found, Shard, entry_sum};
use crate::swapfile::{NoFile, SwapFile};
use crate::table::Entry;
use crate::tier::{FAR, Spot, Tier, decode};
use deckle_mm::{PAGE_SIZE, Slot, Store, StoreError, StoreStop, Written};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// EINVAL: the caller gave something else than whole pages.
const EINVAL: i32 = 22;

/// A store that keeps pages in RAM, encoded and checksummed.
///
/// - Same-filled pages (zero pages among them) live in the slot table alone.
/// - Pages with at most [`crate::MAX_SPARSE_WORDS`] non-zero words are lists of these.
/// - All others are lz4 or zstd blocks; one above [`crate::MAX_ENCODED`] bytes is refused, or,
///   where there is a file, kept as it is. With a file all above 5/8 of a page are in segments that
///   are written first.
///
/// Every page has a checksum over its slot and its bytes, 46 bits of it for pages with an
/// encoding, 30 for same-filled ones. A `get` verifies it after decoding; it gives the bytes
/// that were put, or an error.
///
/// RAM follows what is stored: with segments of at least s and at most S bytes, n shards and no
/// damaged segment, the segments take at most 1.09 x live bytes + n x 5 S at any time (or, where it
/// is more since the largest encoding did not fit into each segment's end, 16/15 / (1 - 3592 / s) x
/// live bytes: 1.13 for 64 KiB); twice the live bytes of what is lent to children of fork, while
/// there are any, and whatever was borrowed at a fork.
/// The table takes 12 bytes a slot for each run of 512 slots that has one in use, the scratch
/// memory 21 KiB (lz4; 93 with a file) for each call at once. The file has at most three times the
/// live bytes in it, and 64 MiB, while it can be read.
///
/// Locks: one per shard, then none. A segment hook runs under it, one of the file never.
pub struct Ram<S: Segments = Heap, F: SwapFile = NoFile> {
    pub(crate) hooks: S,
    pub(crate) file: F,
    pub(crate) tier: Tier,
    config: Config,
    bits: u32,
    pub(crate) shards: Box<[Part]>,
    writers: Pool<Writer>,
    readers: Pool<Reader>,
}

/// Where the page of a slot was found.
#[derive(Clone, Copy)]
enum At {
    /// In its entry.
    Word,
    /// In RAM: the reader has a copy.
    Taken(Header, usize),
    /// In a file.
    Filed(Spot),
}

/// A shard, and its totals for readers that do not take the lock.
pub(crate) struct Part {
    shard: Mutex<Shard>,
    pub(crate) bytes: AtomicU64,
    charged: AtomicU64,
    pages: AtomicU64,
    /// Whether segments that go to the file first wait to be written.
    pub(crate) far: AtomicBool,
    /// Whether places in the file hold nothing any more.
    pub(crate) vacant: AtomicBool,
}

impl Ram<Heap> {
    /// A store over the global allocator with default sizes.
    pub fn new(algorithm: Algorithm) -> Ram<Heap> {
        Ram::with(Config::new(algorithm), Heap)
    }
}

impl<S: Segments> Ram<S> {
    /// A store with these sizes over segments from `hooks`. Allocates only a few hundred
    /// bytes; everything else comes with the first page.
    pub fn with(config: Config, hooks: S) -> Ram<S> {
        Ram::with_file(config, hooks, NoFile)
    }
}

impl<S: Segments, F: SwapFile> Ram<S, F> {
    /// The same with a file behind it.
    pub fn with_file(config: Config, hooks: S, file: F) -> Ram<S, F> {
        let round = |bytes: u32| bytes.clamp(16 << 10, 16 << 20).next_power_of_two();
        let small = round(config.segment_bytes);
        let config = Config {
            segment_bytes: small,
            large_segment_bytes: round(config.large_segment_bytes).max(small),
            shards: config.shards.clamp(1, 64).next_power_of_two(),
            ..config
        };
        let bits = config.shards.trailing_zeros();
        let far = match file.number() {
            0 => u32::MAX,
            _ => FAR,
        };
        let part = |number| {
            let shard = Shard::new((small, config.large_segment_bytes), far, (bits, number));
            let bytes = AtomicU64::new(shard.bytes());
            Part {
                shard: Mutex::new(shard),
                charged: AtomicU64::new(bytes.load(Ordering::Relaxed)),
                bytes,
                pages: AtomicU64::new(0),
                far: AtomicBool::new(false),
                vacant: AtomicBool::new(false),
            }
        };
        Ram {
            hooks,
            file,
            tier: Tier::default(),
            config,
            bits,
            shards: (0..config.shards).map(part).collect(),
            writers: Pool::new(),
            readers: Pool::new(),
        }
    }

    /// The file.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// The same, to be changed by who has the store alone.
    pub fn file_mut(&mut self) -> &mut F {
        &mut self.file
    }

    /// The sizes in use, after rounding.
    pub fn config(&self) -> Config {
        self.config
    }

    pub(crate) fn part(&self, slot: u32) -> &Part {
        &self.shards[Shard::of(slot, self.bits) as usize]
    }

    /// Encodes pages from `first` on, of one part and a few at most, and stores them under one
    /// hold of its lock. How many of them are stored, and why not the next one.
    fn put_few(
        &self,
        writer: &mut Writer,
        first: u32,
        pages: &[Page],
    ) -> (usize, Option<StoreStop>) {
        let mut few = [const { Packed::NOTHING }; AT_ONCE];
        let (mut n, mut end, mut why) = (0, 0, None);
        let raw = self.takes_raw();
        for (page, packed) in pages.iter().zip(&mut few) {
            let slot = match first.checked_add(n as u32) {
                Some(slot) if Shard::of(slot, self.bits) == Shard::of(first, self.bits) => slot,
                Some(_) => break,
                None => {
                    why = Some(StoreStop::Full);
                    break;
                }
            };
            if !writer.fits(end) {
                break;
            }
            match Packed::new(writer, end, slot, page, raw) {
                Ok(new) => *packed = new,
                Err(stop) => {
                    why = Some(stop);
                    break;
                }
            }
            end = packed.end;
            n += 1;
        }
        if n == 0 {
            return (0, why);
        }
        let put = |shard: &mut Shard| {
            for (i, packed) in few[..n].iter().enumerate() {
                let encoding = packed.encoding(writer);
                let slot = first + i as u32;
                if let Err(stop) = shard.put(&self.hooks, slot, packed.sum, encoding) {
                    return (i, Some(stop));
                }
            }
            (n, why)
        };
        self.hooks.encoded();
        self.change(self.part(first), put)
    }

    fn reader(&self) -> Option<Box<Reader>> {
        Reader::new(self.config.algorithm, F::IS_FILE)
    }

    fn get_page(&self, reader: &mut Reader, slot: u32, page: &mut Page) -> Result<(), StoreStop> {
        let mut before = None;
        loop {
            let (entry, found) = self.look_up(reader, slot)?;
            let result = match found {
                At::Word if entry.sum == entry_sum(same_sum(slot, entry.word)) => {
                    fill_same(entry.word, page);
                    Ok(())
                }
                At::Taken(header, len) if decode(reader, (slot, entry), (header, len), page) => {
                    Ok(())
                }
                At::Filed(spot) => self.read_filed(reader, (slot, entry), spot, page),
                At::Word | At::Taken(..) => Err(StoreStop::Corrupt),
            };
            // It may have moved while the file was read. What has not is tried twice.
            match found {
                At::Filed(spot) if result.is_err() && before != Some((spot.file, spot.at)) => {
                    before = Some((spot.file, spot.at));
                }
                _ => return result,
            }
        }
    }

    /// What is in a slot, taken by the reader if it is in RAM.
    fn look_up(&self, reader: &mut Reader, slot: u32) -> Result<(Entry, At), StoreStop> {
        let shard = self.part(slot).lock();
        let (entry, found) = shard.get(slot)?;
        let at = match found {
            Found::Word => At::Word,
            Found::Object(header, body) if reader.take(body) => At::Taken(header, body.len()),
            Found::Object(..) => return Err(StoreStop::Corrupt),
            Found::Filed { file, at, len } => At::Filed(Spot { file, at, len }),
        };
        Ok((entry, at))
    }

    pub(crate) fn each(&self, mut f: impl FnMut(&mut Shard)) {
        self.shards
            .iter()
            .for_each(|part| self.change(part, &mut f));
    }

    /// Changes a part; what that leaves vacant in the file is given back.
    fn change<R>(&self, part: &Part, f: impl FnOnce(&mut Shard) -> R) -> R {
        let result = part.change(f);
        self.vacate(part);
        result
    }

    /// What is stored, by encoding, and what compaction did.
    pub fn counts(&self) -> Counts {
        let mut c = Counts::default();
        for part in &self.shards {
            let shard = part.lock();
            c.same_pages += shard.tally.same;
            c.sparse_pages += shard.tally.sparse;
            c.block_pages += shard.tally.block;
            c.live_bytes += shard.segments.live_bytes();
            c.dead_bytes += shard.segments.dead_bytes();
            c.segments += shard.segments.mapped();
            c.segment_bytes += shard.segments.mapped_bytes();
            c.moved_bytes += shard.tally.moved_bytes;
            c.damaged_segments += shard.tally.damaged;
            c.filed_pages += shard.segments.in_file().pages;
        }
        c.file_bytes = self.tier.extents().bytes();
        c
    }

    /// Walks tables and segments and reconciles them with all counts. Slow; for tests.
    ///
    /// # Errors
    /// What does not agree, in words. A damaged header counts as such.
    pub fn verify(&self) -> Result<(), String> {
        for (i, part) in self.shards.iter().enumerate() {
            let shard = part.lock();
            shard
                .verify()
                .map_err(|what| format!("shard {i}: {what}"))?;
            let booked = (
                part.bytes.load(Ordering::Relaxed),
                part.pages.load(Ordering::Relaxed),
            );
            if booked != (shard.bytes(), shard.pages()) {
                return Err(format!("shard {i}: totals {booked:?} are stale"));
            }
        }
        Ok(())
    }

    /// Inverts bit `bit` of what is stored for a slot: of its header (8 bytes) and encoding,
    /// or of its fill word. False when the slot has no such bit. For tests of what reads it.
    pub fn corrupt_for_test(&self, slot: Slot, bit: u32) -> bool {
        self.change(self.part(slot.0), |shard| shard.flip_bit(slot.0, bit))
    }
}

impl Part {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shard> {
        self.shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` under the lock and brings the totals up to date.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = self.lock();
        let result = f(&mut shard);
        let bytes = shard.bytes();
        let charged = bytes - shard.borrowed() + shard.ghost();
        self.bytes.store(bytes, Ordering::Relaxed);
        self.charged.store(charged, Ordering::Relaxed);
        self.pages.store(shard.pages(), Ordering::Relaxed);
        self.far
            .store(shard.segments.far_waits(), Ordering::Relaxed);
        self.vacant
            .store(shard.segments.has_vacant(), Ordering::Relaxed);
        result
    }
}

/// Most pages that are stored, and slots that are freed, under one hold of a lock.
const AT_ONCE: usize = 16;

/// Slot `first + i`, if there is one.
fn nth(first: Slot, i: usize) -> Option<u32> {
    first.0.checked_add(u32::try_from(i).ok()?)
}

/// What to say of a buffer that is not whole pages, after `done` of them.
fn ragged(done: usize, rest: &[u8]) -> Result<(), StoreError> {
    if rest.is_empty() {
        return Ok(());
    }
    Err(StoreError {
        done: done as u32,
        why: StoreStop::Io(EINVAL),
    })
}

impl<S: Segments, F: SwapFile> Store for Ram<S, F> {
    fn accepts(&self) -> bool {
        true
    }

    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError> {
        let algorithm = self.config.algorithm;
        let stop = |done: usize, why| StoreError {
            done: done as u32,
            why,
        };
        // What is stored can be read back without memory: its reader exists before it.
        if !self.readers.ensure(|| self.reader()) {
            return Err(stop(0, StoreStop::NoMemory));
        }
        let mut writer = self
            .writers
            .lend(|| Writer::new(algorithm))
            .ok_or_else(|| stop(0, StoreStop::NoMemory))?;
        let (pages, rest) = pages.as_chunks::<PAGE_SIZE>();
        let mut done = 0;
        while done < pages.len() {
            let slot = nth(first, done).ok_or_else(|| stop(done, StoreStop::Full))?;
            let (more, why) = self.put_few(&mut writer, slot, &pages[done..]);
            done += more;
            if let Some(why) = why {
                return Err(stop(done, why));
            }
        }
        ragged(pages.len(), rest)
    }

    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError> {
        let stop = |done: usize, why| StoreError {
            done: done as u32,
            why,
        };
        // Before the lock: lending may wait for a reader that wants it.
        let reader = self.readers.lend(|| self.reader());
        let mut reader = reader.ok_or_else(|| stop(0, StoreStop::Corrupt))?;
        let (pages, rest) = pages.as_chunks_mut::<PAGE_SIZE>();
        let mut done = 0;
        while done < pages.len() {
            let slot = nth(first, done).ok_or_else(|| stop(done, StoreStop::Corrupt))?;
            let run = self.read_run(&mut reader, slot, &mut pages[done..]);
            if run == 0 {
                let one = self.get_page(&mut reader, slot, &mut pages[done]);
                one.map_err(|why| stop(done, why))?;
            }
            done += run.max(1);
        }
        ragged(pages.len(), rest)
    }

    fn free(&self, first: Slot, count: u32) {
        const AT_ONCE: u32 = self::AT_ONCE as u32;
        let end = u64::from(first.0) + u64::from(count);
        let mut at = u64::from(first.0);
        while at < end.min(1 << 32) {
            let slot = at as u32;
            // Runs of 16 aligned slots are in one shard.
            let stop = (at / u64::from(AT_ONCE) + 1) * u64::from(AT_ONCE);
            let stop = stop.min(end);
            self.change(self.part(slot), |shard| {
                for slot in at..stop {
                    shard.free(&self.hooks, slot as u32);
                }
            });
            at = stop;
        }
    }

    fn is_shared(&self, slot: Slot) -> bool {
        self.part(slot.0).lock().is_shared(slot.0)
    }

    /// Copies live objects out of the emptiest segments, about `budget` bytes in each shard; where
    /// none is worth it, gives back what is kept to be used anew, and returns its bytes. `put`
    /// and `free` do as much of it as the bound on RAM needs; this wins back more when there is
    /// time, or nothing else to win. Holds a shard's lock for the whole budget: keep it small.
    fn compact(&self, budget: u64) -> u64 {
        let each = |part: &Part| {
            self.change(part, |shard| match shard.compact(&self.hooks, budget) {
                0 => shard.segments.drop_spare(&self.hooks),
                copied => copied,
            })
        };
        self.shards.iter().map(each).sum()
    }

    fn wants_writeback(&self, resident: u64) -> bool {
        self.wants_file(resident)
    }

    fn writeback(&self) -> Option<Written> {
        self.send()
    }

    fn ram_bytes(&self) -> u64 {
        let parts: u64 = self
            .shards
            .iter()
            .map(|p| p.bytes.load(Ordering::Relaxed))
            .sum();
        parts + self.writers.bytes() + self.readers.bytes()
    }

    fn charged_bytes(&self) -> u64 {
        let parts: u64 = self
            .shards
            .iter()
            .map(|p| p.charged.load(Ordering::Relaxed))
            .sum();
        parts + self.writers.bytes() + self.readers.bytes()
    }

    fn stored_pages(&self) -> u64 {
        self.shards
            .iter()
            .map(|p| p.pages.load(Ordering::Relaxed))
            .sum()
    }
}

impl<S: Segments, F: SwapFile> Drop for Ram<S, F> {
    fn drop(&mut self) {
        for part in &mut self.shards {
            let shard = part.shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            shard.segments.unmap_all(&self.hooks);
        }
    }
}
