//! From RAM to the file and back.
//!
//! Pages go in whole segments, the oldest first: what was stored longest ago and never asked for
//! since. A page comes back alone, by the blocks that it lies in. Where most of a segment in the
//! file has come back or was freed, the rest is moved back to RAM, and goes to the file again
//! among others.

use crate::codec::Reader;
use crate::encode::{Page, decode_sparse, page_sum, sparse_sum};
use crate::ram::{Part, Ram};
use crate::segment::{HEADER, Header, Segments, Sparse, read_object};
use crate::shard::{Found, entry_sum, header_sum};
use crate::swapfile::{BLOCK, Extent, Extents, SwapFile};
use crate::table::{Entry, Kind};
use deckle_mm::{PAGE_SIZE, StoreStop, Written};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Encodings of so many bytes and more go to the file first: RAM has little more room for them than
/// for the pages.
pub(crate) const FAR: u32 = PAGE_SIZE as u32 / 8 * 5;

/// How many times nothing is written after the file took nothing.
const PAUSE: u32 = 256;
/// Bytes of a segment from the file that are looked at under one hold of a lock.
const STEP: u32 = 64 << 10;
/// The file may be so many times what is live in it, and as much as this more. To empty a segment
/// that is half full costs a read and a write for each page; room on a disk costs little.
const TIMES: u64 = 3;
const ALLOWANCE: u64 = 64 << 20;

/// Errors of a medium that is full: ENOSPC, EDQUOT.
const FULL: [i32; 2] = [28, 122];

/// What a store knows of its file.
#[derive(Default)]
pub(crate) struct Tier {
    extents: Mutex<Extents>,
    /// Whether anything was ever written to a file.
    used: AtomicBool,
    /// Pages that were read from files since somebody has asked.
    pub(crate) reads: AtomicU64,
    /// How many times more nothing is written.
    pause: AtomicU32,
}

impl Tier {
    pub(crate) fn extents(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file takes something, as far as known.
    pub(crate) fn is_open(&self) -> bool {
        self.pause.load(Relaxed) == 0
    }

    /// The same, and one time less that it does not.
    fn tick(&self) -> bool {
        let left = |n: u32| n.checked_sub(1);
        self.pause.fetch_update(Relaxed, Relaxed, left).is_err()
    }
}

/// Where in which file an object is.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) file: u64,
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl Spot {
    const NOWHERE: Spot = Spot {
        file: 0,
        at: 0,
        len: 0,
    };
}

/// Most pages of one read.
const RUN: usize = 32;
/// Most bytes from the first of them to the end of the last.
const SPAN: u64 = 16 * (PAGE_SIZE as u64 + HEADER as u64);

/// Decodes what the reader has taken; false unless it is what was put into the slot.
pub(crate) fn decode(
    reader: &mut Reader,
    (slot, entry): (u32, Entry),
    (header, len): (Header, usize),
    page: &mut Page,
) -> bool {
    let (decoded, sum) = match entry.kind {
        Kind::Sparse => {
            let list = reader.taken(len);
            (decode_sparse(list, page), sparse_sum(slot, list))
        }
        _ => (reader.unpack(len, page), page_sum(slot, page)),
    };
    decoded && entry.sum == entry_sum(sum) && header.sum == header_sum(sum)
}

/// The same of an object at byte `at` of what was read of a file.
fn decode_read(
    reader: &mut Reader,
    at: usize,
    of: (u32, Entry),
    len: usize,
    page: &mut Page,
) -> bool {
    let Some((header, _)) = read_object(reader.read(), at as u32) else {
        return false;
    };
    let right = header.slot == of.0 && usize::from(header.len) == len;
    right && reader.take_read(at + HEADER as usize, len) && decode(reader, of, (header, len), page)
}

impl<S: Segments, F: SwapFile> Ram<S, F> {
    /// Whether anything was ever written to a file, here or before a fork.
    pub(crate) fn has_filed(&self) -> bool {
        self.tier.used.load(Relaxed)
    }

    /// Whether there is a file that pages as they are may go to.
    pub(crate) fn takes_raw(&self) -> bool {
        self.file.number() != 0 && self.tier.is_open()
    }

