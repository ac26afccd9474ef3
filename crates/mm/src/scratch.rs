//! Buffers for pages on their way between a store and the program, kept for the next time.

use crate::machine::{LockClass, Machine};
use crate::sync::Lock;
use crate::units::PAGE_SIZE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Buffers kept at most; more are freed when they come back.
const KEEP: usize = 4;
/// Most pages that are read together: they stay in a CPU's cache between the one copy and the
/// other, and each process has such buffers: larger ones would be most of what a small one costs.
pub const PORTION: u32 = 16;
/// Bytes of a buffer that is kept at most.
const LARGEST: usize = PORTION as usize * PAGE_SIZE;

/// A pool of buffers.
pub struct Scratch(Lock<Vec<Box<[u8]>>>);

impl Scratch {
    /// An empty pool.
    pub const fn new() -> Scratch {
        Scratch(Lock::new(LockClass::Scratch, 0, Vec::new()))
    }

    /// A buffer of at least `bytes` bytes with unspecified contents.
    pub fn take<M: Machine>(&self, m: &M, bytes: usize) -> Box<[u8]> {
        let kept = self.0.lock(m).pop();
        match kept {
            Some(b) if b.len() >= bytes => b,
            _ => vec![0; bytes].into_boxed_slice(),
        }
    }

    /// Returns a buffer.
    pub fn give_back<M: Machine>(&self, m: &M, buffer: Box<[u8]>) {
        let mut kept = self.0.lock(m);
        if kept.len() < KEEP && buffer.len() <= LARGEST {
            kept.push(buffer);
        }
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}
