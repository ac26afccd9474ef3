//! Stores for swapped pages.
//!
//! [`Ram`] keeps pages in RAM, encoded: same-filled pages in its table alone, mostly-zero
//! pages as a list of their words, all others as one lz4 or zstd block each. [`Disabled`]
//! takes nothing. [`faulty`] breaks a store on purpose, for tests.
//!
//! The crate runs inside programs that deckle manages. It allocates only through the global
//! allocator (zstd's C code too) and through the [`Segments`] hook, starts no thread, does no
//! input or output and keeps no thread-local state. Locks are futex mutexes, held for the
//! look-up and copy of a few encoded pages, or for a bounded step of compaction; never while a
//! page is compressed or decompressed.
#![deny(unsafe_op_in_unsafe_fn)]

mod codec;
mod disabled;
mod encode;
pub mod faulty;
mod packed;
mod pool;
mod ram;
mod segment;
mod shard;
mod table;
mod zeroed;

pub use codec::Algorithm;
pub use disabled::Disabled;
pub use encode::{MAX_ENCODED, MAX_SPARSE_WORDS};
pub use ram::{Config, Counts, Ram};
pub use segment::{Heap, Segments};
