//! The suites of the core that run on every profile of the model.

mod collapse;
mod faults;
mod filed;
mod groups;
mod held;
mod locked;
mod marks;
pub mod memory;
mod order;
mod pageout;
mod pressure;
mod profiles;
mod readahead;
mod regret;
mod rejected;
mod split;
mod split_matrix;
mod stops;
mod swap;
mod trim;
mod underused;
mod waits;
mod without;
mod zap;

use super::{P, common};
