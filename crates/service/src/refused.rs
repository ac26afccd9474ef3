//! Copies of some pages that could go nowhere: what the report of a kill looks at where a program
//! has few huge pages, since what is resident may not be read there.
//!
//! Each page that was refused is among them with the same chance (a reservoir: of `n` pages the
//! last is kept with `KEPT / n`, in the place of any). They are the oldest of a program, its tables
//! and code's data, and say little of what it fills memory with.

use deckle_door::lock::Lock;
use deckle_mm::PAGE_SIZE;

/// Pages that are kept.
pub const KEPT: usize = 32;

/// Numbers in a row to any (SplitMix64).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

#[derive(Default)]
struct Ring {
    told: u64,
    pages: Vec<Box<[u8; PAGE_SIZE]>>,
}

/// Some of the pages that were refused.
pub struct Refused(Lock<Ring>);

impl Default for Refused {
    fn default() -> Refused {
        Refused(Lock::new(Ring::default()))
    }
}

impl Refused {
    /// Keeps a copy of a page, or does not.
    pub fn note(&self, page: &[u8]) {
        let Ok(page) = <&[u8; PAGE_SIZE]>::try_from(page) else {
            return;
        };
        let mut ring = self.0.lock();
        let told = ring.told;
        ring.told += 1;
        if ring.pages.len() < KEPT {
            ring.pages.push(Box::new(*page));
        } else if let Some(kept) = ring.pages.get_mut((mix(told) % (told + 1)) as usize) {
            **kept = *page;
        }
    }

    /// Shows what is kept.
    pub fn each(&self, mut look: impl FnMut(&[u8])) {
        self.0.lock().pages.iter().for_each(|page| look(&**page));
    }
}
