//! The memory of a program of `lab oracle`, and the calls on it.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use crate::size::{BLOCK, PAGE};

const WORDS: usize = PAGE / size_of::<u64>();

/// May be read; may be written; was given up until it is written (`MADV_FREE`).
pub(super) const READ: u8 = 1;
pub(super) const WRITE: u8 = 2;
pub(super) const FREED: u8 = 4;
const MAPPED: u8 = 8;

/// The arena, with what may be done with each of its pages.
pub(super) struct Arena {
    base: usize,
    pub pages: Vec<u8>,
}

impl Arena {
    /// Maps all of it, on a block's boundary, between parts that stay inaccessible: so it has no
    /// neighbours, and nothing that the system places comes into its holes while it has no larger.
    pub fn new(pages: usize) -> io::Result<Self> {
        let (length, flags) = (
            pages * PAGE + 2 * BLOCK,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping, where nothing was.
        let all = unsafe { libc::mmap(pointer(0), length, libc::PROT_NONE, flags, -1, 0) };
        if all == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut arena = Self {
            base: (all.expose_provenance() + 1).next_multiple_of(BLOCK),
            pages: vec![0; pages],
        };
        match arena.map(0..pages) {
            0 => Ok(arena),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    pub fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    fn start(&self, range: &Range<usize>) -> *mut libc::c_void {
        pointer(self.address(range.start))
    }

    fn set(&mut self, range: Range<usize>, to: u8) {
        self.pages[range].fill(to);
    }

    /// `mmap`, for reading and writing; the error, or 0.
    pub fn map(&mut self, range: Range<usize>) -> i32 {
        let (at, prot) = (self.start(&range), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces pages of the arena, which is ours, and into which no reference
        // of Rust's ever points: they are only read and written one word at a time, below.
        let got = unsafe { libc::mmap(at, range.len() * PAGE, prot, flags, -1, 0) };
        let errno = errno(got == libc::MAP_FAILED);
        if errno == 0 {
            self.set(range, READ | WRITE | MAPPED);
        }
        errno
    }

    /// `munmap`.
    pub fn unmap(&mut self, range: Range<usize>) -> i32 {
        // SAFETY: as in map(): pages of the arena, and nobody refers to them.
        let failed = unsafe { libc::munmap(self.start(&range), range.len() * PAGE) } != 0;
        if !failed {
            self.set(range, 0);
        }
        errno(failed)
    }

    /// `mprotect`; what it has changed before it failed is as if it had not failed.
    pub fn protect(&mut self, range: Range<usize>, prot: i32) -> i32 {
        // SAFETY: as in map(); no code and no data of Rust's is there.
        let failed = unsafe { libc::mprotect(self.start(&range), range.len() * PAGE, prot) } != 0;
        let mut rights = 0;
        rights |= if prot & libc::PROT_READ != 0 { READ } else { 0 };
        rights |= if prot & libc::PROT_WRITE != 0 {
            WRITE
        } else {
            0
        };
        // It goes up to the first hole.
        for page in self.pages[range]
            .iter_mut()
            .take_while(|p| **p & MAPPED != 0)
        {
            *page = *page & (FREED | MAPPED) | rights;
        }
        errno(failed)
    }

    /// `madvise`.
    pub fn advise(&mut self, range: Range<usize>, advice: i32) -> i32 {
        // SAFETY: as in map(): whatever the advice does to the bytes, nobody refers to them.
        let failed = unsafe { libc::madvise(self.start(&range), range.len() * PAGE, advice) } != 0;
        let errno = errno(failed);
        if advice == libc::MADV_FREE {
            self.pages[range].iter_mut().for_each(|page| *page |= FREED);
        }
        errno
    }

    /// `mremap` to `length` pages, in place or at another place of the arena.
    pub fn remap(&mut self, from: Range<usize>, length: usize, to: Option<usize>) -> i32 {
        let flags = to.map_or(0, |_| libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let there = pointer(self.address(to.unwrap_or(from.start)));
        let (old, new) = (from.len() * PAGE, length * PAGE);
        // SAFETY: as in map(): both places are in the arena. Without flags there is no further
        // argument, and one too many is not looked at.
        let got = unsafe { libc::mremap(self.start(&from), old, new, flags, there) };
        let errno = errno(got == libc::MAP_FAILED);
        if errno == 0 {
            let at = to.unwrap_or(from.start);
            let mut pages: Vec<u8> = self.pages[from.clone()].to_vec();
            let last = pages.last().copied().unwrap_or(0);
            pages.resize(length, last & !FREED);
            self.set(from, 0);
            self.pages[at..at + length].copy_from_slice(&pages);
        }
        errno
    }

    /// A word of a page that may be read.
    pub fn read(&self, page: usize) -> u64 {
        assert!(self.pages[page] & READ != 0);
        // SAFETY: mapped and readable, by the assertion; any bytes are a word.
        unsafe { pointer(self.address(page)).cast::<u64>().read_volatile() }
    }

    /// Writes a word into the beginning of a page that may be written, and into its middle.
    pub fn write(&mut self, page: usize, word: u64) {
        assert!(self.pages[page] & WRITE != 0);
        self.pages[page] &= !FREED;
        let at = pointer(self.address(page)).cast::<u64>();
        // SAFETY: mapped and writable, by the assertion; both words are in the page.
        unsafe {
            at.write_volatile(word);
            at.add(WORDS / 2).write_volatile(word);
        }
    }

    /// A sum over all bytes of all pages that may be read and do not have one of the marks.
    pub fn sum(&self, without: u8) -> u64 {
        let mut sum = 0u64;
        for page in (0..self.pages.len()).filter(|p| self.pages[*p] & (READ | without) == READ) {
            let at = pointer(self.address(page)).cast::<u64>();
            for word in 0..WORDS {
                // SAFETY: as in read(); the word is in the page.
                let word = unsafe { at.add(word).read_volatile() };
                sum = (sum ^ word ^ page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                sum ^= sum >> 29;
            }
        }
        sum
    }
}

fn pointer(at: usize) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

fn errno(failed: bool) -> i32 {
    match failed {
        true => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        false => 0,
    }
}
