//! How deckle itself fails: one line, and an exit status.

use std::fmt;

/// An error for people: `deckle: WHAT: what to do`.
#[derive(Debug)]
pub struct Fail {
    /// Exit status.
    pub status: i32,
    /// The line, without `deckle: `.
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
