//! What a fork shares of the store, and which side is charged for it.

use super::{Part, Ram};
use crate::segment::Segments;
use crate::swapfile::SwapFile;
#[cfg(doc)]
use deckle_mm::Store;

impl<S: Segments, F: SwapFile> Ram<S, F> {
    /// Before a fork: what there is is shared with the child from now on, and charged here
    /// ([`Store::charged_bytes`]) also after it is unmapped, until [`unlend`](Self::unlend).
    /// What was borrowed is charged here. Returns how many forks there were with this one.
    pub fn lend(&self) -> u64 {
        let lend = |part: &Part| self.change(part, |shard| shard.lend(&self.hooks));
        self.shards.iter().map(lend).max().unwrap_or(0)
    }

    /// Only children of the fork of this number (see [`lend`](Self::lend)) and of later ones
    /// hold anything still of what was lent; `None`: no child does.
    pub fn unlend(&self, oldest: Option<u64>) {
        self.each(|shard| shard.unlend(oldest));
    }

    /// In a child of fork: what its parent [lent](Self::lend) is not charged here. Returns its
    /// bytes.
    pub fn borrow_lent(&self) -> u64 {
        *self.tier.extents() = Default::default();
        self.take_file_reads();
        self.each(|shard| shard.borrow_lent(&self.hooks));
        self.borrowed()
    }

    /// Bytes of what is borrowed, and not unmapped since.
    pub fn borrowed(&self) -> u64 {
        let borrowed = |part: &Part| part.lock().borrowed();
        self.shards.iter().map(borrowed).sum()
    }

    /// What is borrowed is charged here from now on: its lender does not pay any more.
    pub fn own(&self) {
        self.each(|shard| shard.own());
    }
}
