//! Huge pages: which order a fault gets, which huge pages are underused, and how one is
//! taken apart.

pub mod asked;
pub mod collapse;
pub mod force;
pub mod isolated;
pub mod khugepaged;
pub mod order;
pub mod queue;
pub(crate) mod retouch;
pub mod shatter;
pub mod split;
pub mod trim;
pub mod underused;
