//! The shrinker: which huge pages are underused, before and when memory is short.

pub(crate) mod retouch;
pub mod trim;
pub mod underused;
