//! Stores for swapped pages.
//!
//! [`Ram`] keeps pages in RAM, encoded: same-filled pages in its table alone, mostly-zero
//! pages as a list of their words, all others as one lz4 or zstd block each. [`Disabled`]
//! takes nothing. [`faulty`] breaks a store on purpose, for tests.
//!
//! Behind the RAM there may be a file ([`SwapFile`]): what was stored longest ago goes on to it in
//! whole segments, and so do pages that do not compress.
//!
//! The crate runs inside programs that deckle manages. It allocates only through the global
//! allocator (zstd's C code too) and through the [`Segments`] hook, starts no thread, does no
//! input or output but through the [`SwapFile`] hook and keeps no thread-local state. Locks are
//! futex mutexes, held for the look-up and copy of a few encoded pages, or for a bounded step of
//! compaction; never while a page is compressed or decompressed, or a file is read or written.

#![forbid(unsafe_code)]

mod codec;
mod config;
mod disabled;
mod encode;
mod encrypted;
pub mod faulty;
mod packed;
mod pool;
mod ram;
mod segment;
mod shard;
mod share;
mod swapfile;
mod table;
mod tier;
mod trial;

pub use codec::Algorithm;
pub use config::{Config, Counts};
pub use disabled::Disabled;
pub use encode::{MAX_ENCODED, MAX_SPARSE_WORDS};
pub use encrypted::{Encrypted, KEY};
pub use ram::Ram;
pub use segment::{Heap, Segments};
pub use swapfile::{NoFile, SwapFile};
pub use trial::Trial;
