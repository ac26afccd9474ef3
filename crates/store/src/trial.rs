//! What pages would take in a store of another kind: pages are encoded, and thrown away.

use crate::codec::{Algorithm, Writer};
use crate::packed::Packed;
use crate::ram::Ram;
use crate::segment::{Segments, footprint};
use crate::swapfile::SwapFile;
use deckle_mm::{PAGE_SIZE, Slot, Store, StoreStop};

/// A compressor, and what it has made of the pages that it was given.
pub struct Trial {
    writer: Box<Writer>,
    pages: u64,
    bytes: u64,
}

impl Trial {
    /// Nothing tried yet; `None` without memory.
    pub fn new(algorithm: Algorithm) -> Option<Trial> {
        Some(Trial {
            writer: Writer::new(algorithm)?,
            pages: 0,
            bytes: 0,
        })
    }

    /// Tries one page. Anything but 4096 bytes is no page, and ignored.
    pub fn add(&mut self, page: &[u8]) {
        let Ok(page) = page.try_into() else { return };
        let bytes = match Packed::new(&mut self.writer, 0, 0, page, false) {
            Ok(packed) => u64::from(footprint(packed.end as u32)),
            Err(StoreStop::Incompressible) => PAGE_SIZE as u64,
            // Without memory nothing is known of it.
            Err(_) => return,
        };
        self.pages += 1;
        self.bytes += bytes;
    }

    /// Bytes of RAM for a page in the mean: of its encoding with a header, or 4096 where the store
    /// would not take it. `None`: nothing was tried.
    pub fn mean_bytes(&self) -> Option<u64> {
        self.bytes.checked_div(self.pages)
    }

    /// Pages tried.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}

impl<S: Segments, F: SwapFile> Ram<S, F> {
    /// Shows about `most` of the pages that are stored, from all over the store. It walks the whole
    /// table, and holds each part's lock meanwhile: for who is out of memory.
    pub fn sample(&self, most: usize, look: &mut dyn FnMut(&[u8])) {
        let stride = (self.stored_pages() as usize).div_ceil(most.max(1)).max(1);
        let mut slots = Vec::new();
        self.each(|shard| slots.extend(shard.some_slots(stride)));
        let mut page = [0; PAGE_SIZE];
        for slot in slots {
            // One that was given up since is none.
            if self.get(Slot(slot), &mut page).is_ok() {
                look(&page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_that_of_what_is_stored_and_what_is_not() {
        let mut lz4 = Trial::new(Algorithm::Lz4).unwrap();
        assert_eq!((lz4.mean_bytes(), lz4.pages()), (None, 0));
        lz4.add(&[7; 100]);
        assert_eq!(lz4.pages(), 0, "no page");
        let mut page = [0u8; PAGE_SIZE];
        lz4.add(&page);
        let word = lz4.mean_bytes().unwrap();
        assert!(word <= 16, "{word}");
        let mut seed = 1u64;
        for byte in &mut page {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            *byte = (seed >> 56) as u8;
        }
        lz4.add(&page);
        assert_eq!(lz4.mean_bytes(), Some((word + PAGE_SIZE as u64) / 2));
        assert_eq!(lz4.pages(), 2);
    }

    #[test]
    #[cfg(feature = "zstd")]
    fn zstd_makes_less_of_text_than_lz4() {
        let (mut lz4, mut zstd) = (
            Trial::new(Algorithm::Lz4).unwrap(),
            Trial::new(Algorithm::Zstd(3)).unwrap(),
        );
        let mut text = String::new();
        for i in 0..4000u64 {
            text += &format!("{} ", i.wrapping_mul(0x9e37_79b9) % 9973);
        }
        for page in text.as_bytes().chunks_exact(PAGE_SIZE) {
            lz4.add(page);
            zstd.add(page);
        }
        let (lz4, zstd) = (lz4.mean_bytes().unwrap(), zstd.mean_bytes().unwrap());
        assert!(zstd < lz4 && lz4 < PAGE_SIZE as u64, "{zstd} {lz4}");
    }
}
