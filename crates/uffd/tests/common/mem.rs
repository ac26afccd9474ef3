//! Mappings, patterns and what PAGEMAP_SCAN says about them.

use deckle_uffd::{Categories, Errno, Pagemap};

use super::skip;

pub const PAGE: usize = 4096;
pub const BLOCK: usize = 512 * PAGE;

/// Since Linux 6.1; the libc crate has it for some targets only.
pub const MADV_COLLAPSE: i32 = 25;

/// A private anonymous mapping; unmapped on drop.
pub struct Map {
    pub addr: usize,
    pub len: usize,
}

impl Map {
    /// `pages` small pages, never huge.
    pub fn pages(pages: usize) -> Self {
        let map = Self::raw(pages * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        map.advise(libc::MADV_NOHUGEPAGE);
        map
    }

    /// `blocks` aligned blocks, MADV_NOHUGEPAGE.
    pub fn blocks(blocks: usize) -> Self {
        let len = blocks * BLOCK;
        let raw = Self::raw(len + BLOCK, libc::PROT_READ | libc::PROT_WRITE);
        let start = raw.addr.next_multiple_of(BLOCK);
        let (head, tail) = (start - raw.addr, raw.addr + raw.len - start - len);
        std::mem::forget(raw);
        for (addr, len) in [(start - head, head), (start + len, tail)] {
            if len > 0 {
                // SAFETY: the edges of the mapping just made; nobody uses them.
                assert_eq!(unsafe { libc::munmap(addr as *mut _, len) }, 0);
            }
        }
        let map = Self { addr: start, len };
        map.advise(libc::MADV_NOHUGEPAGE);
        map
    }

    /// A mapping with the given protection.
    pub fn raw(len: usize, prot: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(addr, libc::MAP_FAILED, "mmap: {}", Errno::last());
        Self {
            addr: addr as usize,
            len,
        }
    }

    /// Address of a page.
    pub fn page(&self, n: usize) -> usize {
        assert!(n * PAGE < self.len);
        self.addr + n * PAGE
    }

    /// Address of a block.
    pub fn block(&self, n: usize) -> usize {
        assert!(n * BLOCK < self.len);
        self.addr + n * BLOCK
    }

    pub fn advise(&self, advice: i32) {
        advise(self.addr, self.len, advice).expect("madvise");
    }

    pub fn protect(&self, prot: i32) {
        // SAFETY: a mapping that only tests access, by raw addresses.
        let result = unsafe { libc::mprotect(self.addr as *mut _, self.len, prot) };
        assert_eq!(result, 0, "mprotect: {}", Errno::last());
    }

    /// Writes the pattern of each page, seeded by its number.
    pub fn fill(&self) {
        for n in 0..self.len / PAGE {
            write_page(self.page(n), n as u64);
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, accessed by raw addresses only.
        unsafe { libc::munmap(self.addr as *mut _, self.len) };
    }
}

/// madvise on a range of a test's mapping.
pub fn advise(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: tests reach their mappings by raw addresses only, so content may vanish.
    match unsafe { libc::madvise(addr as *mut _, len, advice) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// One byte, read through the MMU.
pub fn peek(addr: usize) -> u8 {
    // SAFETY: a mapped address of the test.
    unsafe { std::ptr::read_volatile(addr as *const u8) }
}

/// One byte, written through the MMU.
pub fn poke(addr: usize, byte: u8) {
    // SAFETY: a mapped, writable address of the test.
    unsafe { std::ptr::write_volatile(addr as *mut u8, byte) }
}

const fn word(seed: u64, i: usize) -> u64 {
    (seed + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17)
        ^ (i as u64 + 1)
}

/// Fills a page with the pattern of `seed`.
pub fn write_page(addr: usize, seed: u64) {
    for i in 0..PAGE / 8 {
        // SAFETY: a mapped, writable page of the test.
        unsafe { std::ptr::write_volatile((addr as *mut u64).add(i), word(seed, i)) };
    }
}

/// Whether a page holds the pattern of `seed`, every byte.
pub fn has_page(addr: usize, seed: u64) -> bool {
    // SAFETY: a mapped page of the test.
    (0..PAGE / 8)
        .all(|i| unsafe { std::ptr::read_volatile((addr as *const u64).add(i)) } == word(seed, i))
}

/// Whether a page holds zeros only.
pub fn is_zero(addr: usize) -> bool {
    // SAFETY: a mapped page of the test.
    (0..PAGE / 8).all(|i| unsafe { std::ptr::read_volatile((addr as *const u64).add(i)) } == 0)
}

/// Bytes of a range in pages with all of `all` and none of `none`.
pub fn count(addr: usize, len: usize, all: Categories, none: Categories) -> usize {
    let pagemap = Pagemap::open_self().expect("pagemap");
    pagemap
        .count(addr, addr + len, all, none)
        .expect("PAGEMAP_SCAN")
}

/// Bytes present in a range.
pub fn present(addr: usize, len: usize) -> usize {
    count(addr, len, Categories::PRESENT, Categories::empty())
}

/// Whether a block is mapped by one huge entry.
pub fn is_huge(block: usize) -> bool {
    count(
        block,
        BLOCK,
        Categories::PRESENT | Categories::HUGE,
        Categories::empty(),
    ) == BLOCK
}

/// Makes the block a zeroed huge page and fills it with patterns seeded by page number.
///
/// Where the host gives none on a touch: by collapse, which needs every page present if the range
/// is registered.
pub fn make_huge(block: usize) {
    advise(block, BLOCK, libc::MADV_HUGEPAGE).expect("MADV_HUGEPAGE");
    poke(block, 0);
    if !is_huge(block) {
        advise(block, BLOCK, libc::MADV_POPULATE_WRITE).expect("populate");
        if let Err(e) = advise(block, BLOCK, MADV_COLLAPSE) {
            skip(&format!(
                "no huge page to be had by touch or MADV_COLLAPSE: {e}"
            ));
        }
    }
    assert!(is_huge(block));
    for n in 0..512 {
        write_page(block + n * PAGE, n as u64);
    }
}

/// Whether all 512 pages hold the patterns that [`make_huge`] wrote.
pub fn block_intact(block: usize) -> bool {
    (0..512).all(|n| has_page(block + n * PAGE, n as u64))
}
