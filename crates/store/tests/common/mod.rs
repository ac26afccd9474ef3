//! Pages of every kind the store tells apart, from a seed.
#![allow(dead_code)] // the benchmark uses a part

use deckle_mm::PAGE_SIZE;

/// A page's bytes.
pub type Page = [u8; PAGE_SIZE];

/// Kinds of pages: 0 zero, 1 same-filled, 2 sparse, 3 lz4 ratio about 3:1, 4 about 1.5:1,
/// 5 text-like.
pub const KINDS: u32 = 6;

/// SplitMix64: a small generator, good enough for bytes that do not compress.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A page with `random` / 96 of each 384 bytes random, the rest zero.
pub fn mixed(seed: u64, random: usize) -> Page {
    let mut rng = Rng(seed);
    let mut page = [0; PAGE_SIZE];
    for group in page.chunks_mut(384) {
        let end = (random * 4).min(group.len());
        for b in &mut group[..end] {
            *b = rng.next() as u8;
        }
    }
    page
}

/// A page of one of the kinds.
pub fn page(kind: u32, seed: u64) -> Page {
    let mut rng = Rng(seed ^ 0x5eed);
    let mut page = [0; PAGE_SIZE];
    match kind {
        0 => {}
        1 => {
            let word = rng.next().to_le_bytes();
            page.as_chunks_mut::<8>().0.fill(word);
        }
        2 => {
            for _ in 0..=rng.below(20) {
                let at = rng.below(512) as usize * 8;
                page[at..at + 8].copy_from_slice(&rng.next().to_le_bytes());
            }
        }
        3 => page = mixed(seed, 29),
        4 => page = mixed(seed, 64),
        _ => {
            let words: [&[u8; 8]; 4] = [b"folio   ", b"segment ", b"reclaim ", b"mapping "];
            for at in page.as_chunks_mut::<8>().0 {
                *at = *words[rng.below(4) as usize];
            }
        }
    }
    page
}

/// A page that no encoding makes smaller.
pub fn noise(seed: u64) -> Page {
    mixed(seed, 96)
}
