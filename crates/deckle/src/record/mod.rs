//! The record of a run: what `deckle run --record` writes and `deckle plot` reads.
//!
//! Lines of JSON. The first is the head, an object with the number of the format, the command, the
//! limits and the names of the columns. Then samples, each an array of whole numbers in the order
//! of the columns, and *marks*, objects that say what happened when. It is bounded: once there are
//! [`SAMPLES`] of them, each two become one, and from then on they come half as often. A record
//! that was cut off anywhere can be read up to there.

mod columns;
mod read;
mod write;

pub use read::{Mark, Record};
pub use write::Recorder;

/// Number of the format. New columns, members and marks may come without a new one.
const FORMAT: u64 = 1;
/// Member of the head that has it.
const KEY: &str = "deckle_record";
/// Most samples.
const SAMPLES: usize = 8192;
/// Most marks; how many more there were is in the last one.
const MARKS: usize = 4096;
