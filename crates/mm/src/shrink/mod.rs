//! The shrinker: which huge pages are underused, before and when memory is short.

mod look;
pub(crate) mod retouch;
pub mod trim;
pub mod underused;
