//! Looks at real processes whose memory is known, and what is told of them.

mod common;
mod formats;
mod looks;
mod samples;
mod settings;
#[path = "../../uffd/tests/common/skipped.rs"]
mod skipped;
