//! Where swapped pages go.

use crate::units::Slot;
use core::fmt;

/// Why a store stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreStop {
    /// The page does not compress enough for storing it to give memory back.
    Incompressible,
    /// The store has no room (its own limit, or the medium's).
    Full,
    /// The store takes no pages at all (`--swap none`).
    Disabled,
    /// No memory for the store's own needs.
    NoMemory,
    /// Reading gave other bytes than were written (checksum), or nothing was ever put there.
    Corrupt,
    /// The medium failed, with its errno.
    Io(i32),
}

/// A store operation that stopped before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreError {
    /// Pages that were done before: slots `first..first + done` are stored (or were read).
    pub done: u32,
    /// Why the next one was not.
    pub why: StoreStop,
}

/// What one [`Store::writeback`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Pages that are on the slower medium since.
    pub pages: u64,
    /// Bytes of RAM that they had.
    pub bytes: u64,
}

impl fmt::Display for StoreStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreStop::Incompressible => f.write_str("the page does not compress"),
            StoreStop::Full => f.write_str("the store is full"),
            StoreStop::Disabled => f.write_str("swap is off"),
            StoreStop::NoMemory => f.write_str("no memory for the store"),
            StoreStop::Corrupt => f.write_str("the stored bytes fail their checksum"),
            StoreStop::Io(errno) => write!(f, "input or output failed (errno {errno})"),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} pages: {}", self.done, self.why)
    }
}

/// A place for swapped pages, addressed by slot numbers that the core hands out.
///
/// Operations may be called from several CPUs at once, for different slots; the core never
/// runs two operations on the same slot at the same time. They may take long (compression,
/// input and output) and are called with no lock held except the mmap lock.
pub trait Store: Send + Sync {
    /// Whether `put` can succeed at all; constant.
    fn accepts(&self) -> bool;
    /// Stores `pages.len() / 4096` pages under the slots `first`, `first + 1`, ...
    ///
    /// Pre: the slots are unused; `pages` is a whole number of pages that nobody writes.
    /// Post: on `Err` exactly the first `done` pages are stored.
    fn put(&self, first: Slot, pages: &[u8]) -> Result<(), StoreError>;
    /// Reads `pages.len() / 4096` consecutive slots back, bytes verified.
    ///
    /// Post: on `Err` the first `done` pages hold what was put, the rest is unspecified; the
    /// slots keep what they hold.
    fn get(&self, first: Slot, pages: &mut [u8]) -> Result<(), StoreError>;
    /// Frees `count` slots; unused ones are ignored.
    fn free(&self, first: Slot, count: u32);
    /// RAM the store uses now, in bytes, everything included.
    fn ram_bytes(&self) -> u64;
    /// Bytes that the group is charged for: [`Store::ram_bytes`], less what another process
    /// pays for and more what others hold still of what was given back here.
    fn charged_bytes(&self) -> u64 {
        self.ram_bytes()
    }
    /// Whether other processes have the bytes of a slot in memory too, since a fork: to keep the
    /// slot takes none, and to free it gives none back.
    fn is_shared(&self, slot: Slot) -> bool {
        let _ = slot;
        false
    }
    /// Moves about `budget` bytes of what is stored closer together, so that RAM goes back. Returns
    /// the bytes moved or given back; 0: nothing is to be gained.
    fn compact(&self, budget: u64) -> u64 {
        let _ = budget;
        0
    }
    /// Whether the store's RAM, beside `resident` pages, is so much that some of what it holds
    /// should go on to a slower medium; false where there is none.
    fn wants_writeback(&self, resident: u64) -> bool {
        let _ = resident;
        false
    }
    /// Writes some of what is stored, the oldest first, to the slower medium, and gives its RAM
    /// back; `None`: there is no such medium, it takes nothing now, or there is nothing to write.
    fn writeback(&self) -> Option<Written> {
        None
    }
    /// A page that can go nowhere, since the store takes none or this one does not compress: one of
    /// some, from which a report may tell what would have helped. To be kept it has to be copied.
    fn refused(&self, page: &[u8]) {
        let _ = page;
    }
    /// Pages stored now.
    fn stored_pages(&self) -> u64;
}
