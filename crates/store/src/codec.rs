//! The compressors and the memory they work in.

use crate::encode::{MAX_ENCODED, Page, SPARSE_ROOM};
use crate::pool::Scratch;
use crate::table::boxed;
use deckle_mm::{PAGE_SIZE, StoreStop};
use deckle_sys::Memory;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use std::fmt;
use std::ops::Range;

/// How pages are compressed that are neither same-filled nor sparse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// LZ4 blocks: the fastest.
    #[default]
    Lz4,
    /// Zstandard with this level (libzstd clamps it to what it knows): denser and slower.
    #[cfg(feature = "zstd")]
    Zstd(i32),
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Lz4 => f.write_str("lz4"),
            #[cfg(feature = "zstd")]
            Algorithm::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// The longest block that lz4 can make of a page: the encoder asks for that much room even
/// where it needs less.
const LZ4_ROOM: usize = lz4_flex::block::get_maximum_output_size(PAGE_SIZE);

/// Encodings of a few pages, and room for one more whatever it is.
const ROOM: usize = LZ4_ROOM + (8 << 10);

/// What a put works in. Kept between calls, so that a put allocates nothing.
pub(crate) struct Writer {
    out: Box<[u8; ROOM]>,
    engine: Packer,
}

enum Packer {
    // The hash table (8 KiB) is inline in lz4_flex without its `alloc` feature.
    Lz4(Box<CompressTable>),
    #[cfg(feature = "zstd")]
    Zstd(zstd_safe::CCtx<'static>),
}

impl Writer {
    /// A writer, or `None` without memory.
    pub(crate) fn new(algorithm: Algorithm) -> Option<Box<Writer>> {
        let engine = match algorithm {
            Algorithm::Lz4 => Packer::Lz4(Box::new(CompressTable::small())),
            #[cfg(feature = "zstd")]
            Algorithm::Zstd(level) => {
                use zstd_safe::CParameter;
                let mut context = zstd_safe::CCtx::try_create()?;
                context
                    .set_parameter(CParameter::CompressionLevel(level))
                    .ok()?;
                // We have a checksum of our own and know every length.
                context
                    .set_parameter(CParameter::ContentSizeFlag(false))
                    .ok()?;
                context
                    .set_parameter(CParameter::ChecksumFlag(false))
                    .ok()?;
                Packer::Zstd(context)
            }
        };
        Some(Box::new(Writer {
            out: boxed(|| 0)?,
            engine,
        }))
    }

    /// Whether one more page can be encoded behind the first `at` bytes.
    pub(crate) fn fits(&self, at: usize) -> bool {
        at + LZ4_ROOM <= ROOM
    }

    /// Room from byte `at` on, which [fits](Self::fits), for an encoding made without the
    /// compressor.
    pub(crate) fn room(&mut self, at: usize) -> &mut [u8; SPARSE_ROOM] {
        const { assert!(SPARSE_ROOM <= LZ4_ROOM) };
        let at = at.min(ROOM - LZ4_ROOM);
        // Never too short, by the lines above.
        self.out[at..]
            .first_chunk_mut()
            .expect("the room is larger")
    }

    /// Bytes of the room.
    pub(crate) fn written(&self, range: Range<usize>) -> &[u8] {
        self.out.get(range).unwrap_or_default()
    }

    /// Copies a page as it is into the room from byte `at` on, which [fits](Self::fits).
    pub(crate) fn copy(&mut self, at: usize, page: &Page) -> usize {
        const { assert!(PAGE_SIZE <= LZ4_ROOM) };
        self.out[at.min(ROOM - LZ4_ROOM)..][..PAGE_SIZE].copy_from_slice(page);
        PAGE_SIZE
    }

