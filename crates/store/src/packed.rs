//! Pages that are encoded and not stored yet.

use crate::codec::Writer;
use crate::encode::{Page, Shape, page_sum, same_sum, shape, sparse_sum};
use crate::shard::Encoding;
use deckle_mm::StoreStop;

/// An encoded page in a writer's room.
pub(crate) struct Packed {
    shape: Shape,
    pub(crate) sum: u64,
    /// Where its encoding begins and ends.
    start: usize,
    pub(crate) end: usize,
}

impl Packed {
    pub(crate) const NOTHING: Packed = Packed {
        shape: Shape::Same(0),
        sum: 0,
        start: 0,
        end: 0,
    };

    /// Encodes a page from byte `start` of the room on, which fits. One that does not compress is
    /// taken as it is if that is `allowed`.
    pub(crate) fn new(
        writer: &mut Writer,
        start: usize,
        slot: u32,
        page: &Page,
        allowed: bool,
    ) -> Result<Packed, StoreStop> {
        let shape = shape(page, writer.room(start));
        let (sum, end) = match shape {
            Shape::Same(word) => (same_sum(slot, word), start),
            Shape::Sparse(len) => {
                let end = start + len;
                (sparse_sum(slot, writer.written(start..end)), end)
            }
            Shape::Dense => {
                let len = match writer.pack(start, page) {
                    Err(StoreStop::Incompressible) if allowed => writer.copy(start, page),
                    other => other?,
                };
                (page_sum(slot, page), start + len)
            }
        };
        Ok(Packed {
            shape,
            sum,
            start,
            end,
        })
    }

    /// Its encoding.
    pub(crate) fn encoding<'a>(&self, writer: &'a Writer) -> Encoding<'a> {
        let bytes = writer.written(self.start..self.end);
        match self.shape {
            Shape::Same(word) => Encoding::Same(word),
            Shape::Sparse(_) => Encoding::Sparse(bytes),
            Shape::Dense => Encoding::Block(bytes),
        }
    }
}
