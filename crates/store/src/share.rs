//! Memory that a fork has copied: who is charged for it.

use std::collections::VecDeque;

/// With whom a segment, or a leaf of a table, is shared since a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// With nobody.
    Own,
    /// With a child, who is not charged for it: its charge stays when it is unmapped.
    Lent,
    /// With a parent, who is charged for it.
    Borrowed,
}

/// What was lent and is gone here, or was copied by a write, while a child may have it still.
#[derive(Default)]
pub(crate) struct Ghosts {
    /// Forks until now.
    forks: u64,
    /// After how many forks so many bytes went: children of later ones have none of them.
    gone: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Ghosts {
    /// One fork more; how many there were with it.
    pub(crate) fn fork(&mut self) -> u64 {
        self.forks += 1;
        self.forks
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        match self.gone.back_mut() {
            Some((forks, sum)) if *forks == self.forks => *sum += bytes,
            _ => self.gone.push_back((self.forks, bytes)),
        }
    }

    /// Only children of the fork of this number and later ones live; `None`: none does.
    pub(crate) fn forget(&mut self, oldest: Option<u64>) {
        let oldest = oldest.unwrap_or(u64::MAX);
        while let Some(&(forks, bytes)) = self.gone.front()
            && forks < oldest
        {
            self.gone.pop_front();
            self.bytes -= bytes;
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
