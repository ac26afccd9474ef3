//! What a page looks like and how it is written down without a compressor.

use deckle_mm::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Largest encoding, in bytes, that is kept: 7/8 of a page.
///
/// What is kept costs its header (8 bytes), its table entry (12 bytes), the unused tail of
/// its segment and its share of dead bytes that wait for compaction. Close to a whole page
/// that eats what storing would give back, and the page would still have to be decompressed.
pub const MAX_ENCODED: usize = PAGE_SIZE / 8 * 7;

/// Most non-zero 8-byte words of a page that is stored as a list of words.
///
/// Such a list takes 10 bytes a word, which is below what lz4 needs for the same page, and
/// reading it back is one memset and a few stores.
pub const MAX_SPARSE_WORDS: usize = 32;

const WORDS: usize = PAGE_SIZE / 8;
const WORDS_PER_STEP: usize = 32;
const SPARSE_WORD_BYTES: usize = 10;

/// The bytes of a page.
pub(crate) type Page = [u8; PAGE_SIZE];

/// What one pass over a page says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// All 8-byte words are this one.
    Same(u64),
    /// At most [`MAX_SPARSE_WORDS`] words are not zero: bytes of their list.
    Sparse(usize),
    /// Anything else.
    Dense,
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| u64::from_le_bytes(*b))
}

/// Room for the longest list of words that is kept, and for those of one step beyond it.
pub(crate) const SPARSE_ROOM: usize = (MAX_SPARSE_WORDS + WORDS_PER_STEP) * SPARSE_WORD_BYTES;

/// Looks at a page in steps of 256 bytes and stops at the first step that rules out both
/// special shapes; for most pages that is the first. Writes the sparse form into `list` on the
/// way: for each non-zero word its index (2 bytes) and itself (8 bytes).
pub(crate) fn shape(page: &Page, list: &mut [u8; SPARSE_ROOM]) -> Shape {
    let first = u64::from_le_bytes(page[..8].try_into().unwrap_or([0; 8]));
    let mut differing = 0;
    let mut filled = 0;
    for (step, bytes) in page.chunks_exact(WORDS_PER_STEP * 8).enumerate() {
        // Of mostly-zero pages most steps hold nothing: one look at full speed says so. Of the
        // others two sums without branches. Both loops become vector code.
        let mut n = 0u64;
        if words(bytes).fold(0, |any, w| any | w) == 0 {
            differing |= first;
        } else {
            for w in words(bytes) {
                differing |= w ^ first;
                n += u64::from(w != 0);
            }
        }
        // Of a page that is one word there is no list to make.
        if n > 0 && filled <= MAX_SPARSE_WORDS {
            let there = words(bytes).enumerate().filter(|&(_, w)| w != 0);
            let places = list[filled * SPARSE_WORD_BYTES..].chunks_exact_mut(SPARSE_WORD_BYTES);
            for (at, (i, w)) in places.zip(there) {
                at[..2].copy_from_slice(&((step * WORDS_PER_STEP + i) as u16).to_le_bytes());
                at[2..].copy_from_slice(&w.to_le_bytes());
            }
        }
        filled += n as usize;
        if differing != 0 && filled > MAX_SPARSE_WORDS {
            return Shape::Dense;
        }
    }
    if differing == 0 {
        Shape::Same(first)
    } else {
        Shape::Sparse(filled * SPARSE_WORD_BYTES)
    }
}

/// Reads the sparse form back; false when `list` is not one.
pub(crate) fn decode_sparse(list: &[u8], page: &mut Page) -> bool {
    let (items, rest) = list.as_chunks::<SPARSE_WORD_BYTES>();
    if !rest.is_empty() {
        return false;
    }
    page.fill(0);
    for item in items {
        let i = usize::from(u16::from_le_bytes([item[0], item[1]]));
        if i >= WORDS {
            return false;
        }
        page[i * 8..i * 8 + 8].copy_from_slice(&item[2..]);
    }
    true
}

/// Fills a page with one word.
pub(crate) fn fill_same(word: u64, page: &mut Page) {
    for at in page.as_chunks_mut::<8>().0 {
        *at = word.to_le_bytes();
    }
}

/// Checksum of a page in a slot: the slot is part of it, so that the right bytes of another
/// slot are wrong bytes too.
///
/// XXH3 (64 bits): on vector units several times faster than any of the decoders.
pub(crate) fn page_sum(slot: u32, page: &Page) -> u64 {
    xxh3_64_with_seed(page, seed(slot))
}

/// Checksum of a sparse page: of its list of words, which determines the page and is a small
/// part of it.
pub(crate) fn sparse_sum(slot: u32, list: &[u8]) -> u64 {
    xxh3_64_with_seed(list, seed(slot) ^ 1 << 33)
}

/// Checksum of a same-filled page, which its word determines.
pub(crate) fn same_sum(slot: u32, word: u64) -> u64 {
    xxh3_64_with_seed(&word.to_le_bytes(), seed(slot))
}

fn seed(slot: u32) -> u64 {
    u64::from(slot) | 1 << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_told_apart_at_their_limits() {
        let mut page = [0; PAGE_SIZE];
        let shape = |page: &Page| shape(page, &mut [0; SPARSE_ROOM]);
        assert_eq!(shape(&page), Shape::Same(0));
        for n in 1..=MAX_SPARSE_WORDS {
            page[PAGE_SIZE - n * 8] = 1;
            assert_eq!(shape(&page), Shape::Sparse(n * SPARSE_WORD_BYTES));
        }
        page[0] = 1;
        assert_eq!(shape(&page), Shape::Dense);
        let word = 0x0102_0304_0506_0708;
        fill_same(word, &mut page);
        assert_eq!(shape(&page), Shape::Same(word));
        page[PAGE_SIZE - 1] ^= 1;
        assert_eq!(shape(&page), Shape::Dense);
        // One word as far as it goes, and then nothing.
        page[PAGE_SIZE / 2..].fill(0);
        assert_eq!(shape(&page), Shape::Dense);
    }

    #[test]
    fn sparse_lists_come_back_and_bad_ones_are_refused() {
        let mut page = [0; PAGE_SIZE];
        for i in (0..WORDS).step_by(17) {
            page[i * 8 + 3] = i as u8 | 1;
        }
        let mut list = [0; SPARSE_ROOM];
        let Shape::Sparse(len) = shape(&page, &mut list) else {
            panic!("not sparse");
        };
        assert_eq!(len, WORDS.div_ceil(17) * SPARSE_WORD_BYTES);
        let mut back = [1; PAGE_SIZE];
        assert!(decode_sparse(&list[..len], &mut back));
        assert_eq!(back, page);
        assert!(!decode_sparse(&list[..len - 1], &mut back));
        list[..2].copy_from_slice(&512u16.to_le_bytes());
        assert!(!decode_sparse(&list[..len], &mut back));
    }

    #[test]
    fn the_slot_is_part_of_the_checksum() {
        let page = [7; PAGE_SIZE];
        assert_ne!(page_sum(1, &page), page_sum(2, &page));
        assert_ne!(same_sum(1, 7), same_sum(2, 7));
    }
}
