//! Where managed memory may be: the program's calls elsewhere are no concern of the service.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

/// Bytes that one bit stands for, as a power of two.
const SHIFT: u32 = 30;
/// Bytes of the address space that a program can have, as a power of two.
const SPACE: u32 = 47;
const WORDS: usize = 1 << (SPACE - SHIFT - 6);

/// One bit for each 1 GiB of addresses: set before something is managed there, never cleared.
#[repr(C)]
pub struct Places([AtomicU64; WORDS]);

/// First and last bit of a range; `None` if it is not all in the address space.
fn bits(start: usize, bytes: usize) -> Option<(usize, usize)> {
    let last = start.checked_add(bytes.max(1) - 1)?;
    (last < 1 << SPACE).then_some((start >> SHIFT, last >> SHIFT))
}

/// The bits of word `word` between two bits.
fn mask(word: usize, (first, last): (usize, usize)) -> u64 {
    let low = first.saturating_sub(word * 64).min(63);
    let high = (last - word * 64).min(63);
    (!0 << low) & (!0 >> (63 - high))
}

impl Places {
    /// No managed memory anywhere.
    pub const fn new() -> Places {
        Places([const { AtomicU64::new(0) }; WORDS])
    }

    /// Notes that there may be managed memory in a range.
    pub fn note(&self, start: usize, bytes: usize) {
        let Some(range) = bits(start, bytes) else {
            return;
        };
        for word in range.0 / 64..=range.1 / 64 {
            let mask = mask(word, range);
            if self.0[word].load(Acquire) & mask != mask {
                self.0[word].fetch_or(mask, Release);
            }
        }
    }

    /// Whether there may be managed memory in a range; no in one that does not exist.
    pub fn may_hold(&self, start: usize, bytes: usize) -> bool {
        let Some(range) = bits(start, bytes) else {
            return false;
        };
        let mut words = range.0 / 64..=range.1 / 64;
        words.any(|word| self.0[word].load(Acquire) & mask(word, range) != 0)
    }
}

#[cfg(test)]
#[path = "../tests/unit/places.rs"]
mod tests;
