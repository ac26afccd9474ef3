//! Units and indices: each kind of number has a type of its own, so that a frame number is
//! never taken for a page number of the program.

use core::fmt;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// Pages in a block: what one PMD entry covers.
pub const BLOCK_PAGES: u32 = 512;
/// Order of a folio that fills a block.
pub const BLOCK_ORDER: u8 = 9;
/// Largest order of the zone's free lists.
pub const MAX_ORDER: u8 = 10;

const _: () = assert!(1 << BLOCK_ORDER == BLOCK_PAGES);

/// Pages in a folio of `order`.
pub const fn order_pages(order: u8) -> u32 {
    1 << order
}

/// Pages needed for `bytes`, rounded up.
pub const fn bytes_to_pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_SIZE as u64)
}

/// Number of a page frame. On live memory: of a slot in the parking range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub u32);

/// Number of a page of a program's address space (address / 4096).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vpn(pub u64);

/// Number of a block of an address space (address / 2 MiB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNr(pub u64);

/// Number of an address space within one manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u16);

/// Number of a swap slot: the place of one swapped page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Pfn {
    /// The frame `n` further on.
    pub const fn add(self, n: u32) -> Pfn {
        Pfn(self.0 + n)
    }
    /// Whether a folio of `order` may start here.
    pub const fn is_aligned(self, order: u8) -> bool {
        self.0 & (order_pages(order) - 1) == 0
    }
}

impl Vpn {
    /// The page that holds byte `addr`.
    pub const fn of_addr(addr: u64) -> Vpn {
        Vpn(addr / PAGE_SIZE as u64)
    }
    /// Address of the first byte.
    pub const fn addr(self) -> u64 {
        self.0 * PAGE_SIZE as u64
    }
    /// The page `n` further on.
    pub const fn add(self, n: u64) -> Vpn {
        Vpn(self.0 + n)
    }
    /// The block this page lies in.
    pub const fn block(self) -> BlockNr {
        BlockNr(self.0 / BLOCK_PAGES as u64)
    }
    /// Index of this page in its block, 0..512.
    pub const fn index(self) -> u32 {
        (self.0 % BLOCK_PAGES as u64) as u32
    }
}

impl BlockNr {
    /// First page of the block.
    pub const fn start(self) -> Vpn {
        Vpn(self.0 * BLOCK_PAGES as u64)
    }
}

impl Slot {
    /// The slot `n` further on.
    pub const fn add(self, n: u32) -> Slot {
        Slot(self.0 + n)
    }
}

macro_rules! short_print {
    ($($t:ident $mark:literal),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($mark, "{:#x}"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    )*};
}
short_print!(Pfn "F", Vpn "V", BlockNr "B", SpaceId "S", Slot "s");

/// A run of pages of one address space inside one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// The address space.
    pub space: SpaceId,
    /// First page.
    pub start: Vpn,
    /// Number of pages, 1..=512; the run ends in the block it starts in.
    pub pages: u32,
}

impl PageRun {
    /// A run; in debug builds asserts that it stays inside one block.
    pub fn new(space: SpaceId, start: Vpn, pages: u32) -> PageRun {
        debug_assert!(pages >= 1 && start.index() + pages <= BLOCK_PAGES);
        PageRun {
            space,
            start,
            pages,
        }
    }
    /// The part that starts `skip` pages in.
    pub fn tail(self, skip: u32) -> PageRun {
        PageRun {
            start: self.start.add(skip as u64),
            pages: self.pages - skip,
            ..self
        }
    }
    /// The `pages` pages that start `skip` pages in.
    pub fn part(self, skip: u32, pages: u32) -> PageRun {
        PageRun {
            pages,
            ..self.tail(skip)
        }
    }
    /// Whether the run is a whole block.
    pub fn is_block(&self) -> bool {
        self.pages == BLOCK_PAGES
    }
}

/// A run of consecutive frames, at most one block of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRun {
    /// First frame.
    pub start: Pfn,
    /// Number of frames, 1..=1024.
    pub pages: u32,
}

impl FrameRun {
    /// A run.
    pub fn new(start: Pfn, pages: u32) -> FrameRun {
        FrameRun { start, pages }
    }
    /// A folio's frames.
    pub fn folio(start: Pfn, order: u8) -> FrameRun {
        FrameRun {
            start,
            pages: order_pages(order),
        }
    }
    /// The part that starts `skip` frames in.
    pub fn tail(self, skip: u32) -> FrameRun {
        FrameRun {
            start: self.start.add(skip),
            pages: self.pages - skip,
        }
    }
}

/// A set of pages of one block, or of frames of one folio: bit i is page i.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PageMask(pub [u64; 8]);

/// Those pages; ignored beyond 511.
impl FromIterator<u32> for PageMask {
    fn from_iter<I: IntoIterator<Item = u32>>(pages: I) -> PageMask {
        let mut mask = PageMask::EMPTY;
        pages.into_iter().for_each(|i| mask.set(i));
        mask
    }
}