    /// Compresses a page into the room from byte `at` on, which [fits](Self::fits).
    /// `Incompressible` beyond [`MAX_ENCODED`] bytes.
    pub(crate) fn pack(&mut self, at: usize, page: &Page) -> Result<usize, StoreStop> {
        let out = &mut self.out[at.min(ROOM - LZ4_ROOM)..];
        let len = match &mut self.engine {
            Packer::Lz4(table) => compress_into_with_table(page, &mut out[..LZ4_ROOM], table)
                .map_err(|_| StoreStop::Incompressible)?,
            #[cfg(feature = "zstd")]
            Packer::Zstd(context) => context
                .compress2(&mut out[..MAX_ENCODED], page)
                .map_err(zstd_stop)?,
        };
        if len > MAX_ENCODED {
            Err(StoreStop::Incompressible)
        } else {
            Ok(len)
        }
    }
}

/// Of libzstd's errors only "no memory" is not about the page being too large encoded.
#[cfg(feature = "zstd")]
fn zstd_stop(code: zstd_safe::ErrorCode) -> StoreStop {
    if zstd_safe::get_error_name(code).contains("llocation") {
        StoreStop::NoMemory
    } else {
        StoreStop::Incompressible
    }
}

impl Scratch for Writer {
    fn bytes(&self) -> usize {
        let engine = match &self.engine {
            Packer::Lz4(_) => size_of::<CompressTable>(),
            #[cfg(feature = "zstd")]
            Packer::Zstd(context) => context.sizeof(),
        };
        size_of::<Writer>() + ROOM + engine
    }
}

/// What a get works in.
pub(crate) struct Reader {
    encoded: Box<[u8; PAGE_SIZE]>,
    /// What is read of a file, if there may be one: [`WINDOW`] bytes, on a block's boundary.
    window: Option<Memory>,
    engine: Unpacker,
}

/// Blocks of a file: those that some 16 pages lie in which do not compress, or more that do.
const WINDOW: usize = 18 * PAGE_SIZE;

enum Unpacker {
    Lz4,
    #[cfg(feature = "zstd")]
    Zstd(zstd_safe::DCtx<'static>),
}

impl Reader {
    /// A reader, of files too if there `are` any; `None` without memory.
    pub(crate) fn new(algorithm: Algorithm, are: bool) -> Option<Box<Reader>> {
        let engine = match algorithm {
            Algorithm::Lz4 => Unpacker::Lz4,
            #[cfg(feature = "zstd")]
            Algorithm::Zstd(_) => Unpacker::Zstd(zstd_safe::DCtx::try_create()?),
        };
        Some(Box::new(Reader {
            encoded: boxed(|| 0)?,
            window: match are {
                true => Some(Memory::heap(WINDOW)?),
                false => None,
            },
            engine,
        }))
    }

    /// Room for the `bytes` bytes from byte `at` of a file on, with all of the blocks that they lie
    /// in; `None` for more than it has. With where the blocks begin.
    pub(crate) fn window(&mut self, at: u64, bytes: usize) -> Option<(u64, &mut [u8])> {
        let from = at / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        let whole = ((at - from) as usize + bytes).next_multiple_of(PAGE_SIZE);
        Some((from, self.window.as_mut()?.get_mut(..whole)?))
    }

    /// What was read into the [window](Self::window), and what was there before behind it.
    pub(crate) fn read(&self) -> &[u8] {
        self.window.as_ref().map_or(&[], |w| w)
    }

    /// Takes an encoding from what was read into the [window](Self::window).
    pub(crate) fn take_read(&mut self, at: usize, len: usize) -> bool {
        let read = self.window.as_ref().and_then(|w| w.get(at..at + len));
        match (read, self.encoded.get_mut(..len)) {
            (Some(read), Some(room)) => {
                room.copy_from_slice(read);
                true
            }
            _ => false,
        }
    }

    /// Takes a copy of an encoding, so that the store's lock can be dropped before decoding.
    /// False when it is longer than any encoding of ours.
    pub(crate) fn take(&mut self, encoded: &[u8]) -> bool {
        match self.encoded.get_mut(..encoded.len()) {
            Some(room) => {
                room.copy_from_slice(encoded);
                true
            }
            None => false,
        }
    }

    /// The first `len` bytes taken.
    pub(crate) fn taken(&self, len: usize) -> &[u8] {
        &self.encoded[..len.min(PAGE_SIZE)]
    }

    /// Decompresses the `len` bytes taken, or copies them if they are a page as it is; false unless
    /// they give exactly a page. Needs no memory beyond its own.
    pub(crate) fn unpack(&mut self, len: usize, page: &mut Page) -> bool {
        let encoded = &self.encoded[..len.min(PAGE_SIZE)];
        if len == PAGE_SIZE {
            page.copy_from_slice(encoded);
            return true;
        }
        match &mut self.engine {
            Unpacker::Lz4 => decompress_into(encoded, page).is_ok_and(|n| n == PAGE_SIZE),
            #[cfg(feature = "zstd")]
            Unpacker::Zstd(context) => context.decompress(&mut page[..], encoded) == Ok(PAGE_SIZE),
        }
    }
}

impl Scratch for Reader {
    fn bytes(&self) -> usize {
        let engine = match &self.engine {
            Unpacker::Lz4 => 0,
            #[cfg(feature = "zstd")]
            Unpacker::Zstd(context) => context.sizeof(),
        };
        let window = self.window.as_ref().map_or(0, |w| w.len());
        size_of::<Reader>() + PAGE_SIZE + window + engine
    }
}
