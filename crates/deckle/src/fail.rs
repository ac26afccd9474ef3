//! How deckle itself fails: one line, and an exit status.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// An error for people: `deckle: WHAT: what to do`.
#[derive(Debug)]
pub struct Fail {
    /// Exit status.
    pub status: i32,
    /// The line, without `deckle: `; empty: none is said.
    pub text: String,
}

impl Fail {
    /// deckle's own failure: 125.
    pub fn own(text: impl Into<String>) -> Fail {
        Fail {
            status: 125,
            text: text.into(),
        }
    }

    /// Standard output takes no more. Where its reader has gone, as `head` does, that is no
    /// mistake: no line is said, and the status is that of a program that SIGPIPE ends.
    pub fn output(e: &io::Error) -> Fail {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Fail {
                status: 128 + libc::SIGPIPE,
                text: String::new(),
            },
            _ => Fail::own(format!("output: {}", plain(e))),
        }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fail {}

/// An I/O error without Rust's `(os error N)`.
pub fn plain(e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(n) => deckle_sys::Errno(n).to_string(),
        None => e.to_string(),
    }
}

/// All bytes of a file that somebody has named; no more than `most`, since it may be a device that
/// never ends.
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read_named(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!(
            "more than {}: give another file",
            crate::size::show(most)
        ))),
        false => Ok(bytes),
    }
}

/// The same as text.
///
/// # Errors
/// As [`read_named`]; also, it is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read_named(path, most)?);
    text.map_err(|_| io::Error::other("no text: give a file of UTF-8"))
}