    pub(crate) fn wants_file(&self, resident: u64) -> bool {
        if self.file.number() == 0 || !self.file.may_write() || !self.tier.tick() {
            return false;
        }
        let ram = self.mapped();
        let all = ram + resident * PAGE_SIZE as u64;
        let far = || self.shards.iter().any(|part| part.far.load(Relaxed));
        ram * 100 > all * u64::from(self.config().ram_percent) || far()
    }

    fn mapped(&self) -> u64 {
        self.shards.iter().map(|p| p.bytes.load(Relaxed)).sum()
    }

    /// Writes one segment.
    pub(crate) fn send(&self) -> Option<Written> {
        let number = self.file.number();
        if number == 0 {
            return None;
        }
        let is_sparse = || {
            let live = |part: &Part| part.lock().segments.own_filed_live();
            let live: u64 = self.shards.iter().map(live).sum();
            self.tier.extents().bytes() > TIMES * live + ALLOWANCE
        };
        if is_sparse() {
            self.clean(number, 2);
        }
        let urgent = |i: &usize| {
            let part = &self.shards[*i];
            (part.far.load(Relaxed), part.bytes.load(Relaxed))
        };
        let (n, first) = (
            self.shards.len(),
            (0..self.shards.len()).max_by_key(urgent)?,
        );
        let parts = (0..n).map(|k| &self.shards[(first + k) % n]);
        let (part, out) = parts
            .filter_map(|part| Some((part, part.change(|shard| shard.send())?)))
            .next()?;
        let size = out.size;
        let to = self.reserve(number, size);
        let bytes = &out.memory[..out.bytes as usize];
        let written = to.map(|to| self.file.write(to.at(), bytes));
        let sent = to.filter(|_| written == Some(Ok(())));
        self.tier.used.store(true, Relaxed);
        let pages = part.change(|shard| shard.segments.sent(&self.hooks, out, sent));
        self.vacate(part);
        if sent.is_some() {
            let bytes = u64::from(size);
            return Some(Written { pages, bytes });
        }
        if let Some(to) = to {
            self.give(to.block, size);
        }
        let is_full = written.is_none_or(|w| w.is_err_and(|errno| FULL.contains(&errno)));
        if !is_full || !self.clean(number, 3) {
            self.tier.pause.store(PAUSE, Relaxed);
        }
        None
    }

    /// A place of `size` bytes in the file.
    fn reserve(&self, file: u64, size: u32) -> Option<Extent> {
        let room = u64::from(size);
        if !self.file.charge(room) {
            return None;
        }
        let block = self.tier.extents().take(size);
        if block.is_none() {
            self.file.uncharge(room);
        }
        block.map(|block| Extent { file, block })
    }

    fn give(&self, block: u32, size: u32) {
        self.tier.extents().give(block, size);
        self.file.uncharge(u64::from(size));
    }

    /// Gives the places in the file back that hold nothing any more.
    pub(crate) fn vacate(&self, part: &Part) {
        while part.vacant.load(Relaxed)
            && let Some(vacant) = part.change(|shard| shard.segments.take_vacant())
        {
            let at = Extent {
                file: 0,
                block: vacant.block,
            };
            self.file.discard(at.at(), u64::from(vacant.size));
            self.give(vacant.block, vacant.size);
        }
    }

    /// Empties one of the emptiest segments in the file; false if none has at most so many quarters
    /// of live bytes.
    fn clean(&self, number: u64, quarters: u32) -> bool {
        for part in &self.shards {
            let sparse = part.lock().segments.emptiest_filed(quarters);
            if let Some(sparse) = sparse {
                self.empty(number, part, &sparse);
                self.vacate(part);
                return !part.lock().segments.is_still(&sparse);
            }
        }
        false
    }

    fn empty(&self, number: u64, part: &Part, sparse: &Sparse) {
        let Some(mut room) = self.hooks.map(sparse.size as usize) else {
            return;
        };
        let whole = sparse.used.next_multiple_of(BLOCK).min(sparse.size);
        let read = &mut room[..whole as usize];
        if self.file.read(number, sparse.extent.at(), read).is_ok() {
            let (bytes, mut next) = (&room[..sparse.used as usize], Some(0));
            while let Some(at) = next {
                let step = |shard: &mut crate::shard::Shard| {
                    shard.bring_back(&self.hooks, sparse, bytes, at, STEP)
                };
                next = part.change(step);
            }
        }
        // If something is left of it, it cannot be read, or there is no memory.
        part.change(|shard| shard.segments.leave(sparse));
        self.hooks.unmap(room);
    }

