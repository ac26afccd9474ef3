//! The file behind the RAM: what the store needs of it, and which parts of it are in use.

/// A file that sealed segments are written to, and those that a parent's were before a fork.
///
/// Offsets and lengths are multiples of 4096, and buffers are aligned to as much: the file may be
/// open for direct input and output. Every call but `number` may take long, and none is made with a
/// lock of the store held.
pub trait SwapFile: Send + Sync {
    /// Whether there may be one.
    const IS_FILE: bool = true;

    /// The number by which this process's file goes; 0: there is none, and no other call is made
    /// but [`read`](Self::read) of another's.
    fn number(&self) -> u64;
    /// Whether a write would not have to wait for a limit of bytes a second.
    fn may_write(&self) -> bool {
        true
    }
    /// Asks for `bytes` of room on the disk; false: there is none to be had.
    fn charge(&self, bytes: u64) -> bool;
    /// Gives so much of it back.
    fn uncharge(&self, bytes: u64);
    /// Writes all of `bytes` at byte `at` of this process's file.
    ///
    /// # Errors
    /// The errno; what is at `at` is not to be relied on then.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32>;
    /// Fills all of `bytes` from byte `at` of the file of that number.
    ///
    /// # Errors
    /// The errno.
    fn read(&self, number: u64, at: u64, bytes: &mut [u8]) -> Result<(), i32>;
    /// What is there is not needed any more: the disk may have it.
    fn discard(&self, at: u64, bytes: u64);
}

/// No file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFile;

/// ENXIO: there is no such file.
const ENXIO: i32 = 6;

impl SwapFile for NoFile {
    const IS_FILE: bool = false;

    fn number(&self) -> u64 {
        0
    }
    fn charge(&self, _bytes: u64) -> bool {
        false
    }
    fn uncharge(&self, _bytes: u64) {}
    fn write(&self, _at: u64, _bytes: &[u8]) -> Result<(), i32> {
        Err(ENXIO)
    }
    fn read(&self, _number: u64, _at: u64, _bytes: &mut [u8]) -> Result<(), i32> {
        Err(ENXIO)
    }
    fn discard(&self, _at: u64, _bytes: u64) {}
}

/// The unit of places in a file.
pub(crate) const BLOCK: u32 = 4096;

/// Where in a file a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// The file's number; 0: in none.
    pub(crate) file: u64,
    /// In units of [`BLOCK`]: 16 TiB are reached, the most that a file has on common systems.
    pub(crate) block: u32,
}

impl Extent {
    pub(crate) const NONE: Extent = Extent { file: 0, block: 0 };

    /// Its first byte.
    pub(crate) fn at(self) -> u64 {
        u64::from(self.block) * u64::from(BLOCK)
    }
}

/// Sizes of segments: powers of two from 16 KiB to 16 MiB.
const SIZES: usize = 11;
const SMALLEST: u32 = 16 << 10;

/// The parts of this process's file: those in use, and those to be used anew.
#[derive(Default)]
pub(crate) struct Extents {
    /// Nothing was ever in use from this block on.
    end: u32,
    /// By size.
    free: [Vec<u32>; SIZES],
    /// Bytes in use.
    bytes: u64,
}

impl Extents {
    /// Which of the [`SIZES`] has room for so many bytes. A segment that a fork has cut has none
    /// of them itself.
    fn class(size: u32) -> usize {
        let room = size.max(SMALLEST).next_power_of_two() / SMALLEST;
        (room.trailing_zeros() as usize).min(SIZES - 1)
    }

    /// A part for `size` bytes, those of a segment; `None`: the file is at its end.
    pub(crate) fn take(&mut self, size: u32) -> Option<u32> {
        let class = Self::class(size);
        let block = match self.free[class].pop() {
            Some(block) => block,
            None => {
                let block = self.end;
                self.end = block.checked_add((SMALLEST << class) / BLOCK)?;
                block
            }
        };
        self.bytes += u64::from(size);
        Some(block)
    }

    /// Gives one back.
    pub(crate) fn give(&mut self, block: u32, size: u32) {
        self.bytes -= u64::from(size);
        let free = &mut self.free[Self::class(size)];
        // Without memory to note it in, the place is not used again: the file has many.
        if free.try_reserve(1).is_ok() {
            free.push(block);
        }
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_do_not_overlap_and_are_used_anew() {
        let mut extents = Extents::default();
        let small = extents.take(16 << 10).unwrap();
        let large = extents.take(2 << 20).unwrap();
        assert_eq!(
            (small, large, extents.bytes()),
            (0, 4, (2 << 20) + (16 << 10))
        );
        extents.give(large, 2 << 20);
        assert_eq!(extents.take(16 << 10), Some(4 + 512));
        assert_eq!(extents.take(2 << 20), Some(large));
        // One that was cut by a fork, and gives its place to another.
        let cut = extents.take(36 << 10).unwrap();
        assert_eq!(extents.take(16 << 10), Some(cut + 16));
        extents.give(cut, 36 << 10);
        assert_eq!(extents.take(20 << 10), Some(cut + 20));
        assert_eq!(extents.take(64 << 10), Some(cut));
        extents.end = u32::MAX - 100;
        assert_eq!(extents.take(2 << 20), None);
    }
}