impl PageMask {
    /// No page.
    pub const EMPTY: PageMask = PageMask([0; 8]);
    /// All 512 pages.
    pub const FULL: PageMask = PageMask([u64::MAX; 8]);

    /// The first `n` pages.
    pub fn first(n: u32) -> PageMask {
        PageMask::run(0, n)
    }
    /// The `n` pages from `start` on, as far as there are.
    pub fn run(start: u32, n: u32) -> PageMask {
        (start..start.saturating_add(n).min(BLOCK_PAGES)).collect()
    }
    /// Whether page `i` is in the set; false beyond 511.
    pub fn get(&self, i: u32) -> bool {
        i < BLOCK_PAGES && self.0[(i / 64) as usize] >> (i % 64) & 1 == 1
    }
    /// Adds page `i`; ignored beyond 511.
    pub fn set(&mut self, i: u32) {
        if i < BLOCK_PAGES {
            self.0[(i / 64) as usize] |= 1 << (i % 64);
        }
    }
    /// Removes page `i`; ignored beyond 511.
    pub fn clear(&mut self, i: u32) {
        if i < BLOCK_PAGES {
            self.0[(i / 64) as usize] &= !(1 << (i % 64));
        }
    }
    /// Number of pages in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }
    /// Number of pages in the set with an index below `i`.
    pub fn rank(&self, i: u32) -> u32 {
        let word = (i / 64).min(8) as usize;
        let mut n: u32 = self.0[..word].iter().map(|w| w.count_ones()).sum();
        if word < 8 && !i.is_multiple_of(64) {
            n += (self.0[word] & ((1 << (i % 64)) - 1)).count_ones();
        }
        n
    }
    /// The complement within the first `n` pages.
    pub fn not_within(&self, n: u32) -> PageMask {
        let all = PageMask::first(n);
        let mut m = PageMask::EMPTY;
        for i in 0..8 {
            m.0[i] = all.0[i] & !self.0[i];
        }
        m
    }
    /// The pages of this set that are not in `other`.
    pub fn without(&self, other: &PageMask) -> PageMask {
        PageMask(core::array::from_fn(|i| self.0[i] & !other.0[i]))
    }
    /// The pages of either.
    pub fn with(&self, other: &PageMask) -> PageMask {
        PageMask(core::array::from_fn(|i| self.0[i] | other.0[i]))
    }
    /// Its pages, in order.
    pub fn pages(self) -> impl Iterator<Item = u32> {
        let of_word = move |w: u32| {
            let mut bits = self.0[w as usize];
            core::iter::from_fn(move || {
                let i = (bits != 0).then(|| w * 64 + bits.trailing_zeros());
                bits &= bits.wrapping_sub(1);
                i
            })
        };
        (0..8).flat_map(of_word)
    }
    /// Maximal runs `(first, pages)` of set bits among the first `n` pages, in order.
    pub fn runs(self, n: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut i = 0;
        core::iter::from_fn(move || {
            let start = self.next(i, true).min(n);
            i = self.next(start, false).min(n);
            (i > start).then_some((start, i - start))
        })
    }
    /// The first page from `i` on that is in the set, or is not; 512 if there is none.
    fn next(&self, i: u32, within: bool) -> u32 {
        let such = |w: u32| match within {
            true => self.0[w as usize],
            false => !self.0[w as usize],
        };
        let first = i / 64;
        for w in first..8 {
            let from = if w == first { i % 64 } else { 0 };
            let bits = such(w) & (u64::MAX << from);
            if bits != 0 {
                return w * 64 + bits.trailing_zeros();
            }
        }
        BLOCK_PAGES
    }
}

impl fmt::Debug for PageMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageMask({} of 512)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn mask_rank_and_runs_agree_with_bits() {
        let mut m = PageMask::EMPTY;
        for i in [0, 1, 2, 63, 64, 130, 511] {
            m.set(i);
        }
        assert_eq!(m.count(), 7);
        for i in 0..=512 {
            assert_eq!(
                m.rank(i),
                (0..i).filter(|&k| m.get(k)).count() as u32,
                "{i}"
            );
        }
        assert_eq!(
            m.runs(512).collect::<Vec<_>>(),
            [(0, 3), (63, 2), (130, 1), (511, 1)]
        );
        assert_eq!(m.runs(131).last(), Some((130, 1)));
        assert_eq!(m.runs(64).collect::<Vec<_>>(), [(0, 3), (63, 1)]);
        assert_eq!(PageMask::FULL.runs(512).collect::<Vec<_>>(), [(0, 512)]);
        assert_eq!(PageMask::EMPTY.runs(512).next(), None);
        assert_eq!(m.not_within(512).count(), 505);
        assert!(m.pages().eq((0..512).filter(|&k| m.get(k))));
        let low = PageMask::first(64);
        assert!(m.with(&low).pages().eq((0..64).chain([64, 130, 511])));
        assert!(
            m.without(&low)
                .with(&PageMask::EMPTY)
                .pages()
                .eq([64, 130, 511])
        );
        assert!(!m.get(512));
    }
}