    /// Reads what is in a row in a file of the pages of slots `first` and following, all by one
    /// read. Returns how many pages are as they were put: it may be none, and what follows them is
    /// to be read one by one.
    pub(crate) fn read_run(&self, reader: &mut Reader, first: u32, pages: &mut [Page]) -> usize {
        if pages.len() < 2 || !self.has_filed() {
            return 0;
        }
        let mut run = [(Entry::EMPTY, Spot::NOWHERE); RUN];
        let n = self.find_run(first, pages.len().min(RUN), &mut run);
        let (start, last) = (run[0].1, run[n.max(1) - 1].1);
        let all = (last.at - start.at) as usize + HEADER as usize + last.len as usize;
        let Some((from, window)) = reader.window(start.at, all) else {
            return 0;
        };
        if n < 2 || self.file.read(start.file, from, window).is_err() {
            return 0;
        }
        let mut done = 0;
        for (page, (entry, spot)) in pages.iter_mut().zip(&run[..n]) {
            let (at, of) = ((spot.at - from) as usize, (first + done as u32, *entry));
            if !decode_read(reader, at, of, spot.len as usize, page) {
                break;
            }
            done += 1;
        }
        self.tier.reads.fetch_add(done as u64, Relaxed);
        done
    }

    /// Finds pages of successive slots that lie in a row in a file, and near each other.
    fn find_run(&self, first: u32, most: usize, run: &mut [(Entry, Spot); RUN]) -> usize {
        let part = self.part(first);
        let shard = part.lock();
        let mut n = 0;
        while n < most {
            let slot = first.checked_add(n as u32);
            let slot = slot.filter(|slot| std::ptr::eq(self.part(*slot), part));
            let Some(Ok((entry, Found::Filed { file, at, len }))) = slot.map(|s| shard.get(s))
            else {
                break;
            };
            let (start, before) = (run[0].1, run[n.max(1) - 1].1);
            let follows = file == start.file && at > before.at;
            if n > 0 && !(follows && at + u64::from(HEADER + len) - start.at <= SPAN) {
                break;
            }
            run[n] = (entry, Spot { file, at, len });
            n += 1;
        }
        n
    }

    /// Reads an object of a file and decodes it. `Corrupt` where what is there is not what was
    /// put into the slot, which may have moved meanwhile.
    pub(crate) fn read_filed(
        &self,
        reader: &mut Reader,
        of: (u32, Entry),
        spot: Spot,
        page: &mut Page,
    ) -> Result<(), StoreStop> {
        let len = spot.len as usize;
        let window = reader.window(spot.at, HEADER as usize + len);
        let (from, window) = window.ok_or(StoreStop::Corrupt)?;
        let read = self.file.read(spot.file, from, window);
        read.map_err(StoreStop::Io)?;
        if !decode_read(reader, (spot.at - from) as usize, of, len, page) {
            return Err(StoreStop::Corrupt);
        }
        self.tier.reads.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Whether the own file holds what other processes may read since a fork, or did.
    pub fn lends_file(&self) -> bool {
        let lends = |part: &Part| part.lock().segments.lends_file();
        self.has_filed() && self.shards.iter().any(lends)
    }

    /// Only processes that came by the fork of this number or a later one, children's children
    /// among them, have this process's file; `None`: nobody does.
    pub fn unlend_file(&self, oldest: Option<u64>) {
        self.each(|shard| shard.segments.unlend_file(oldest));
    }

    /// Pages that were read from files since this was asked last.
    pub fn take_file_reads(&self) -> u64 {
        self.tier.reads.swap(0, Relaxed)
    }

    /// Numbers of the files in which something of this store is: its own, and before it is
    /// written to again, in a child of fork, its parent's.
    pub fn files(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for part in &self.shards {
            all.extend(part.lock().segments.files());
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}
