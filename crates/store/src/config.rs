//! What a store is told at its beginning, and what it tells of itself.

use crate::codec::Algorithm;

/// Sizes of a [`Ram`](crate::Ram) store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How pages are compressed.
    pub algorithm: Algorithm,
    /// Bytes of a segment while little is stored: rounded up to a power of two from 16 KiB to 16
    /// MiB.
    pub segment_bytes: u32,
    /// Most bytes of a segment: rounded and limited likewise, at least `segment_bytes`. A new one
    /// in a shard has the largest size of which there are 8 live. A huge page costs less to map
    /// than its pages one by one, and less than that in memory that was just freed whole.
    pub large_segment_bytes: u32,
    /// Parts with a lock, an open segment and a compaction of their own: rounded up to a
    /// power of two, at most 64. One lock is held about 0.2 us for a page that takes ten
    /// times that to compress, so one shard carries about as many CPUs; each further one
    /// costs up to three segments.
    pub shards: u32,
    /// With a file behind it: the store's RAM may be so many per cent of it and of what is resident
    /// before the oldest of it is written there.
    pub ram_percent: u32,
}

impl Config {
    /// One shard and segments of 256 KiB, however much is stored.
    pub fn new(algorithm: Algorithm) -> Config {
        Config {
            algorithm,
            segment_bytes: 256 << 10,
            large_segment_bytes: 0,
            shards: 1,
            ram_percent: 50,
        }
    }
}

/// What a [`Ram`](crate::Ram) store holds and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Pages stored as one word.
    pub same_pages: u64,
    /// Pages stored as a list of words.
    pub sparse_pages: u64,
    /// Pages stored compressed.
    pub block_pages: u64,
    /// Bytes of their encodings with headers.
    pub live_bytes: u64,
    /// Bytes of segments that compaction could win back.
    pub dead_bytes: u64,
    /// Segments mapped.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Bytes that compaction copied since the start.
    pub moved_bytes: u64,
    /// Segments that compaction cannot empty because a header in them was damaged.
    pub damaged_segments: u64,
    /// Pages in files: the own one, and those of parents.
    pub filed_pages: u64,
    /// Bytes of the own file that are in use.
    pub file_bytes: u64,
}
