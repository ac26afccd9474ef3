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

use serde_json::{Value, json};

pub use read::{Mark, Record};
pub use write::Recorder;

/// Number of the format. New columns, members and marks may come without a new one.
const FORMAT: u64 = 1;
/// Member of the head that has it.
const KEY: &str = "deckle_record";
/// Most bytes of the command, as JSON has it; a longer one ends with dots.
const COMMAND: usize = 64 << 10;
/// Most samples.
const SAMPLES: usize = 8192;
/// Most marks; how many more there were is in the last one.
const MARKS: usize = 4096;

/// As much of a command as a record has room for.
pub fn command<W: AsRef<str>>(words: &[W]) -> Value {
    let mut left = COMMAND;
    let fits = |word: &&W| {
        let bytes = json!(word.as_ref()).to_string().len() + 1;
        left = left.saturating_sub(bytes);
        left > 0
    };
    let mut shown: Vec<&str> = words.iter().take_while(fits).map(AsRef::as_ref).collect();
    if shown.len() < words.len() {
        shown.push("...");
    }
    json!(shown)
}
