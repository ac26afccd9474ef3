//! The suites of the core that run on every profile of the model. Built without huge pages it is
//! those that are not about folios of more than one page, and have no number that depends on them.

#[cfg(feature = "huge-pages")]
mod collapse;
#[cfg(feature = "huge-pages")]
mod faults;
mod filed;
#[cfg(feature = "huge-pages")]
mod groups;
#[cfg(feature = "huge-pages")]
mod held;
mod locked;
#[cfg(feature = "huge-pages")]
mod marks;
pub mod memory;
#[cfg(feature = "huge-pages")]
mod moves;
#[cfg(feature = "huge-pages")]
mod order;
#[cfg(feature = "huge-pages")]
mod pageout;
#[cfg(feature = "huge-pages")]
mod pressure;
#[cfg(feature = "huge-pages")]
mod profiles;
#[cfg(feature = "huge-pages")]
mod readahead;
#[cfg(feature = "huge-pages")]
mod regret;
#[cfg(feature = "huge-pages")]
mod rejected;
#[cfg(feature = "huge-pages")]
mod split;
#[cfg(feature = "huge-pages")]
mod split_matrix;
#[cfg(feature = "huge-pages")]
mod stops;
mod swap;
#[cfg(feature = "huge-pages")]
mod tables;
#[cfg(feature = "huge-pages")]
mod trim;
#[cfg(feature = "huge-pages")]
mod underused;
#[cfg(feature = "huge-pages")]
mod waits;
mod without;
#[cfg(feature = "huge-pages")]
mod zap;

use super::{P, common};
